"""A site asks before it takes transparent pictures of an earlier ledger for new records."""

import numpy as np
import pytest
from PIL import Image

from fedaux_pl.algorithms import FedAUX
from fedaux_pl.data import InMemory
from fedaux_pl.data.fingerprints import key_id, machine_key
from fedaux_pl.errors import PrivacyError
from fedaux_pl.scoring import MeanScoring, Privacy
from fedaux_pl.sites import Limits
from fedaux_pl.sites.ledger import Ledger
from tests.federations import create, split
from tests.sites.loopback import fit, prepare

NUM_TRANSPARENT = 4  # at the first site; all other pictures are opaque


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return lambda: Ledger(key_id(machine_key()))


def as_pictures(data, brightness=0, version_1=False):
    """Replace the digits of a site by pictures with an alpha channel, of which some have holes."""
    examples = data.private.train()
    pairs = []
    for index, (pixels, label) in enumerate(zip(examples.inputs, examples.targets, strict=True)):
        alpha = np.full((8, 8), 255, np.uint8)
        if index < NUM_TRANSPARENT:
            alpha[2:6] = 0
        gray = pixels[0].numpy() + np.uint8(brightness)
        pairs.append((Image.fromarray(np.stack([gray, alpha], axis=-1)), examples.classes[label]))
    data.private = InMemory(pairs)
    if version_1:
        data.private.background = None


def federation():
    method = FedAUX(scoring=MeanScoring(dimensions=8), privacy=Privacy(1.0))
    return create(method, {"resnet8": 3})


def run(root, rehearsal=False, epsilon_limit=None, accept_new_pixels=False, **pictures):
    """Run three sites, of which the first has transparent pictures."""

    def change_data(number, data):
        if number == 0:
            as_pictures(data, **pictures)

    limits = Limits(
        rehearsal=rehearsal, epsilon_limit=epsilon_limit, accept_new_pixels=accept_new_pixels
    )
    server, data, _ = prepare(
        root, federation, split(3), limits=limits, rehearsal=rehearsal, change_data=change_data
    )
    fit(root, server, data, rounds=1)


def test_the_releases_of_version_1_are_accepted_once(tmp_path, ledger):
    run(tmp_path, version_1=True)
    assert len(ledger().entries()) == 3
    refusal = (
        "^4 pictures are read differently now, so their releases would count as new records; "
        "--accept_new_pixels true continues"
    )
    with pytest.raises(PrivacyError, match=refusal):
        run(tmp_path)
    assert len(ledger().entries()) == 3
    run(tmp_path, accept_new_pixels=True, epsilon_limit=2.0)
    assert len(ledger().entries()) == 4  # the two other sites have released nothing again
    run(tmp_path, epsilon_limit=2.0)  # it does not ask again
    assert len(ledger().entries()) == 4


def test_a_ledger_that_is_new_or_about_other_records_is_no_reason_to_ask(tmp_path, ledger):
    run(tmp_path)
    assert len(ledger().entries()) == 3
    run(tmp_path, brightness=9)
    assert len(ledger().entries()) == 4


def test_a_rehearsal_releases_nothing_and_does_not_ask(tmp_path, ledger):
    run(tmp_path, version_1=True)
    run(tmp_path, rehearsal=True)
    assert len(ledger().entries()) == 3

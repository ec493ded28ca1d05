"""The silos that tools/digit_silos.py makes of the embedded digits."""

import numpy as np
import pytest
import torch

from fedaux_pl.data import Digits, FederatedDataModule, NpzImages
from tools.digit_silos import SILOS, create_silos, main


@pytest.fixture(scope="module")
def silos():
    return create_silos(seed=0)


def test_a_fifth_of_each_silo_is_test_data(silos):
    sizes = {
        silo: tuple(int((silos[f"{part}_client"] == silo).sum()) for part in ("train", "test"))
        for silo in SILOS
    }
    expected = dict.fromkeys(SILOS, (240, 60)) | {"noisy": (240, 59)}
    assert sizes == expected


def test_the_file_names_clients_whose_pictures_differ(tmp_path, monkeypatch):
    path = tmp_path / "silos.npz"
    monkeypatch.setattr("sys.argv", ["digit_silos.py", str(path)])
    main()
    data = FederatedDataModule(NpzImages(path), auxiliary=Digits(size=16))
    data.setup()
    assert set(data.client_names) == set(SILOS)
    means = {
        name: float(data.client(number).inputs.float().mean())
        for number, name in enumerate(data.client_names)
    }
    assert means["dark"] < means["plain"] < means["noisy"] < means["inverted"]


def test_a_digit_is_at_one_silo_alone_and_not_public(silos):
    """As far as pixels tell, so for the plain silo."""
    digits = Digits(size=16)
    known = {x.numpy().tobytes() for part in (digits.train(), digits.test()) for x in part.inputs}
    public = {x.numpy().tobytes() for x in digits.auxiliary()}
    plain = [
        x.tobytes()
        for part in ("train", "test")
        for x in silos[f"{part}_x"][silos[f"{part}_client"] == "plain"]
    ]
    assert len(set(plain)) == len(plain)
    assert set(plain) <= known
    assert not set(plain) & public


def test_only_two_silos_are_rotated(silos):
    """A dark picture is a third of a digit; an inverted one is no digit, but for its angle."""
    digits = Digits(size=16)
    inputs = torch.cat([digits.train().inputs, digits.test().inputs])
    dark = {x.tobytes() for x in (inputs // 3).numpy()}
    inverted = {x.tobytes() for x in (255 - inputs).numpy()}
    of = {silo: silos["train_x"][silos["train_client"] == silo] for silo in SILOS}
    assert all(x.tobytes() in dark for x in of["dark"])
    assert not all(x.tobytes() in inverted for x in of["inverted"])


def test_a_seed_gives_the_same_silos_again(silos):
    again = create_silos(seed=0)
    assert all(np.array_equal(silos[name], again[name]) for name in silos)
    assert not np.array_equal(silos["train_x"], create_silos(seed=1)["train_x"])

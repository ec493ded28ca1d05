"""Released heads as tensors."""

from dataclasses import replace

import torch

from fedaux_pl.scoring import Step, Whitened, describe_privacy, pack, unpack
from tests.paper import paper_scoring
from tests.scoring.test_privacy_statements import release


def test_heads_are_the_same_after_packing_and_share_their_map():
    scoring = paper_scoring(feature_map=Whitened(3), norm_bound="unit")
    first = release(1, scoring)  # client 0 has released nothing yet
    member = replace(release(4, scoring), public_map=first.public_map)
    heads = unpack(pack([first, member]), Step(scoring))
    for head, packed in zip(heads, (first, member), strict=True):
        assert (head.client, head.release, head.members) == (packed.client, packed.release, ())
        assert torch.equal(head.weight, packed.weight)
        assert torch.equal(head.public_map.directions, packed.public_map.directions)
    assert heads[0].public_map is heads[1].public_map


def test_a_sum_keeps_its_members():
    scoring = paper_scoring(feature_map=Whitened(3), norm_bound="unit")
    head = replace(release(2, scoring), members=(2, 5, 7))
    [unpacked] = unpack(pack([head]), Step(scoring))
    assert (unpacked.client, unpacked.clients) == (2, (2, 5, 7))
    assert unpacked.release.summands == 3


def test_a_stored_release_that_was_not_rounded_is_not_called_private():
    scoring = paper_scoring()
    head = release(0, scoring)
    assert unpack(pack([head]), Step(scoring))[0].release == head.release
    digits = replace(head, weight=head.weight + 1e-9)  # as version 0.6.0 released it
    [line] = describe_privacy(unpack(pack([digits]), Step(scoring)))
    assert line.startswith("NOT private: ")
    assert "its last bits reveal" in line
    simulated = release(0, scoring, seed=3)  # protects nothing, which is said already
    assert unpack(pack([simulated]), Step(scoring))[0].release == simulated.release

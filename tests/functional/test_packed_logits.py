"""Logits in one byte each."""

import pytest
import torch

from fedaux_pl.functional import pack_logits, soft_labels, unpack_logits


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 30.0, 1e4])
def test_distances_to_the_largest_logit(scale, dtype):
    logits = (scale * draw(200, 10)).to(dtype)
    packed = pack_logits(logits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (200, 11)
    expected = logits.double() - logits.double().amax(dim=1, keepdim=True)
    spread = -expected.amin(dim=1, keepdim=True)
    error = (unpack_logits(packed) - expected).abs()
    assert bool((error <= 1.0001 * 2**0.25 / 255 / 2 * spread).all())
    assert torch.equal(unpack_logits(packed).amax(dim=1), torch.zeros(200))


@pytest.mark.parametrize("row", [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [1e30, 0.0, -1e30]])
def test_equal_and_huge_logits(row):
    """Equal logits stay equal; distances beyond the largest scale end at it."""
    labels = unpack_logits(pack_logits(torch.tensor([row]))).softmax(dim=1)
    torch.testing.assert_close(labels, torch.tensor([row]).softmax(dim=1))


@pytest.mark.parametrize(("teachers", "worst"), [(1, 0.025), (8, 0.015), (60, 0.01)])
def test_soft_labels_hardly_change(teachers, worst):
    """Total variation in 2,000 samples of random teachers, whose logits have a spread of 18."""
    logits, scores = 6 * draw(teachers, 2000, 10), draw(teachers, 2000, seed=1).exp()
    packed = torch.stack([unpack_logits(pack_logits(one)) for one in logits])
    change = (soft_labels(packed, scores) - soft_labels(logits, scores)).abs().sum(dim=1) / 2
    assert change.max() < worst
    assert change.mean() < 0.003


def test_no_samples():
    assert unpack_logits(pack_logits(torch.zeros(0, 4))).shape == (0, 4)

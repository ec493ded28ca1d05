"""Masked tokens: a fixed fraction of every text, without its first and last token."""

import pytest
import torch

from fedaux_pl.functional.masking import mask_tokens
from tests.texts import ids


@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_the_fraction_of_masked_tokens(rate):
    lengths = [20, 12, 7, 4, 3, 2]
    x = ids(*lengths)
    for seed in range(20):
        torch.manual_seed(seed)
        masked = mask_tokens(x, rate, 0, 4, 4000)
        assert masked.positions.shape == (6, round(rate * 18))
        for row, length in enumerate(lengths):
            inside = length - 2
            chosen = masked.positions[row][masked.weights[row] > 0].tolist()
            assert len(chosen) == (min(inside, max(1, round(rate * inside))) if inside else 0)
            assert len(set(chosen)) == len(chosen)
            assert all(1 <= position < length - 1 for position in chosen)
            for place, position in enumerate(chosen):
                assert masked.targets[row, place] == x[row, position]
            others = [p for p in range(20) if p not in chosen]
            assert torch.equal(masked.ids[row, others], x[row, others])


def test_chosen_tokens_are_masked_replaced_or_unchanged():
    torch.manual_seed(0)
    x = ids(*[100] * 400, width=100, vocabulary=4000)
    masked = mask_tokens(x, 0.15, 0, 4, 4000)
    shown = masked.ids.gather(1, masked.positions)
    is_mask, same = shown == 4, shown == masked.targets
    assert is_mask.float().mean() == pytest.approx(0.8, abs=0.02)
    assert same.float().mean() == pytest.approx(0.1, abs=0.02)
    random = shown[~is_mask & ~same]
    assert len(random) / shown.numel() == pytest.approx(0.1, abs=0.02)
    assert random.min() < 400
    assert random.max() >= 3600
    # all positions are equally likely
    where = torch.bincount(masked.positions.flatten(), minlength=100)[1:-1].float()
    assert where.min() > 20
    assert where.max() < 110


def test_the_seed_determines_the_masked_tokens():
    x = ids(20, 20)
    torch.manual_seed(0)
    first, second = (mask_tokens(x, 0.3, 0, 4, 4000).positions for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(first, mask_tokens(x, 0.3, 0, 4, 4000).positions)
    assert not torch.equal(first, second)

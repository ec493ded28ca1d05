"""Which tokens are hidden: a fixed share of every text, between its first and its last."""

import pytest
import torch

from fedaux_pl.functional.masking import hide_tokens
from tests.texts import ids


@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_every_text_loses_its_share(rate):
    lengths = [20, 12, 7, 4, 3, 2]
    x = ids(*lengths)
    for seed in range(20):
        torch.manual_seed(seed)
        hidden = hide_tokens(x, rate, 0, 4, 4000)
        assert hidden.positions.shape == (6, round(rate * 18))
        for row, length in enumerate(lengths):
            inside = length - 2
            chosen = hidden.positions[row][hidden.weights[row] > 0].tolist()
            assert len(chosen) == (min(inside, max(1, round(rate * inside))) if inside else 0)
            assert len(set(chosen)) == len(chosen)
            assert all(1 <= position < length - 1 for position in chosen)
            for place, position in enumerate(chosen):
                assert hidden.targets[row, place] == x[row, position]
            others = [p for p in range(20) if p not in chosen]
            assert torch.equal(hidden.ids[row, others], x[row, others])


def test_most_are_masked_some_are_anything_some_stay():
    torch.manual_seed(0)
    x = ids(*[100] * 400, width=100, vocabulary=4000)
    hidden = hide_tokens(x, 0.15, 0, 4, 4000)
    shown = hidden.ids.gather(1, hidden.positions)
    masked, same = shown == 4, shown == hidden.targets
    assert masked.float().mean() == pytest.approx(0.8, abs=0.02)
    assert same.float().mean() == pytest.approx(0.1, abs=0.02)
    anything = shown[~masked & ~same]
    assert len(anything) / shown.numel() == pytest.approx(0.1, abs=0.02)
    assert anything.min() < 400
    assert anything.max() >= 3600
    # all places are as likely as each other
    where = torch.bincount(hidden.positions.flatten(), minlength=100)[1:-1].float()
    assert where.min() > 20
    assert where.max() < 110


def test_another_seed_hides_others():
    x = ids(20, 20)
    torch.manual_seed(0)
    first, second = (hide_tokens(x, 0.3, 0, 4, 4000).positions for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(first, hide_tokens(x, 0.3, 0, 4, 4000).positions)
    assert not torch.equal(first, second)

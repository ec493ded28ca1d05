"""The whole release path: features of neighboring data sets, maps, scorers, noise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaux_pl.functional import gaussian_sigma
from fedaux_pl.scoring import Centered, Identity, Logistic, Mean, Step, Whitened, noise
from tests.paper import paper_scoring

SCORINGS = st.fixed_dictionaries(
    {
        "scorer": st.just(Mean())
        | st.builds(
            Logistic,
            regularization=st.sampled_from([1e-4, 1e-2, 0.1, 10.0]),
            tolerance=st.sampled_from([1e-8, 1e-5]),
        ),
        "feature_map": st.sampled_from([Identity(), Centered()])
        | st.builds(Whitened, st.integers(1, 6), st.floats(0, 1)),
        "norm_bound": st.sampled_from(["unit", "negatives"]) | st.floats(1e-3, 1e3),
        "epsilon": st.floats(1e-3, 100),
        "mechanism": st.just("analytic"),
    }
)
# what an attacker may put in place of a record: far away, at 0, opposite to all others
OUTLIERS = st.sampled_from([0.0, -1.0, 1.0, 1e-30, 1e6, -1e15, 3e38])


@settings(deadline=None, max_examples=150, derandomize=True)
@given(SCORINGS, st.integers(0, 2**32), st.integers(1, 40), OUTLIERS, OUTLIERS)
def test_a_replaced_record_moves_a_release_by_at_most_its_sensitivity(
    options, seed, size, one, other
):
    """The sensitivity from which sigma was computed; noise is replaced by 0, and not rounded."""
    scoring = paper_scoring(**options)
    generator = torch.Generator().manual_seed(seed)
    public, own = (torch.randn(n, 6, generator=generator) for n in (60, size))
    negatives = public[:20]
    if seed % 3 == 0:  # the other records say nothing
        own.zero_()
    public_map = scoring.fit_map(public, negatives)
    heads = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "standard_normal", _zeros)
        patch.setattr(noise, "round_to_grid", lambda vector, sigma: vector)
        for value in (one, other):
            data = own.clone()
            data[0] = value * (negatives[0] if seed % 2 else torch.ones(6))
            heads.append(
                Step(scoring).release(0, data.clamp(-3e38, 3e38), negatives, public_map, None)
            )
    first, second = heads
    record = first.release
    assert record == second.release  # sigma does not depend on the data
    assert record.sigma == gaussian_sigma(options["epsilon"], 1e-5, record.sensitivity)
    assert (first.weight - second.weight).norm() <= record.sensitivity * (1 + 1e-9)


def _zeros(count, source):
    return torch.zeros(count, dtype=torch.float64)

"""The rows that a public map makes of features."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaux_pl.functional import LinearClassifier
from fedaux_pl.scoring import Centered, Identity, PublicMap, Whitened
from tests.scoring.test_feature_maps import features


def test_rows_of_norm_1_and_rows_within_a_bound():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    unit = PublicMap(unit=True).rows(x)
    torch.testing.assert_close(unit, torch.tensor([[0.6, 0.8], [0.6, 0.8], [0, 0]]).double())
    clipped = PublicMap(bound=2.0).rows(x)
    expected = torch.tensor([[0.6, 0.8], [0.15, 0.2], [0, 0]]).double()
    torch.testing.assert_close(clipped, expected)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([Identity(), Centered(), Whitened(2)]),
    st.booleans(),
    st.floats(1e-3, 1e3),
)
def test_no_record_gives_a_row_longer_than_1(records, kind, unit, bound):
    fitted = kind.fit(features(d=3))
    public = PublicMap(fitted.center, fitted.directions, unit, 1.0 if unit else bound)
    assert public.rows(torch.tensor(records)).norm(dim=1).max() <= 1


def test_a_row_depends_on_its_own_record_only():
    public = Whitened(3).fit(features())
    x = features(7, seed=1)
    changed = x.clone()
    changed[2] = 1e4
    unchanged = [0, 1, 3, 4, 5, 6]
    assert torch.equal(public.rows(x)[unchanged], public.rows(changed)[unchanged])


@pytest.mark.parametrize("kind", [Identity(), Centered(), Whitened(4)])
def test_a_classifier_of_rows_is_one_of_features(kind):
    x = features()
    generator = torch.Generator().manual_seed(1)
    public = dataclasses.replace(kind.fit(x), bound=1000.0)  # nothing is clipped
    rows = public.rows(x)
    weight = torch.randn(3, rows.shape[1], generator=generator).double()
    classifier = LinearClassifier(weight, torch.arange(3.0).double())
    head = public.linear_head(classifier, x)
    torch.testing.assert_close(head.logits(x.double()), classifier.logits(rows))


def test_one_factor_stands_for_the_norms_of_unit_rows():
    """The factor f minimizes sum |row - f (h - center)|^2."""
    x = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]]).double()
    classifier = LinearClassifier(torch.eye(2).double(), torch.zeros(2).double())
    head = PublicMap(unit=True).linear_head(classifier, x)
    factor = (5 + 2) / (25 + 4)
    torch.testing.assert_close(head.weight, factor * torch.eye(2).double())
    still = PublicMap(unit=True).linear_head(classifier, torch.zeros(3, 2))
    assert torch.equal(still.weight, torch.zeros(2, 2).double())

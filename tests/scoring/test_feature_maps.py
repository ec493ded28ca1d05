import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaux_pl.functional import LinearClassifier
from fedaux_pl.scoring import Centered, Identity, PublicMap, Whitened

BIG = 2.0**100


def features(n=500, d=6, seed=0):
    """Correlated, far from 0, of very different variances."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(d, d, generator=generator) * torch.logspace(1, -2, d)
    return torch.randn(n, d, generator=generator) @ spread.T + 20


def covariance(x):
    centered = x - x.mean(dim=0)
    return centered.T @ centered / len(x)


def test_identity_returns_the_features():
    x = features()
    assert torch.equal(Identity().fit(x).project(x), x.double())
    assert Identity().fit(x).tensors() == {}


def test_centered_features_have_no_mean():
    x = features()
    public = Centered().fit(x)
    assert public.project(x).mean(dim=0).abs().max() < 1e-12
    torch.testing.assert_close(public.project(x), x.double() - x.double().mean(dim=0))
    assert public.tensors().keys() == {"center"}


@pytest.mark.parametrize(("n", "dimensions"), [(30, 6), (20_000, 4)])  # the latter in parts
def test_whitened_public_features_have_the_identity_as_covariance(n, dimensions):
    x = features(n)
    public = Whitened(dimensions, 1.0).fit(x)
    rows = public.project(x)
    assert rows.shape == (n, dimensions)
    eye = torch.eye(dimensions, dtype=torch.float64)
    torch.testing.assert_close(covariance(rows), eye, rtol=0, atol=1e-7)
    assert rows.mean(dim=0).abs().max() < 1e-7
    assert public.tensors().keys() == {"center", "directions"}


def test_the_directions_are_those_of_the_largest_variance():
    """Whitening to k is whitening to all, cut; and what is cut holds the least variance."""
    x = features()
    whole, part = Whitened(6, 1.0).fit(x), Whitened(2, 1.0).fit(x)
    torch.testing.assert_close(part.directions, whole.directions[:, :2])
    lengths = whole.directions.norm(dim=0)  # one over the root of the variance
    assert torch.equal(lengths, lengths.sort().values)
    expected = torch.linalg.svdvals(x.double() - x.double().mean(dim=0)) / len(x) ** 0.5
    torch.testing.assert_close(1 / lengths, expected)


def test_directions_without_variance_are_left_out():
    """A dead unit, a copy of another one, and fewer samples than features."""
    x = features(d=4)
    padded = torch.cat([x, torch.full((500, 1), 3.0), x[:, :1]], dim=1)
    assert Whitened(64).fit(padded).directions.shape == (6, 4)
    assert Whitened(64).fit(features(5, 8)).directions.shape == (8, 4)
    with pytest.raises(ValueError, match="do not vary"):
        Whitened(2).fit(torch.ones(10, 3))


def test_the_sign_of_a_direction_is_unique():
    for seed in range(5):
        directions = Whitened(6).fit(features(seed=seed)).directions
        assert (directions.gather(0, directions.abs().argmax(dim=0, keepdim=True)) > 0).all()


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


def test_rows_of_norm_1_and_rows_within_a_bound():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    unit = PublicMap(unit=True).rows(x)
    torch.testing.assert_close(unit, torch.tensor([[0.6, 0.8], [0.6, 0.8], [0, 0]]).double())
    clipped = PublicMap(bound=2.0).rows(x)
    expected = torch.tensor([[0.6, 0.8], [0.15, 0.2], [0, 0]]).double()
    torch.testing.assert_close(clipped, expected)


@pytest.mark.parametrize("kind", [Centered(), Whitened(2)])
def test_maps_refuse(kind):
    with pytest.raises(ValueError, match="NaN or infinity"):
        kind.fit(torch.tensor([[1.0, float("nan")]]))


@pytest.mark.parametrize("whitening", [0.0, 0.75])
def test_partial_whitening_gives_the_documented_variances(whitening):
    generator = torch.Generator().manual_seed(5)
    public = torch.randn(4000, 6, generator=generator) * torch.arange(1.0, 7.0)
    public = public.double()
    variances = torch.linalg.eigvalsh(torch.cov(public.T, correction=0)).flip(0)
    mapped = Whitened(4, whitening).fit(public).project(public)
    torch.testing.assert_close(mapped.var(dim=0, correction=0), variances[:4] ** (1 - whitening))


def test_options_out_of_range():
    for whitening in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"whitening: got .*; expected to lie in \[0, 1\]"):
            Whitened(4, whitening)
    with pytest.raises(ValueError, match="dimensions: got 0; expected to be at least 1"):
        Whitened(0)


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

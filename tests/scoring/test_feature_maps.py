import pytest
import torch

from fedaux_pl.scoring import Centered, Identity, Whitened


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

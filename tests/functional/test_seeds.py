import pytest

from fedaux_pl.functional import derive_seed, sample_clients


def test_other_parts_give_other_seeds():
    parts = [(a, b) for a in range(30) for b in range(30)]
    parts += [(a,) for a in range(30)] + [(a, 0, 0) for a in range(30)]
    assert len({derive_seed(*p) for p in parts}) == len(parts)


def test_seeds_fit_torch_and_never_change():
    assert 0 <= derive_seed(2**40, 3) < 2**63
    # A change of these values would change every run that somebody wrote down.
    assert derive_seed(0, 1) == 7006255215521402662
    assert derive_seed(1, 2, 3) == 6530208866956668065


@pytest.mark.parametrize("parts", [(), (-1,), (1, -2)])
def test_seeds_refuse(parts):
    with pytest.raises(ValueError, match="non-negative integers"):
        derive_seed(*parts)


@pytest.mark.parametrize(
    ("num_clients", "participation", "count"),
    [(20, 0.4, 8), (100, 0.01, 1), (20, 0.01, 1), (1, 1.0, 1), (7, 1.0, 7), (10, 0.26, 3)],
)
def test_the_number_of_clients(num_clients, participation, count):
    for seed in range(20):
        drawn = sample_clients(num_clients, participation, seed)
        assert len(set(drawn)) == len(drawn) == count
        assert drawn == sorted(drawn)
        assert set(drawn) <= set(range(num_clients))


def test_every_client_is_drawn_as_often_as_any_other():
    """4,000 draws of 8 out of 20: 1,600 times each, with a standard deviation of about 31."""
    counts = [0] * 20
    for seed in range(4000):
        for client in sample_clients(20, 0.4, seed):
            counts[client] += 1
    assert all(abs(count - 1600) < 5 * 31 for count in counts)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, float("nan")])
def test_a_share_must_lie_between_0_and_1(share):
    with pytest.raises(ValueError, match=r"participation: got .*; expected to lie in \(0, 1\]"):
        sample_clients(20, share, 0)


def test_there_must_be_a_client():
    with pytest.raises(ValueError, match="num_clients: got 0; expected to be at least 1"):
        sample_clients(0, 0.5, 0)

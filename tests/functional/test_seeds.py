import pytest

from fedaux_pl.functional import derive_seed


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

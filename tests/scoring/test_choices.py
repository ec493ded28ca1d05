"""How open options are chosen by public numbers and by the noise."""

from fedaux_pl.scoring import ClassStatistics, Mean, Privacy, PublicNumbers
from fedaux_pl.scoring.choices import choose_count_share, choose_dimensions, choose_releases
from tests.scoring.test_planning import LOCAL, NUMBERS, SECURE

EPSILONS = [1e-3, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0]


def test_public_numbers_of_several_architectures():
    numbers = PublicNumbers({"resnet8": [10, 30], "shufflenet": [5, 5, 10]}, classes=10)
    assert (numbers.records_per_architecture, numbers.noise_terms(Privacy())) == (30, 2)


def test_dimensions_are_those_of_the_formula():
    """n / (C m J^(1/4)) = 16,000 / (10 * 3.73 * 2) and |D_i| / m, rounded to powers of 2."""
    numbers = PublicNumbers({"resnet8": [1000] * 16}, classes=10)
    assert choose_dimensions(ClassStatistics(), Privacy(1.0), numbers) == 256
    assert choose_dimensions(ClassStatistics(), Privacy(1.0, **SECURE), numbers) == 512
    assert choose_dimensions(Mean(), Privacy(1.0), numbers) == 256


def test_less_noise_never_means_fewer_dimensions_or_releases_or_more_for_counts():
    for sums in (LOCAL, SECURE):
        budgets = [*(Privacy(e, **sums) for e in EPSILONS), Privacy(None, **sums)]
        for scorer in (ClassStatistics(), Mean()):
            dimensions = [choose_dimensions(scorer, own, NUMBERS) for own in budgets]
            assert dimensions == sorted(dimensions)
            assert 1 <= dimensions[0] < dimensions[-1]
        releases = [choose_releases(own, NUMBERS) for own in budgets]
        shares = [choose_count_share(own, NUMBERS) for own in budgets]
        assert releases == sorted(releases)
        assert (releases[0], releases[-1]) == (1, 2)
        assert shares == sorted(shares, reverse=True)
        assert 0 < shares[-1] < shares[0] < 0.5
    for epsilon in EPSILONS:
        local, secure = (
            choose_releases(Privacy(epsilon, **own), NUMBERS) for own in (LOCAL, SECURE)
        )
        assert local <= secure

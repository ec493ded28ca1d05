import pytest

from fedaux_pl.models.layers import group_count, scale_channels


def test_group_count_is_the_greatest_allowed():
    for channels in range(1, 1300):
        powers = [g for g in (1, 2, 4, 8, 16, 32) if channels % g == 0 and channels // g >= 4]
        assert group_count(channels) == max(powers, default=1), channels


@pytest.mark.parametrize(
    ("channels", "width", "divisor", "expected"),
    [
        (64, 1.0, 8, 64),
        (24, 0.5, 8, 16),  # 12 lies between 8 and 16, and 8 would lose more than a tenth
        (16, 0.01, 8, 8),
        (240, 0.25, 12, 60),
    ],
)
def test_scale_channels(channels, width, divisor, expected):
    assert scale_channels(channels, width, divisor) == expected

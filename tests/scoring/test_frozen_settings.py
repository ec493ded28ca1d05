"""The text of the settings by which ledgers, caches and simulated noise find a release."""

import json

import pytest

from fedaux_pl import FedAUX, FedAUXfdp, FedClassMeans
from fedaux_pl.scoring import (
    Centered,
    ClassStatistics,
    Logistic,
    Mean,
    MeanScoring,
    Privacy,
    Residuals,
    Scoring,
    SecureSums,
    Sigmoid,
    Standardized,
    Step,
    Whitened,
)
from fedaux_pl.scoring.frozen_settings import simulated_noise_settings, simulated_sum_settings
from tests.paper import paper_scoring

WHITENED = "'feature_map': {'class': 'Whitened', 'dimensions': 8, 'whitening': 0.5}"
UNIT = "'norm_bound': 'unit', 'epsilon': 0.1, 'delta': 1e-05, 'mechanism': 'analytic', 'version': 1"
SUMS = "'sums': {'colluders': 2, 'attempts': 1, 'count_share': None, 'pins': {'north': 'key'}}"


def step(scorer, secure=None, **options):
    scoring = Scoring(scorer, Whitened(8, 0.5), privacy=Privacy(secure=secure))
    return Step(scoring, **options)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (step(Mean()), "'scorer': {'class': 'Mean'}"),
        (
            step(ClassStatistics(releases=2), share=0.5),
            "'part': {'share': 0.5, 'summands': 1}, "
            "'scorer': {'class': 'ClassStatistics', 'second_moment': 0.15, 'releases': 2}",
        ),
        (
            step(Residuals(), SecureSums(2, pins={"north": "key"}), summed=True),
            f"'part': {{'share': 1.0, 'summands': 1}}, {SUMS}, 'scorer': {{'class': 'Residuals'}}",
        ),
    ],
)
def test_the_text_of_a_step(asked, text):
    assert str(asked.settings()) == f"{{{text}, {WHITENED}, {UNIT}}}"


def test_the_settings_of_simulated_noise():
    whole = simulated_noise_settings(7, 0.1, 1e-5, "analytic", 2.0, share=1.0)
    assert json.dumps(whole) == '[7, 0.1, 1e-05, "analytic", 2.0]'
    half = simulated_noise_settings(7, 0.1, 1e-5, "analytic", 2.0, share=0.5)
    assert json.dumps(half) == '[7, 0.1, 1e-05, "analytic", 2.0, 0.5, 1]'
    assert simulated_sum_settings(7, {"version": 1}) == [7, 1, {"version": 1}]


def test_what_determines_a_release_and_what_does_not():
    base = paper_scoring().release_settings()
    same = [{"calibration": Standardized()}, {"calibration": Sigmoid(1e-3)}, {"secret": True}]
    for options in same:
        assert paper_scoring(**options).release_settings() == base
        assert paper_scoring(**options).settings() != paper_scoring().settings()
    others = [
        *({"epsilon": None}, {"delta": 1e-6}, {"mechanism": "classical"}, {"norm_bound": "unit"}),
        *({"scorer": Logistic(regularization=0.2)}, {"scorer": Logistic(normalized=False)}),
        *({"scorer": Logistic(tolerance=1e-9)}, {"scorer": Mean()}),
        *({"feature_map": Centered()}, {"feature_map": Whitened()}),
    ]
    for options in others:
        assert paper_scoring(**options).release_settings() != base
    whitened = paper_scoring(feature_map=Whitened(dimensions=7))
    assert whitened.release_settings()["feature_map"]["dimensions"] == 7


def test_recorded_settings_are_plain_values_and_keep_their_names():
    """Keys of ledgers and caches hold the first ones, checkpoints and summaries all of them."""
    parts = "{'scorer': {'class': 'Mean'}, 'feature_map': {'class': 'Whitened', 'dimensions': 128, "
    parts += "'whitening': 0.75}, 'norm_bound': 'unit', 'epsilon': 0.1, 'delta': 1e-05, "
    parts += "'mechanism': 'analytic', 'version': 1}"
    whitened = FedAUX(scoring=MeanScoring(128, 0.75)).release.scoring
    assert str(whitened.release_settings()) == parts
    for method in (FedAUX, FedAUXfdp, FedClassMeans):
        settings = method(privacy=Privacy(2.0, 1e-6, secret=True)).settings()
        assert settings == json.loads(json.dumps(settings))
        recorded = [settings[name] for name in ("epsilon", "delta", "mechanism", "secret_noise")]
        assert recorded == [2.0, 1e-6, "analytic", True]
        assert "privacy" not in settings

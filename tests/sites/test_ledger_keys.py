"""The texts of keys are frozen: one whole text of each kind, as earlier versions wrote it."""

import json

import torch

from fedaux_pl.algorithms import FedAUX
from fedaux_pl.scoring import Privacy, PublicMap, ReleasedHead, SecureSums, StatisticsScoring
from fedaux_pl.sites.ledger_keys import (
    MASKED_VECTOR,
    RIGHT_ANSWERS,
    Attempt,
    ReleaseKey,
    evaluation_key,
    first_classifier_key,
    first_map_key,
    release_key,
    sum_digest,
)

RAMP = "tests.sites.test_earlier_ledger.Ramp"
DATA = "keyed:d8fc2bc5:7a20fa4a2c02af0b2b5b790a623f4ad54547a06f6442571d34a9a0e8dc90eda4"
RECEIVED = torch.arange(3.0)
PINS = {"site-0": "18174dc6", "site-1": "6a38ce53", "site-2": "4364b5a7"}
TWO_RELEASES = StatisticsScoring(dimensions=4, whitening=0.5, releases=2)
LOCAL_NOISE = FedAUX(scoring=TWO_RELEASES, privacy=Privacy(1.0)).release.plan(None)
SUMMED = FedAUX(
    scoring=TWO_RELEASES, privacy=Privacy(1.0, secure=SecureSums(count_share=0.1, pins=PINS))
).release.plan(None)
PUBLIC_MAP = PublicMap(center=torch.zeros(2).double(), unit=True, bound=1.0)
AGREEMENT = {"format": 1, "model_options": {}, "classes": ["a", "b"], "seed": 3, "version": "2.0"}

# version 0.9.0 wrote these two texts, but with the digests of other tensors and other pins
RELEASE = (
    "tests.sites.test_earlier_ledger.Ramp {} "
    "1b4ca8363e31bf665ea937be7099f1a17416f03bca09e58f5ca628dfdfb3260b 1.0 "
    "{'part': {'share': 0.5, 'summands': 1}, 'scorer': {'class': 'ClassStatistics', "
    "'second_moment': 0.15, 'releases': 2}, 'feature_map': {'class': 'Whitened', "
    "'dimensions': 4, 'whitening': 0.5}, 'norm_bound': 'unit', 'epsilon': 1.0, 'delta': 1e-05, "
    "'mechanism': 'analytic', 'version': 1} "
    "keyed:d8fc2bc5:7a20fa4a2c02af0b2b5b790a623f4ad54547a06f6442571d34a9a0e8dc90eda4"
)
ATTEMPT = Attempt("690dfd20", 179499602189, "c7031e67", "site-0, site-1, site-2")
SUM = (
    "tests.sites.test_earlier_ledger.Ramp {} "
    "1b4ca8363e31bf665ea937be7099f1a17416f03bca09e58f5ca628dfdfb3260b 1.0 "
    "sum 690dfd20 179499602189 c7031e67 site-0, site-1, site-2 "
    "{'part': {'share': 0.45, 'summands': 1}, 'sums': {'colluders': 1, 'attempts': 1, "
    "'count_share': 0.1, 'pins': {'site-0': '18174dc6', 'site-1': '6a38ce53', "
    "'site-2': '4364b5a7'}}, 'scorer': {'class': 'ClassStatistics', 'second_moment': 0.15, "
    "'releases': 2}, 'feature_map': {'class': 'Whitened', 'dimensions': 4, 'whitening': 0.5}, "
    "'norm_bound': 'unit', 'epsilon': 1.0, 'delta': 1e-05, 'mechanism': 'analytic', "
    "'version': 1} keyed:d8fc2bc5:7a20fa4a2c02af0b2b5b790a623f4ad54547a06f6442571d34a9a0e8dc90eda4"
)
# version 1.0.0 wrote this text
EVALUATION = (
    "evaluation 1 ['tests.sites.test_earlier_ledger.Ramp'] {} 0.5 1e-05 "
    "keyed:52f540a3:6a7321f3c6f07f0842e722f5a81c3ade03733e718e0850a5b98433fbad0f6b54 "
    "99cf35d290bf67f94af1b87a0392fd7df2800e51033402a48bea5823bab815f2"
)
# version 0.9.0 wrote these two keys at the server, but with other digests
FIRST_MAP = (
    '{"data": "1d5a1c73", "h0": "b132a4fd d2dabd10", "kind": "map-tests.Ramp_x", "map": '
    '"{\\"feature_map\\": {\\"class\\": \\"Whitened\\", \\"dimensions\\": 4, \\"whitening\\": '
    '0.5}, \\"norm_bound\\": \\"unit\\"}", "negatives": 0, "rows": '
    '"bebd7cfdd4d9d0baa2d3f45fe37120d1aacd4f8af2a559d17d9b4917e61e9d89"}'
)
FIRST_CLASSIFIER = (
    '{"heads": "1b4ca8363e31bf665ea937be7099f1a17416f03bca09e58f5ca628dfdfb3260b", '
    '"kind": "sent", "release": "{\\"delta\\": 1e-05, \\"epsilon\\": 1.0, \\"feature_map\\": '
    '{\\"class\\": \\"Whitened\\", \\"dimensions\\": 4, \\"whitening\\": 0.5}, \\"mechanism\\": '
    '\\"analytic\\", \\"norm_bound\\": \\"unit\\", \\"part\\": {\\"share\\": 0.5, \\"summands\\": '
    '1}, \\"scorer\\": {\\"class\\": \\"Residuals\\"}, \\"version\\": 1}"}'
)


def key_of(step, held_out=0.0):
    return release_key(RAMP, {}, step, [RECEIVED], 1.0, DATA, held_out)


def test_the_key_of_a_release_with_local_noise():
    assert str(key_of(LOCAL_NOISE["statistics"])) == RELEASE
    assert str(key_of(LOCAL_NOISE["statistics"], held_out=0.25)) == f"{RELEASE} without 0.25"


def test_the_key_of_a_masked_vector():
    key = key_of(SUMMED["statistics"])
    assert key.attempt_of(SUM) == ATTEMPT
    assert str(ReleaseKey(key.start, key.received, key.end, ATTEMPT)) == SUM
    assert MASKED_VECTOR == "masked"


def test_the_digest_of_a_secure_sum():
    h0 = {"hidden.weight": torch.ones(2, 2)}
    digest = sum_digest(AGREEMENT, RAMP, SUMMED["statistics"], h0, PUBLIC_MAP)
    assert digest == "f4b959c36541a953f90860948402ef9e68edd883638f3cbc2424242666825aba"
    other_seed = {**AGREEMENT, "seed": 4, "version": "3.0"}
    assert sum_digest(other_seed, RAMP, SUMMED["statistics"], h0, PUBLIC_MAP) == digest


def test_the_key_of_a_noisy_evaluation():
    fingerprint, received = EVALUATION.split(" ")[-2:]
    key = evaluation_key([RAMP], {}, Privacy(0.5), fingerprint, received)
    assert str(key) == EVALUATION
    assert RIGHT_ANSWERS == "right"


def test_the_keys_of_what_a_server_has_first_sent():
    step = LOCAL_NOISE["statistics"]
    first_map = first_map_key(
        "tests.Ramp/x", "b132a4fd d2dabd10", step, "1d5a1c73", torch.arange(4)
    )
    assert json.dumps(first_map, sort_keys=True) == FIRST_MAP
    step = LOCAL_NOISE["gradient"]
    heads = [ReleasedHead(0, RECEIVED, PUBLIC_MAP, step.cost(1.0, simulated=False))]
    assert json.dumps(first_classifier_key(step, heads), sort_keys=True) == FIRST_CLASSIFIER


def test_a_key_finds_the_texts_of_its_release():
    release = ReleaseKey("models ", "digest 1.0", " settings data")
    attempt = Attempt("sum", 7, "transcript", "a, b")
    key = ReleaseKey(release.start, release.received, release.end, attempt)
    text = "models digest 1.0 sum sum 7 transcript a, b settings data"
    assert str(key) == text
    assert str(release) == "models digest 1.0 settings data"
    assert release.attempt_of(text) == key.attempt_of(text) == attempt
    assert release.attempt_of(str(release)) is None
    for one in (release, key):
        assert one.is_same_release(text)
        assert one.is_same_release(str(release))
    other = ReleaseKey(release.start, "other 1.0", release.end)
    assert other.differs_in_received(text)
    assert not other.is_same_release(text)
    assert other.attempt_of(text) is None
    assert not ReleaseKey(release.start, release.received, " other").is_same_release(text)

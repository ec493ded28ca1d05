"""When a run says something in words, and when it does not."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedaux_pl.callbacks.notes import (
    RunNotes,
    describe_effective_teachers,
    describe_missing_classes,
    describe_noise,
    describe_remedy,
)
from fedaux_pl.scoring import (
    ClassStatistics,
    Release,
    ReleasedHead,
    Sigmoid,
    Standardized,
    stack_heads,
)
from tests.command_line import refusal
from tests.paper import paper_scoring


@pytest.mark.parametrize(
    ("effective", "teachers", "text"),
    [
        ([9.99], [10], "effective teachers 9.99 of 10: the scores are nearly uniform"),
        ([9.95, 9.93], [10, 10], "effective teachers 9.93 of 10"),
        ([9.95, 19.93], [10, 20], "effective teachers 19.93 of 20"),  # some are remembered
        ([9.95, 10.2], [10, 20], None),
        ([9.8], [10], None),  # weights vary by 14 %
        ([5.0, 9.99], [10, 10], None),  # not in all rounds
        ([1.0], [1], None),  # there is nobody to be told from
    ],
)
def test_scores_that_do_nothing(effective, teachers, text):
    said = describe_effective_teachers(effective, teachers, "raise the sharpness")
    assert said is None if text is None else said.startswith(text)
    assert said is None or said.endswith("; to let the scores decide more, raise the sharpness")


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"calibration": Sigmoid()}, "set --model.algorithm.scoring MeanScoring"),
        (
            {"calibration": Standardized(sharpness=1.5)},
            "raise --model.algorithm.scoring.sharpness above 1.5 (at most 20)",
        ),
        ({"calibration": Standardized(sharpness=20.0)}, None),
        ({"scorer": ClassStatistics()}, None),  # as with --config silos: they know the same
    ],
)
def test_the_remedy_is_an_option_or_nothing_is_said(options, remedy):
    assert describe_remedy(paper_scoring(**options)) == remedy
    federation = federation_of(1)
    federation.algorithm.release.scoring = paper_scoring(**options)
    federation.select_clients = lambda t: [0, 1]
    notes = dict(RunNotes().find(federation))
    assert notes == {} if remedy is None else remedy in notes["effective teachers"]


@pytest.mark.parametrize(
    "option", ["scoring=MeanScoring", "scoring.sharpness=6", "scoring.sharpness=20"]
)
def test_the_remedies_are_accepted(option):
    auxiliary = ["--data.private=Digits", "--data.auxiliary=Digits", "--model.clients={resnet8: 2}"]
    assert refusal(["--model.algorithm=FedAUX", f"--model.algorithm.{option}", *auxiliary]) is None


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([[3, 0, 0, 1], [0, 2, 0, 0]], "round 7: no client of the round holds class c"),
        ([[3, 0, 0, 1], [0, 0, 0, 2]], "round 7: no client of the round holds class b or c"),
        ([[3, 0, 0, 0], [1, 0, 0, 0]], "round 7: no client of the round holds class b, c or d"),
        ([[3, 0, 5, 1], [0, 2, 0, 0]], None),
    ],
)
def test_classes_without_a_client(counts, text):
    assert describe_missing_classes(7, np.array(counts), "abcd") == text


def test_many_classes_without_a_client():
    text = describe_missing_classes(7, np.zeros((2, 100), np.int64), [str(k) for k in range(100)])
    assert text.endswith("holds class 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 or 90 others")


def federation_of(rounds, key="certainty/effective_teachers"):
    """A federation of two clients in turn, which hold one of two classes each."""
    return SimpleNamespace(
        clients={"resnet8": 2},
        architectures=["resnet8"] * 2,
        heads=[],
        algorithm=SimpleNamespace(
            secret_noise=False, release=SimpleNamespace(scoring=paper_scoring())
        ),
        data=SimpleNamespace(
            class_counts=lambda: np.eye(2, dtype=np.int64),
            classes="ab",
            at_sites=False,
            test_examples=SimpleNamespace(clients=None),
        ),
        history=[{"round": float(t), key: 2.0} for t in range(1, rounds + 1)],
        select_clients=lambda t: [t % 2],
    )


def test_every_round_is_looked_at_once():
    """A run of many rounds takes no more time for notes in its last round than in its first."""
    federation, found, asked = federation_of(0), RunNotes(), []
    federation.select_clients = lambda t: asked.append(t) or [t % 2]
    for t in range(1, 31):
        federation.history.append({"round": float(t)})
        kinds, texts = zip(*found.find(federation), strict=True)
        assert texts == tuple(text for _, text in found.find(federation))
    assert asked == list(range(1, 31))
    assert set(kinds) == {"missing classes"}
    assert texts[:2] == (
        "round 1: no client of the round holds class a",
        "round 2: no client of the round holds class b",
    )
    assert texts[10:] == ("20 further rounds: no client holds some classes",)


@pytest.mark.parametrize("prefix", ["", "val/"])
def test_scores_that_do_nothing_are_noted_with_validation_data_too(prefix):
    federation = federation_of(1, f"{prefix}certainty/effective_teachers")
    federation.select_clients = lambda t: [0, 1]
    [(kind, text)] = RunNotes().find(federation)
    assert kind == "effective teachers"
    assert text.startswith("effective teachers 2.00 of 2")


def test_remembered_teachers_count():
    federation = federation_of(2)
    federation.select_clients = lambda t: [0, 1]
    federation.history[1] |= {"memory/clients": 3, "memory/forgotten": 1}
    assert "effective teachers" not in dict(RunNotes().find(federation))
    federation.history[1]["certainty/effective_teachers"] = 4.0
    assert "effective teachers 4.00 of 4" in dict(RunNotes().find(federation))["effective teachers"]


def heads(signal, sigma, count=10, dimensions=24, seed=0):
    """Released vectors whose own parts differ between clients and have norm ``signal``."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, dimensions)
    own = torch.randn(shape, generator=generator, dtype=torch.float64)
    own *= signal / own.norm(dim=1, keepdim=True)
    weights = own + 0.5 + sigma * torch.randn(shape, generator=generator, dtype=torch.float64)
    release = Release(1.0, 1e-5, sigma, 0.02, "analytic")
    return [ReleasedHead(i, weight, None, release) for i, weight in enumerate(weights)]


def hidden(released):
    return describe_noise(*stack_heads(released), f"the vectors of {len(released)} clients")


def test_noise_that_hides_the_clients():
    """0.5 in every coordinate is what clients have in common: no score can use it."""
    text = hidden(heads(signal=0.05, sigma=0.3))
    assert "10 clients" in text
    assert "of norm 1.5, around vectors of norm about 2." in text  # 0.3 sqrt(24), 0.5 sqrt(24)


def test_noise_below_the_signal():
    assert hidden(heads(signal=3.0, sigma=0.3)) is None
    assert hidden(heads(signal=0.05, sigma=0.0)) is None
    assert hidden(heads(signal=0.05, sigma=0.3, count=1)) is None


def test_a_client_of_pure_noise_does_not_hide_the_others():
    others = heads(signal=3.0, sigma=0.3)
    [_, noisy] = heads(signal=0.0, sigma=30.0, count=2)
    assert hidden([*others, noisy]) is None


def test_noise_twice_the_signal_can_still_tell_many_clients_apart():
    """The norm of the noise is 1.5, that of each client's own part 0.7."""
    assert hidden(heads(signal=0.7, sigma=0.3, count=200)) is None


def test_pure_noise_is_recognized_in_nearly_all_runs():
    """Two standard deviations: about 2 of 100 draws exceed them."""
    found = [hidden(heads(signal=0.0, sigma=1.0, seed=seed)) for seed in range(100)]
    assert sum(text is not None for text in found) >= 93

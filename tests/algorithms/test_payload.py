"""What server and clients keep and send besides weights: averaged, counted, saved and restored."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pytest
import pytorch_lightning as pl
import torch

from fedaux_pl.algorithms import (
    Algorithm,
    Answer,
    FedAdam,
    FedAvgM,
    FedClassMeans,
    FedDF,
    Scaffold,
    Update,
)
from fedaux_pl.algorithms.class_statistics import ClassTeacher
from fedaux_pl.engine import AtomicCheckpointIO
from fedaux_pl.errors import ConfigurationError, PrivacyError
from fedaux_pl.federation import LocalTraining
from fedaux_pl.federation.averaging import average_payloads
from fedaux_pl.federation.checks import FORMER_HOOKS
from fedaux_pl.federation.round_evaluation import evaluate_round
from fedaux_pl.functional.communication import state_bytes
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import Privacy, StatisticsScoring
from fedaux_pl.sites.adapt_algorithm import adapt_algorithm
from tests.algorithms.test_scaffold import FOUR, SGD
from tests.federation.test_resume import MOMENTS, fit_saving, save_within_rounds
from tests.federations import assert_same, create, fit, measured, run, weights

ONE_STEP = StatisticsScoring(dimensions=8, releases=1)

# Lightning's warning about a resumed run.
pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")


def test_bytes_and_privacy_of_the_payload(tmp_path):
    federation = run(tmp_path, Scaffold(), 2, **FOUR, **SGD)
    model = federation.students["resnet8"]
    each, control = state_bytes(model.state_dict()), state_bytes(dict(model.named_parameters()))
    first, second = federation.history
    assert (first["bytes/up"], first["bytes/down"]) == (2 * (each + control), 2 * each)
    assert second["bytes/up"] == second["bytes/down"] == 2 * (each + control)  # c, after round 1
    assert second["bytes/up_total"] == 4 * (each + control)
    assert second["bytes/down_total"] == 4 * each + 2 * control
    lines = [line for line in federation.privacy() if "keep between rounds" in line]
    assert lines
    assert lines[0].startswith("NOT private: what clients send besides their weights")
    assert not [line for line in create(FedAvgM()).privacy() if "besides" in line]


def update(client, size, **payload):
    return Update(
        client, "resnet8", size, 0.0, {}, {k: torch.tensor(v) for k, v in payload.items()}
    )


def test_a_payload_is_averaged_by_the_number_of_samples():
    updates = [update(3, 1, a=[1.0, 2.0]), update(0, 3, a=[5.0, 2.0])]
    answers = [one.answer for one in updates]
    averages = average_payloads(updates, answers, Processes())
    assert averages["a"].tolist() == [4.0, 2.0]
    other = [updates[0], update(0, 3, a=[5.0])]
    with pytest.raises(ValueError, match=r"'a' is .* of shape \(1,\) in state 2"):
        average_payloads(other, answers, Processes())
    assert isinstance(answers[0], Answer)


# --- failures and resumed runs --------------------------------------------------------------------


def assert_same_states(one, other):
    assert one.state.server_states.keys() == other.state.server_states.keys()
    for name, slots in one.state.server_states.items():
        assert slots.keys() == other.state.server_states[name].keys()
        for slot, tensors in slots.items():
            assert_same(tensors, other.state.server_states[name][slot])
    assert one.state.client_states.keys() == other.state.client_states.keys()
    for client, tensors in one.state.client_states.items():
        assert_same(tensors, other.state.client_states[client])


@pytest.mark.parametrize("method", [FedAdam, Scaffold])
def test_resumed_is_uninterrupted(tmp_path, method):
    whole, part, rest = (create(method(server_lr=0.02), **FOUR, **SGD) for _ in range(3))
    fit(tmp_path, whole, 3)
    fit_saving(tmp_path, part, 1, tmp_path / "saved")
    fit(tmp_path, rest, 3, ckpt_path=tmp_path / "saved" / "last.ckpt")
    assert_same(weights(rest), weights(whole))
    assert measured(rest) == measured(whole)
    assert whole.state.server_states["resnet8"]
    assert_same_states(rest, whole)


@pytest.mark.parametrize("moment", ["clients are trained", "students are distilled"])
def test_a_checkpoint_within_a_round_has_the_states_before_it(tmp_path, moment):
    assert moment in MOMENTS
    whole, part, rest = (create(Scaffold(), **FOUR, **SGD) for _ in range(3))
    fit(tmp_path, whole, 2)

    class Spy(pl.Callback):
        def on_train_start(self, trainer, federation):
            save_within_rounds(federation, tmp_path)

    fit(tmp_path, part, 2, callbacks=[Spy()], plugins=[AtomicCheckpointIO()])
    saved = torch.load(tmp_path / f"{moment}.ckpt", weights_only=True)["federation"]
    assert set(saved["client_states"]) == set(whole.select_clients(1))
    fit(tmp_path, rest, 2, ckpt_path=tmp_path / f"{moment}.ckpt")
    assert_same(weights(rest), weights(whole))
    assert_same_states(rest, whole)


def test_a_failed_round_leaves_the_states_unchanged(tmp_path, monkeypatch):
    after_one = run(tmp_path, Scaffold(), 1, **FOUR, **SGD)
    federation = create(Scaffold(), **FOUR, **SGD)

    def fail(server, models, evidence):  # after the clients' training and the server's step
        if models.number == 2:
            raise RuntimeError("power failure")
        return evaluate_round(server, models, evidence)

    monkeypatch.setattr("fedaux_pl.federation.federation.evaluate_round", fail)
    with pytest.raises(RuntimeError, match="power failure"):
        fit(tmp_path, federation, 2)
    assert_same(weights(federation), weights(after_one))
    assert_same_states(federation, after_one)


def test_a_second_fit_forgets_the_states(tmp_path):
    once, twice = (create(Scaffold(), **FOUR, **SGD) for _ in range(2))
    fit(tmp_path, once, 1)
    fit(tmp_path, twice, 2)
    fit(tmp_path, twice, 1)
    assert_same(weights(twice), weights(once))
    assert_same_states(twice, once)


@pytest.mark.parametrize("hook", FORMER_HOOKS)
def test_a_hook_of_version_1_is_refused(hook):
    own = type("Own", (FedDF,), {hook: lambda *_: None})
    with pytest.raises(TypeError, match=f"Own.{hook} is of version 1.0"):
        create(own())


def test_options_of_a_method_that_is_no_frozen_dataclass_are_refused():
    class Undecorated(FedDF):
        share: float = 0.5

    class WithConstructor(FedDF):
        def __init__(self, share):
            super().__init__()

    class Mixin:
        def __init__(self, share=0.5):
            self.share = share

    class WithMixin(Mixin, Algorithm):
        pass

    @dataclass
    class NotFrozen(Algorithm):
        share: float = 0.5

    for method in (Undecorated(), WithConstructor(0.5), WithMixin(share=0.3), NotFrozen()):
        with pytest.raises(TypeError, match=r"is no frozen dataclass\. .* put @dataclass\(frozen"):
            create(method)


def test_a_method_without_options_needs_no_dataclass():
    class Plain(FedDF):
        distills: ClassVar[bool] = False

    assert create(Plain()).algorithm.name == "Plain"


def test_a_release_draws_its_noise_as_the_option_privacy_says():
    """Otherwise a real site, which makes the noise secret by this option, would seed it."""

    @dataclass(frozen=True)
    class OwnPrivacy(FedClassMeans):
        @cached_property
        def release(self):
            return ClassTeacher(self.scoring.create(Privacy(epsilon=1.0)))

    with pytest.raises(TypeError, match="OwnPrivacy has a release, whose noise must be"):
        create(OwnPrivacy())
    with pytest.raises(PrivacyError, match="does not become secret by its option"):
        adapt_algorithm(OwnPrivacy(scoring=ONE_STEP), LocalTraining(), rehearsal=False)


def test_sites_refuse_a_method_whose_server_sends_more_than_models():
    class Corrected(FedDF):
        def correction(self, received, kept):
            return received

    with pytest.raises(ConfigurationError, match="a site keeps nothing between rounds"):
        adapt_algorithm(Corrected(), LocalTraining(), rehearsal=True)

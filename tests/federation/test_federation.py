"""Rounds, seeds, rollback, bytes and refused settings of a federation."""

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from fedaux_pl.algorithms import FedAUX, FedAvg, FedDF
from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.engine import isolated_rng
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.round_evaluation import evaluate_round
from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.models import create_model
from fedaux_pl.runs.run_folder import run_name
from fedaux_pl.scoring import Logistic, Mean, Whitened
from tests.federations import assert_same, create, fit, measured, run, split, weights
from tests.paper import Parts, paper_fedaux


class RoundCounter(FederationCallback):
    """Notes the counters after every round."""

    def __init__(self):
        self.steps = []

    def on_round_end(self, trainer, federation):
        self.steps.append((trainer.global_step, trainer.current_epoch, len(federation.history)))


def test_a_step_is_a_round_and_every_round_has_a_checkpoint(tmp_path):
    """Lightning does not count steps of manual optimization, and writes nothing at step 0."""
    counter = RoundCounter()
    checkpoints = ModelCheckpoint(
        tmp_path / "checkpoints", filename="{epoch}-{step}", every_n_epochs=1, save_top_k=-1
    )
    federation = create()
    trainer = fit(
        tmp_path, federation, 3, callbacks=[counter, checkpoints], enable_checkpointing=True
    )
    assert trainer.global_step == 3
    assert counter.steps == [(1, 0, 1), (2, 1, 2), (3, 2, 3)]
    files = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert files == ["epoch=0-step=1.ckpt", "epoch=1-step=2.ckpt", "epoch=2-step=3.ckpt"]
    for number, name in enumerate(files, start=1):
        saved = torch.load(tmp_path / "checkpoints" / name, weights_only=True)
        assert saved["global_step"] == number
        assert [entry["round"] for entry in saved["federation"]["history"]] == [
            *range(1, number + 1)
        ]
    for key, value in federation.students.state_dict().items():
        assert torch.equal(saved["state_dict"][f"students.{key}"], value)


def selections(monkeypatch, tmp_path, rounds=3, **options):
    """The selected clients of each round."""
    drawn = []
    original = LocalClients.train

    def train(pool, round_, ids, *sent):
        drawn.append((round_, tuple(ids)))
        return original(pool, round_, ids, *sent)

    with monkeypatch.context() as patch:
        patch.setattr(LocalClients, "train", train)
        run(tmp_path, FedAvg(), rounds, clients={"resnet8": 6}, **options)
    return drawn


def test_the_selection_is_a_function_of_seed_and_round(tmp_path, monkeypatch):
    draws = selections(monkeypatch, tmp_path, participation=0.34)
    assert [round_ for round_, _ in draws] == [1, 2, 3]
    assert all(len(ids) == 2 for _, ids in draws)
    assert len({ids for _, ids in draws}) > 1
    assert selections(monkeypatch, tmp_path, 1, participation=0.34) == draws[:1]
    assert selections(monkeypatch, tmp_path, participation=0.34, seed=1) != draws
    assert all(len(ids) == 1 for _, ids in selections(monkeypatch, tmp_path, 1, participation=0.01))


def test_the_seed_determines_the_weights(tmp_path):
    """The state of torch's global generators has no effect."""
    runs = []
    for seed, before in ((0, 1), (0, 2), (1, 1)):
        with isolated_rng(before):
            runs.append(run(tmp_path / f"{seed}-{before}", paper_fedaux(), 1, seed=seed))
    one, two, other = runs
    assert_same(weights(one), weights(two))
    assert measured(one) == measured(two)
    assert torch.equal(one.heads[0].weight, two.heads[0].weight)
    for part in (lambda run: run.students["resnet8"].conv1.weight, lambda run: run.heads[0].weight):
        assert not torch.equal(part(one), part(other))


def test_a_failed_round_leaves_the_server_unchanged(tmp_path, monkeypatch):
    """Also if it fails at its very end, when the last student gets its weights."""
    algorithm, clients = FedDF(remember=True), {"resnet8": 2, "shufflenet": 2}
    options = {"participation": 0.5}
    after_one = run(tmp_path, algorithm, 1, clients=clients, **options)
    federation = create(algorithm, clients, **options)

    class Failing(pl.Callback):
        def on_train_start(self, trainer, module):
            student = federation.students["shufflenet"]
            load = student.load_state_dict

            def fail(state):
                if len(federation.history) == 1:
                    raise RuntimeError("power failure")
                return load(state)

            monkeypatch.setattr(student, "load_state_dict", fail)

    with pytest.raises(RuntimeError, match="power failure"):
        fit(tmp_path, federation, 3, callbacks=[Failing()])
    assert_same(weights(federation), weights(after_one))
    assert measured(federation) == measured(after_one)
    ours, theirs = federation.state.teachers, after_one.state.teachers
    assert ours.keys() == theirs.keys()
    for client, teacher in ours.items():
        assert teacher.round == 1
        assert_same(teacher.logits, theirs[client].logits)


# --- bytes ---------------------------------------------------------------------------------------


def test_bytes_of_rounds_and_preparation(tmp_path):
    federation = create(paper_fedaux(), {"resnet8": 4}, participation=0.5)
    fit(tmp_path, federation, 3)
    model = create_model("resnet8", 10, in_channels=1, width=0.125)
    state = model.state_dict()
    each = state_bytes(state)
    backbone = state_bytes({k: v for k, v in state.items() if not k.startswith("head.")})
    negatives = len(federation.data.negative_inputs)
    assert negatives == 8
    up = 4 * 8 * model.feature_dim  # float64 weights of 4 scoring heads
    down = 4 * (backbone + feature_bytes(negatives, model.feature_dim))
    for number, entry in enumerate(federation.history, start=1):
        assert entry["bytes/up"] == entry["bytes/down"] == 2 * each
        assert entry["bytes/up_total"] == up + 2 * each * number
        assert entry["bytes/down_total"] == down + 2 * each * number


@pytest.mark.parametrize(("scorer", "needed"), [(Logistic(), 8), (Mean(), 0)])
def test_bytes_of_the_public_map_h0_and_needed_negatives(tmp_path, scorer, needed):
    scoring = Parts(scorer, Whitened(dimensions=5), norm_bound="unit")
    algorithm = FedAUX(scoring=scoring)
    federation = run(tmp_path, algorithm, 1)
    model = create_model("resnet8", 10, in_channels=1, width=0.125)
    backbone = state_bytes({k: v for k, v in model.state_dict().items() if "head." not in k})
    entry = federation.history[0]
    public = 8 * model.feature_dim * (1 + 5)  # a center and 5 directions, float64
    each = backbone + public + feature_bytes(needed, model.feature_dim)
    assert entry["bytes/up_total"] - entry["bytes/up"] == 3 * 8 * 5
    assert entry["bytes/down_total"] - entry["bytes/down"] == 3 * each


def test_all_auxiliary_data_can_be_distilled_where_nothing_uses_the_negatives(tmp_path):
    federation = run(tmp_path, FedAUX(), 1, split(negative_fraction=0))
    assert len(federation.data.distill_inputs) == 40
    with pytest.raises(ConfigurationError, match=r"negative_fraction: got 0; expected .* D\^-"):
        run(tmp_path, paper_fedaux(), 1, split(negative_fraction=0))


@pytest.mark.parametrize(("kind", "name"), [("shards", "shards"), ("unequal", "alpha1")])
def test_other_splits_have_their_own_cells_and_names(tmp_path, kind, name):
    federation = create(FedAvg())
    trainer = fit(tmp_path, federation, 1, split(split=kind))
    assert trainer.datamodule.settings()["split"] == kind
    assert f"-{name}-" in run_name(federation)


def test_a_fixed_h_is_sent_once(tmp_path):
    federation = run(tmp_path, FedAvg(pretrained=True), 2, trained="head")
    state = create_model("resnet8", 10, in_channels=1, width=0.125).state_dict()
    head = state_bytes({k: v for k, v in state.items() if "head." in k})
    assert [entry["bytes/up"] for entry in federation.history] == [3 * head] * 2
    assert federation.history[-1]["bytes/up_total"] == 6 * head
    assert federation.history[-1]["bytes/down_total"] == 6 * head + 3 * (state_bytes(state) - head)


# --- refused settings -----------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [paper_fedaux(), FedDF(), FedAvg(pretrained=True)])
def test_auxiliary_data_are_needed(tmp_path, algorithm):
    with pytest.raises(ConfigurationError, match=r"needs auxiliary data: set data\.auxiliary"):
        fit(tmp_path, create(algorithm), data=split(auxiliary=None))


def test_data_and_federation_have_the_same_number_of_clients(tmp_path):
    with pytest.raises(ConfigurationError, match=r"split over 4 clients, but .* 3 .*resnet8"):
        fit(tmp_path, create(), data=split(4))


def test_a_federated_data_module_is_needed(tmp_path):
    with pytest.raises(ConfigurationError, match="give the Trainer a FederatedDataModule"):
        fit(tmp_path, create(), data=pl.LightningDataModule())
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    with pytest.raises(ConfigurationError, match="give the Trainer a FederatedDataModule"):
        trainer.fit(create(), [0])


def test_rounds_without_validation_evaluate_no_teachers(tmp_path, monkeypatch):
    """The models are the same; remembered clients of such rounds are left out of the accuracy."""
    options = {"clients": {"resnet8": 6}, "participation": 0.34}
    every = run(tmp_path, FedDF(remember=True), 4, **options)
    federation, teachers = create(FedDF(remember=True), **options), []

    def evaluate(server, models, evidence):
        absent = server.memory.absent("evaluation", models.clients)
        teachers.append((models.number, set(models.clients), set(absent)))
        return evaluate_round(server, models, evidence)

    monkeypatch.setattr("fedaux_pl.federation.federation.evaluate_round", evaluate)
    fit(tmp_path, federation, 4, check_val_every_n_epoch=2)
    assert_same(weights(federation), weights(every))
    second, fourth = set(federation.select_clients(2)), set(federation.select_clients(4))
    third = set(federation.select_clients(3))
    assert second - third - fourth  # otherwise this tests nothing
    assert teachers == [(2, second, set()), (4, fourth, second - third - fourth)]
    assert ["teachers/accuracy" in entry for entry in federation.history] == 2 * [False, True]
    assert federation.history[1].keys() == every.history[1].keys()


def test_without_validation_nothing_is_evaluated(tmp_path):
    federation = create(FedDF(remember=True))
    fit(tmp_path, federation, 1, limit_val_batches=0)
    assert not [name for name in federation.history[0] if "accuracy" in name]


def test_a_resumed_run_evaluates_the_same_teachers(tmp_path):
    options = {"clients": {"resnet8": 4}, "participation": 0.5}
    whole, part, rest = (create(FedDF(remember=True), **options) for _ in range(3))
    fit(tmp_path, whole, 4, check_val_every_n_epoch=2)
    fit(tmp_path, part, 3, check_val_every_n_epoch=2).save_checkpoint(tmp_path / "three.ckpt")
    fit(tmp_path, rest, 4, ckpt_path=tmp_path / "three.ckpt", check_val_every_n_epoch=2)
    assert measured(rest) == measured(whole)
    assert_same(weights(rest), weights(whole))

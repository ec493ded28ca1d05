"""Private updates in a simulation: the steps, what they cost, what is refused and what is said."""

import copy
import dataclasses
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F

from fedaux_pl import FedAUX, FedAvg, FedBN, FedClassMeans, FedProx, Scaffold, UpdatePrivacy
from fedaux_pl.engine import SeedPurpose
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation, LocalTraining
from fedaux_pl.federation.hyperparameters import describe, rebuild
from fedaux_pl.federation.private_updates import (
    check_private_updates,
    private_steps,
    steps_of_clients,
)
from fedaux_pl.functional import (
    SampledGaussian,
    derive_seed,
    gaussian_sigma,
    sampled_gaussian_epsilon,
)
from fedaux_pl.functional.seeds import isolated_rng
from fedaux_pl.scoring import Privacy
from fedaux_pl.scoring.guarantee import NOT_PRIVATE, SIMULATED
from tests.federations import assert_same, create, fit, split, weights

PRIVACY = UpdatePrivacy(epsilon=4.0, delta=1e-5, clip_norm=0.5)
LOCAL = LocalTraining(batch_size=8, batchnorm="frozen", privacy=PRIVACY)


def local(**options):
    return dataclasses.replace(LOCAL, **options)


def run(tmp_path, algorithm=None, rounds=2, **options):
    federation = create(algorithm, **({"local": LOCAL} | options))
    fit(tmp_path, federation, rounds)
    return federation


def test_a_round_is_a_loop_over_single_records(tmp_path):
    """One client and one round of SGD, with gradients of one record at a time."""
    sgd = local(optimizer="sgd", lr=0.1, epochs=2)
    federation = create(clients={"resnet8": 1}, local=sgd)
    data = split(1)
    data.setup()
    start = {}
    prepare = federation.prepare

    def remember(preparation):
        prepare(preparation)
        start["model"] = copy.deepcopy(federation.students["resnet8"])

    federation.prepare = remember
    fit(tmp_path, federation, 1, data)
    model = start["model"].eval()  # BatchNorm is frozen
    size = data.client_sizes[0]
    steps = private_steps(sgd, size, rounds=1, released=0.0)
    batches = data.private_batches(0, 8 / size, -(-size // 8), seed=1)
    parameters = list(model.parameters())
    with isolated_rng(derive_seed(0, SeedPurpose.CLIENT_TRAINING, 1, 0)):
        for epoch in range(2):
            batches.set_epoch(epoch)
            for images, labels in batches:
                total = torch.zeros(sum(p.numel() for p in parameters))
                for image, label in zip(images, labels, strict=True):
                    loss = F.cross_entropy(model(image[None]), label[None])
                    rows = torch.autograd.grad(loss, parameters)
                    row = torch.cat([gradient.flatten() for gradient in rows])
                    total += row * min(1.0, 0.5 / row.norm().item())
                noisy = total + steps.multiplier * 0.5 * torch.randn_like(total)
                change = torch.split(0.1 * noisy / 8, [p.numel() for p in parameters])
                with torch.no_grad():
                    for parameter, values in zip(parameters, change, strict=True):
                        parameter -= values.view_as(parameter)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(
            federation.students["resnet8"].state_dict()[key], value, rtol=1e-3, atol=1e-4
        )


def test_all_rounds_and_releases_are_within_the_budget():
    """Whether a client takes part or not, and whatever its size."""
    for size in (5, 8, 9, 100):
        mu = 1 / gaussian_sigma(1.0, 1e-5, 1.0)
        once = private_steps(local(epochs=2), size, rounds=7, released=mu)
        assert once.rate == min(1.0, 8 / size)
        assert once.steps == 2 * -(-size // 8)
        run_ = dataclasses.replace(once, steps=7 * once.steps)
        epsilon = sampled_gaussian_epsilon(1e-5, [run_, SampledGaussian.of_release(mu)])
        assert 3.9 < epsilon <= 4


def test_releases_leave_less_for_the_updates(tmp_path):
    multipliers = []
    for epsilon in (0.1, 2.0):
        federation = create(FedAUX(privacy=Privacy(epsilon)), local=LOCAL)
        fit(tmp_path, federation, 1)
        multipliers.append(steps_of_clients(federation)[0].multiplier)
    assert multipliers[0] < multipliers[1]
    spent = create(FedAUX(privacy=Privacy(5.0)), local=LOCAL)
    with pytest.raises(ConfigurationError, match=r"cost epsilon 5 .* raise local.privacy.epsilon"):
        fit(tmp_path, spent, 1)


def test_the_notes_say_what_the_run_costs(tmp_path, capsys):
    federation = run(tmp_path, FedAUX(privacy=Privacy(1.0)))
    lines = federation.privacy()
    assert lines[1].startswith(
        "simulated: with secret draws, all that leaves a client, its releases and its updates in 2 "
        "rounds, would be (epsilon 4, delta 1e-05)-private by DP-SGD: gradients of single records "
        "clipped to norm 0.5, noise of "
    )
    assert "protect nothing" in lines[1]
    assert lines[2].startswith("NOT private: the training losses")
    assert len(lines) == 3
    printed = capsys.readouterr().out
    assert "in all: its releases and its updates in 2 rounds, by" in printed
    assert "with secret draws (4, 1e-05)" in printed
    assert "every round: its training loss (not at real sites)" in printed
    assert [row.guarantee for row in federation.guarantees()] == [SIMULATED, SIMULATED, NOT_PRIVATE]
    plain = run(tmp_path, FedAvg(), rounds=1).privacy()
    assert "a client, its updates in 1 round," in plain[0]
    assert "updates and training losses" not in "".join(plain)


class StopEarly(pl.Callback):
    """Ends a run after its first round."""

    def on_train_epoch_end(self, trainer, federation):
        trainer.should_stop = True


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    whole = run(tmp_path / "whole", FedProx(mu=0.1), rounds=2)
    half = create(FedProx(mu=0.1), local=LOCAL)
    trainer = fit(tmp_path / "half", half, 2, callbacks=[StopEarly()])
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    assert len(half.history) == 1
    resumed = create(FedProx(mu=0.1), local=LOCAL)
    fit(tmp_path / "half", resumed, 2, ckpt_path=tmp_path / "half.ckpt")
    assert_same(weights(whole), weights(resumed))
    longer = create(FedProx(mu=0.1), local=LOCAL)
    with pytest.raises(ConfigurationError, match="rounds"):
        fit(tmp_path / "half", longer, 3, ckpt_path=tmp_path / "half.ckpt")
    loaded = Federation.load_from_checkpoint(tmp_path / "half.ckpt")
    assert loaded.local == LOCAL


def test_settings_survive_a_checkpoint():
    assert rebuild(describe(LOCAL)) == LOCAL
    assert LOCAL.plain()["privacy"] == {"epsilon": 4.0, "delta": 1e-5, "clip_norm": 0.5}
    assert "privacy" not in LocalTraining().plain()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local": local(batchnorm="batch")}, "set local.batchnorm to frozen, or model_options"),
        ({"algorithm": FedBN()}, "FedBN send or keep more than updates: .* model.algorithm"),
        ({"algorithm": FedClassMeans()}, "FedClassMeans send no updates: leave out local.privacy"),
        (
            {"algorithm": Scaffold(), "local": local(optimizer="sgd", lr=0.1)},
            "Scaffold send or keep more than updates",
        ),
        ({"algorithm": FedAUX(privacy=Privacy(None))}, "algorithm.privacy.epsilon is null"),
        ({"algorithm": FedAUX(norm_bound="private", shrink=False)}, "releases have no guarantee"),
        ({"algorithm": FedAUX(privacy=Privacy(secret=True))}, "algorithm.privacy.secret to false"),
    ],
)
def test_what_is_not_covered_is_refused(tmp_path, options, message):
    federation = create(**({"local": LOCAL} | options))
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, federation, 1)


def test_the_number_of_rounds_and_the_precision_matter(tmp_path):
    with pytest.raises(ConfigurationError, match=r"trainer.max_epochs is -1: set it"):
        fit(tmp_path, create(local=LOCAL), -1, max_time={"seconds": 1})
    federation = create(local=LOCAL)
    federation.trainer = SimpleNamespace(precision="16-mixed", max_epochs=1)  # needs a GPU
    with pytest.raises(ConfigurationError, match=r"trainer.precision 16-mixed"):
        check_private_updates(federation)


def test_group_norm_and_linear_evaluation_need_no_frozen_batchnorm(tmp_path):
    plain = local(batchnorm="batch")
    run(tmp_path, rounds=1, local=plain, model_options={"width": 0.125, "norm": "group"})
    run(tmp_path, rounds=1, local=plain, trained="head")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_norm": 1.0}, "local.clip_norm: got 1.0; expected to be null with local.privacy"),
        ({"class_weights": "balanced"}, "local.class_weights: .* be none with local.privacy"),
        ({"fine_tuning": 1}, "local.fine_tuning: got 1; expected to be 0 with local.privacy"),
        ({"augmentation": "randaugment"}, "local.augmentation: .* be flip or crop_flip"),
        ({"privacy": {"epsilon": 1.0}}, "local.privacy: got .* be an UpdatePrivacy object"),
    ],
)
def test_options_that_mix_records_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        local(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, r"privacy.epsilon: got 0.0; expected to lie in \(0, 512\]"),
        ({"epsilon": 1000.0}, r"privacy.epsilon: got 1000.0; expected to lie in \(0, 512\]"),
        ({"epsilon": 1.0, "clip_norm": 0.0}, "privacy.clip_norm: got 0.0"),
        ({"epsilon": 1.0, "delta": 1e-12}, r"privacy.delta: got 1e-12; expected to lie in \[1e-10"),
    ],
)
def test_values_without_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        UpdatePrivacy(**options)

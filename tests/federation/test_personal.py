"""Clients are evaluated, and predict, with BatchNorm statistics of their own training data."""

import copy
from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch
from torch.optim.swa_utils import update_bn

from fedaux_pl.algorithms import FedAvg, FedBN, FedDF
from fedaux_pl.cli import verbs
from fedaux_pl.engine.inference import estimate_statistics, statistics_batch_size
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation, LocalTraining
from tests.command_line import command
from tests.federation.test_given_clients import NamedWards, Wards
from tests.federations import (
    FewDigits,
    assert_close,
    assert_same,
    create,
    fit,
    measured,
    network,
    split,
    weights,
)

OWN = {"batchnorm_statistics": "own"}
FINE_TUNED = {"local": LocalTraining(batch_size=16, fine_tuning=1)}


def of_clients(metrics):
    return {name: value for name, value in metrics.items() if "client_" in name}


def without_clients(metrics):
    """What does not depend on clients, nor on the time."""
    parts = ("client_", "mean_client/", "worst_client/", "seconds/")
    return {name: value for name, value in metrics.items() if not name.startswith(parts)}


def run(root, algorithm=None, rounds=1, **options):
    federation = create(algorithm or FedAvg(), **options)
    data = split(3, private=NamedWards())
    return federation, data, fit(root, federation, rounds, data)


def statistics(model):
    return {name: value for name, value in model.state_dict().items() if "running_" in name}


# --- the estimate ------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(40,), (16, 16, 8), (13, 27)])
def test_the_statistics_are_those_of_update_bn(sizes):
    model = network()
    expected = network()
    batches = [(x,) for x in FewDigits().train().inputs[: sum(sizes)].split(sizes)]
    update_bn(batches, expected)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    momenta = [m.momentum for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    estimate_statistics(model.eval(), batches)
    assert_close(statistics(model), statistics(expected))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == ("running_" not in name)
    assert not any(module.training for module in model.modules())
    layers = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert [layer.momentum for layer in layers] == momenta


def test_other_layers_are_in_evaluation_mode():
    dropout = torch.nn.Dropout(0.9)
    model = torch.nn.Sequential(dropout, torch.nn.BatchNorm1d(3, momentum=0.2))
    x = torch.randn(50, 3)
    estimate_statistics(model, [(x,)])
    torch.testing.assert_close(model[1].running_mean, x.mean(dim=0))
    torch.testing.assert_close(model[1].running_var, x.var(dim=0))
    assert dropout.training
    assert model[1].momentum == 0.2


@pytest.mark.parametrize(
    ("count", "size"), [(2, 2), (1024, 1024), (1025, 513), (3000, 1000), (4097, 820)]
)
def test_batches_are_nearly_equal(count, size):
    assert statistics_batch_size(torch.empty(1, 3, 32, 32), count) == size


def test_large_images_have_smaller_batches():
    assert statistics_batch_size(torch.empty(1, 3, 64, 64), 1000) == 250


# --- in a federation ---------------------------------------------------------------------------


def expected_accuracies(data, models):
    """The accuracy of each client by a loop: its model, update_bn on its data, its test data."""
    test = data.test_examples
    accuracies = {}
    for name in ("north", "west"):
        client = data.client_names.index(name)
        model = copy.deepcopy(models[client])
        update_bn([data.client(client).inputs], model)
        rows = test.clients == client
        with torch.no_grad():
            predicted = model.eval()(test.inputs[rows]).argmax(dim=1)
        accuracies[f"client_accuracy/{name}"] = float(
            (predicted == test.targets[rows]).float().mean()
        )
    return accuracies


def test_a_client_is_measured_by_statistics_of_its_training_data(tmp_path):
    plain, _, _ = run(tmp_path / "plain", FedDF(), rounds=2)
    own, data, _ = run(tmp_path / "own", FedDF(), rounds=2, **OWN)
    assert_same(weights(own), weights(plain))  # nothing else uses them, teachers neither
    for one, other in zip(own.history, plain.history, strict=True):
        assert without_clients(one) == without_clients(other)
    assert of_clients(own.metrics) != of_clients(plain.metrics)
    assert own.metrics.items() >= expected_accuracies(data, [own.students["resnet8"]] * 3).items()
    line = "NOT private: the metrics by client, which depend on the training data of each"
    assert line in own.privacy()
    assert line not in plain.privacy()


@pytest.mark.parametrize(
    ("algorithm", "options"), [(FedBN, {}), (FedBN, FINE_TUNED), (FedAvg, FINE_TUNED)]
)
def test_it_combines_with_fedbn_and_fine_tuning(tmp_path, algorithm, options):
    plain, _, _ = run(tmp_path / "plain", algorithm(), **options)
    own, data, _ = run(tmp_path / "own", algorithm(), **options, **OWN)
    assert_same(weights(own), weights(plain))
    models = [plain.client_model(name) for name in data.client_names]
    assert own.metrics.items() >= expected_accuracies(data, models).items()
    update_bn([data.client(2).inputs], models[2])
    assert_close(statistics(own.client_model("west")), statistics(models[2]))


def test_the_order_of_samples_is_not_that_of_the_data(tmp_path, monkeypatch):
    """A batch of one class would have a smaller variance than the data."""
    federation, data, _ = run(tmp_path, **OWN)
    monkeypatch.setattr("fedaux_pl.engine.inference.fit_batch_size", lambda size, _: 8)
    order = data.client_batches(0, 8).positions(0)
    assert [len(batch) for batch in order] == [8, 8, 8, 8]
    assert torch.cat(order).sort().values.tolist() == data.client_indices[0].tolist()
    assert torch.cat(order).tolist() != data.client_indices[0].tolist()
    expected = copy.deepcopy(federation.students["resnet8"])
    model = federation.client_model("north")
    update_bn([(data.training_examples.inputs[batch],) for batch in order], expected)
    assert_close(statistics(model), statistics(expected))


def test_data_in_host_memory_give_the_same(tmp_path):
    models = []
    for memory in ("device", "host"):
        federation = create(**OWN)
        data = split(3, private=NamedWards(), memory=memory)
        fit(tmp_path / memory, federation, 1, data)
        models.append(federation.client_model("south").state_dict())
    assert_same(*models)


class OneSample(NamedWards):
    """The last client has a single sample, of which BatchNorm has no variance."""

    def train(self):
        examples = super().train()
        rows = torch.cat([(examples.clients < 2).nonzero(), (examples.clients == 2).nonzero()[:1]])
        return examples.take(rows.flatten())


def test_a_client_of_one_sample_keeps_the_servers_statistics(tmp_path):
    federation = create(FedAvg(pretrained=True), trained="head", **OWN)
    fit(tmp_path, federation, 1, split(3, private=OneSample()))
    assert_same(
        federation.client_model("west").state_dict(), federation.students["resnet8"].state_dict()
    )


class Strangers(FewDigits):
    """Test data that name clients, although the training data name none."""

    def test(self):
        examples = super().test()
        owners = torch.arange(len(examples)) % 3
        return replace(examples, clients=owners, client_names=("a", "b", "c"))


@pytest.mark.parametrize("source", [FewDigits, Wards, Strangers])
def test_data_without_clients_are_refused(tmp_path, source):
    with pytest.raises(ConfigurationError, match=r"'own' .* name the clients that train: use data"):
        fit(tmp_path, create(**OWN), 1, split(3, private=source()))


def test_held_out_data_name_clients_too(tmp_path):
    federation = create(**OWN)
    fit(tmp_path, federation, 1, split(3, private=Wards(), validation_fraction=0.25))
    assert "val/client_accuracy/south" in federation.metrics


def test_a_network_without_batchnorm_is_noted(tmp_path, capsys):
    options = {"model_options": {"width": 0.125, "norm": "group"}}
    own, data, _ = run(tmp_path / "own", **options, **OWN)
    note = "note: no network has BatchNorm: 'own' statistics have no effect\n"
    assert capsys.readouterr().out.count(note) == 1
    plain, _, _ = run(tmp_path / "plain", **options)
    assert measured(own) == measured(plain)
    with pytest.raises(ConfigurationError, match="north has no model of its own in this run"):
        own.client_model("north")
    assert data.client_names == ["north", "south", "west"]


@pytest.mark.cuda
def test_statistics_on_the_gpu_are_those_of_update_bn(tmp_path):
    """The fused layers of the GPU, with one batch and with several."""
    federation = create(**OWN)
    data = split(3, private=NamedWards())
    fit(tmp_path, federation, 2, data, accelerator="gpu")
    expected = copy.deepcopy(federation.students["resnet8"])
    update_bn([(data.client(0).inputs.cpu(),)], expected)
    tolerance = {"rtol": 0.01, "atol": 0.01}
    model = federation.client_model("north").cpu()
    assert_close(statistics(model), statistics(expected), **tolerance)
    trained = federation.server.models["resnet8"]
    trained.load_state_dict(federation.students["resnet8"].state_dict())
    estimate_statistics(trained, data.client_batches(0, 8))
    update_bn([(x.cpu(),) for x, _ in data.client_batches(0, 8)], expected)
    actual = {name: value.cpu() for name, value in statistics(trained).items()}
    assert_close(actual, statistics(expected), **tolerance)


# --- the model of a client ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [(FedAvg, OWN), (FedBN, {}), (FedAvg, FINE_TUNED), (FedBN, FINE_TUNED | OWN)],
)
def test_the_model_of_a_client_is_the_one_that_is_measured(tmp_path, algorithm, options):
    federation, data, trainer = run(tmp_path, algorithm(), **options)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    test = data.test_examples
    for name in ("north", "west"):
        model = federation.client_model(name)
        assert not model.training
        rows = test.clients == data.client_names.index(name)
        with torch.no_grad():
            predicted = model(test.inputs[rows]).argmax(dim=1)
        accuracy = float((predicted == test.targets[rows]).float().mean())
        assert accuracy == pytest.approx(federation.metrics[f"client_accuracy/{name}"])
        loaded = Federation.load_from_checkpoint(tmp_path / "last.ckpt")
        again = loaded.client_model(name, split(3, private=NamedWards()))
        assert_same(again.state_dict(), model.state_dict())
    other = federation.client_model("south")
    assert not torch.equal(other.bn1.running_mean, model.bn1.running_mean)


def test_wrong_questions_for_a_model_say_what_to_do(tmp_path):
    with pytest.raises(ConfigurationError, match="no finished round: fit it"):
        create(**OWN).client_model("north")
    federation, _, trainer = run(tmp_path)
    expected = r"got 'nort' \(did you mean north\?\); expected one of north, south, west"
    with pytest.raises(ConfigurationError, match=expected):
        federation.client_model("nort")
    with pytest.raises(ConfigurationError, match="set batchnorm_statistics to 'own'"):
        federation.client_model("north")
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = Federation.load_from_checkpoint(tmp_path / "last.ckpt", batchnorm_statistics="own")
    with pytest.raises(ConfigurationError, match="needs data that are split over clients"):
        loaded.client_model("north")
    loaded.client_model("north", split(3, private=NamedWards()))


def test_a_client_that_has_never_taken_part_has_kept_nothing(tmp_path):
    federation, data, _ = run(tmp_path, FedBN(), participation=0.3)
    [selected] = federation.select_clients(1)
    federation.client_model(data.client_names[selected])
    with pytest.raises(ConfigurationError, match="only the server's: it has taken part in no roun"):
        federation.client_model(data.client_names[selected - 1])


# --- a checkpoint, measured both ways ----------------------------------------------------------


@pytest.mark.usefixtures("without_figures")
def test_a_run_is_tested_both_ways_but_resumed_one_way(tmp_path):
    options = [f"--data.private={NamedWards.__module__}.NamedWards", "--trainer.max_epochs=1"]
    options += ["--model.algorithm=FedAvg", "--model.clients={resnet8: 3}"]
    options += ["--model.model_options={width: 0.125}"]
    _, *args = command("fit", tmp_path, *options)
    fitted = verbs.fit(args).model
    own = ["--model.batchnorm_statistics=own", "--ckpt_path=last"]
    root = f"--trainer.default_root_dir={tmp_path}"
    tested = verbs.test([root, *own])
    metrics = {name: float(value) for name, value in tested.trainer.callback_metrics.items()}
    assert metrics["accuracy"] == pytest.approx(fitted.metrics["accuracy"])
    expected = expected_accuracies(tested.datamodule, [fitted.students["resnet8"]] * 3)
    assert metrics.items() >= expected.items()
    assert not fitted.metrics.items() >= expected.items()
    validated = verbs.validate([root, *own]).trainer.callback_metrics
    assert float(validated["mean_client/accuracy"]) == metrics["mean_client/accuracy"]
    with pytest.raises(ConfigurationError, match=r"batchnorm_statistics = 'running', .* for 'own'"):
        verbs.fit([root, *own, "--trainer.max_epochs=2"])
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    loaded = Federation.load_from_checkpoint(tested.checkpoint, batchnorm_statistics="own")
    [again] = trainer.test(loaded, datamodule=tested.datamodule, verbose=False)
    assert again["mean_client/accuracy"] == metrics["mean_client/accuracy"]

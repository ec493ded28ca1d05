"""Sites evaluate the server's models on test data of their own, if both sides want it."""

import csv
import math
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping

from fedaux_pl.algorithms import FedAvg, FedClassMeans
from fedaux_pl.data import Digits, Examples, FederatedDataModule
from fedaux_pl.data.fingerprints import KEY_FILE, key_id, machine_key
from fedaux_pl.engine import predict_logits
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import gaussian_epsilon, gaussian_sigma
from fedaux_pl.models import ResNet8
from fedaux_pl.sites import Limits
from fedaux_pl.sites.handlers.evaluate_with_noise import EvaluateWithNoise
from fedaux_pl.sites.handlers.refuse import Refuse
from fedaux_pl.sites.ledger import Ledger
from fedaux_pl.sites.messages.evaluate import read_answer
from fedaux_pl.sites.site_status import describe_status
from fedaux_pl.sites.wire import Message, RefusalError, read_basis
from tests.federations import assert_same, create, weights
from tests.federations import fit as fit_locally
from tests.sites.loopback import Given, fit, limit, prepare, quiet_trainer
from tests.sites.test_same_results import STATISTICS

OPEN = Limits(rehearsal=True, evaluate=True)
NAMES = tuple(f"site-{i}" for i in range(3))


def digits():
    """Clients with 10 to 30 test samples of their own."""
    train, test = Digits().train().take(slice(64)), Digits().test().take(slice(60))
    owners = torch.tensor([0] * 10 + [1] * 20 + [2] * 30)
    test = Examples(test.inputs, test.targets, test.classes, owners, NAMES)
    return FederatedDataModule(Given(train, test), num_clients=3, alpha=1.0)


def plain(**options):
    return create(FedAvg(), {"resnet8": 3}, **options)


def start(root, federation_of=plain, limits=OPEN, **options):
    root.mkdir(exist_ok=True)
    options = {"evaluate": True} | options
    return prepare(root, federation_of, digits(), limits, own_tests=True, **options)


def asked(hub, name):
    """All evaluations that a site is asked for."""
    seen = []

    def note(answer, request):
        seen.extend([request] if request.fields["kind"] == "evaluate" else [])
        return answer(request)

    hub.faults[name] = note
    return seen


def of_clients(federation):
    parts = ("mean_client/", "worst_client/", "client_accuracy/", "client_f1/", "client_auroc/")
    return [{k: v for k, v in e.items() if k.startswith(parts)} for e in federation.history]


def test_the_metrics_are_those_of_a_simulation_under_the_names_of_the_sites(tmp_path, capsys):
    def mixed():
        return create(FedAvg(), {"resnet8": 2, "shufflenet": 1}, metrics=["f1", "auroc"])

    federation, data, hub = start(tmp_path, mixed)
    trainer = fit(tmp_path, federation, data, rounds=1)
    local = mixed()
    fit_locally(tmp_path / "local", local, rounds=1, data=digits())
    assert_same(weights(federation), weights(local))
    for over_sites, simulated in zip(of_clients(federation), of_clients(local), strict=True):
        assert over_sites.keys() == simulated.keys() >= {"client_f1/site-2", "mean_client/auroc"}
        assert over_sites == pytest.approx(simulated, abs=1e-6)
    assert not any("_client/" in name for name in trainer.callback_metrics)  # would become stale
    with (tmp_path / "server" / "clients.csv").open() as file:
        assert [row["client"] for row in csv.DictReader(file)] == [*NAMES, "(mean)", "(worst)"]
    last = hub.sent[-1]
    assert (last.body, last.fields.keys()) == (b"", {"request", "count", "metrics"})
    told = capsys.readouterr().out
    assert "metrics on 30 test samples of its own: NOT private, no epsilon covers them" in told
    assert "accuracy by client: mean" in told
    assert "NOT private: what sites tell about the models" in federation.privacy()[-1]
    shown = describe_status(tmp_path / "server")
    assert "evaluates on 20 samples, NOT covered by epsilon" in shown


def test_both_sides_must_want_it(tmp_path, capsys):
    federation, data, hub = start(tmp_path, evaluate=False)
    seen = asked(hub, "site-0")
    fit(tmp_path, federation, data, rounds=1)
    assert not seen
    assert not any("mean_client" in key for key in federation.history[0])
    federation, data, hub = start(tmp_path)
    hub.sites["site-1"].handlers["evaluate"] = Refuse("limits", "see --evaluate")
    seen = asked(hub, "site-1")
    capsys.readouterr()
    fit(tmp_path, federation, data, rounds=3)
    assert len(seen) == 1  # it has said no
    assert capsys.readouterr().out.count("no metrics of site-1 from round 1 on") == 1
    for entry in federation.history:
        both = [entry["client_accuracy/site-0"], entry["client_accuracy/site-2"]]
        assert entry["mean_client/accuracy"] == sum(both) / 2
        assert "client_accuracy/site-1" not in entry
        assert entry["answered/site-1"] == 1.0  # it trains
    shown = describe_status(tmp_path / "server").splitlines()
    assert shown[2].endswith("last round 3; evaluates nothing (code limits)")


FALSE = [
    *({"metrics": {"accuracy": value}} for value in (1.5, -0.1, math.nan, True, None, "1")),
    *({"metrics": {"accuracy": 0.5, "f1": value}} for value in (math.inf, 10**400, [0.5])),
    *({"metrics": value} for value in (None, 0.5, [])),
    *({"count": value} for value in (0, -1, 0.5, None)),
    *({"epsilon": value} for value in (0, math.nan, "1")),
]


TRUE = {"count": 20, "metrics": {"accuracy": 0.5, "f1": 0.25, "other": math.nan}}


def test_false_numbers_are_left_out(tmp_path, capsys):
    assert read_answer(Message(TRUE), ["f1", "auroc"]) == {"accuracy": 0.5, "f1": 0.25}
    assert read_basis(Message(TRUE)) == (20, None)
    assert read_basis(Message(TRUE | {"epsilon": 0.1})) == (20, 0.1)
    for false in FALSE:
        read = partial(read_answer, chosen=["f1"]) if "metrics" in false else read_basis
        with pytest.raises(RefusalError):
            read(Message(TRUE | false))
    federation, data, hub = start(tmp_path)

    def fault(answer, request):
        is_asked = request.fields["kind"] == "evaluate" and request.fields["round"] < 3
        return Message(answer(request).fields | FALSE[0]) if is_asked else answer(request)

    hub.faults["site-1"] = fault
    fit(tmp_path, federation, data, rounds=3)
    found = ["client_accuracy/site-1" in entry for entry in federation.history]
    assert found == [False, False, True]
    assert all("client_accuracy/site-0" in entry for entry in federation.history)
    assert capsys.readouterr().out.count("no metrics of site-1") == 1


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return lambda: Ledger(key_id(machine_key())).entries()


def test_noise_is_charged_to_the_ledger_until_the_budget_is_spent(
    tmp_path, ledger, capsys, monkeypatch
):
    limits = Limits(epsilon_limit=0.7, evaluate=True, evaluate_epsilon=0.5)
    federation, data, hub = start(
        tmp_path, lambda: plain(metrics=["f1"]), limits, rehearsal=False, min_answers=3
    )
    seen = asked(hub, "site-1")
    fit(tmp_path, federation, data, rounds=3)
    entries = ledger()
    assert len(entries) == 3  # a second evaluation would cost more than 0.7
    assert len(seen) == 2
    assert gaussian_epsilon(1e-5, gaussian_sigma(0.5, 1e-5, 1.0) / math.sqrt(2)) > 0.7
    for entry, count in zip(entries, (10, 20, 30), strict=True):
        record = entry.releases[0]
        assert (record.sensitivity, record.epsilon, record.is_private) == (1.0, 0.5, True)
        assert record.sigma == gaussian_sigma(0.5, 1e-5, 1.0)
        assert len(entry.digests[0]) == 2 * count
        told = federation.history[0][f"client_accuracy/{NAMES[count // 10 - 1]}"]
        assert told == min(max(float(entry.heads["right"]) / count, 0.0), 1.0)
    assert not any("f1/site" in key or "_client/f1" in key for key in federation.history[0])
    told = capsys.readouterr().out
    assert told.count("no metrics of site-1 from round 2 on") == 1
    assert "above the epsilon_limit 0.7" in told
    assert "last round 3; evaluates nothing (code budget)\n" in describe_status(tmp_path / "server")
    # the same models again: the stored number, at no cost
    one, two = (hub.sites["site-1"].answer(seen[0]).fields["metrics"] for _ in range(2))
    assert one == two == {"accuracy": federation.history[0]["client_accuracy/site-1"]}
    assert len(ledger()) == 3
    # nothing is computed for it, nor for an evaluation above the budget
    with monkeypatch.context() as patch:
        patch.setattr("fedaux_pl.sites.received_models.predict_private_logits", None)
        assert hub.sites["site-1"].answer(seen[0]).fields["metrics"] == one
        assert hub.sites["site-1"].answer(seen[1]).fields["code"] == "budget"
    # and the smallest change of the models is another release
    limit(hub.sites["site-1"], **(vars(limits) | {"epsilon_limit": 0.8}))
    assert "code" not in hub.sites["site-1"].answer(seen[1]).fields
    assert len(ledger()) == 4


def test_the_noise_of_a_rehearsal_is_simulated_and_not_in_the_ledger(tmp_path, ledger, capsys):
    runs = []
    for name in ("one", "two"):
        limits = replace(OPEN, evaluate_epsilon=0.5, epsilon_limit=1.0)
        federation, data, hub = start(tmp_path / name, limits=limits)
        fit(tmp_path / name, federation, data, rounds=1)
        runs.append(of_clients(federation))
        told = [message.fields for message in hub.sent if "count" in message.fields]
        assert all(fields["epsilon"] is None for fields in told)
        accuracies = [fields["metrics"]["accuracy"] * fields["count"] for fields in told]
        assert any(number % 1 for number in accuracies)  # with noise
    assert runs[0] == runs[1]
    assert not ledger()
    assert "NOT private (a rehearsal)" in capsys.readouterr().out


class Reversed(ResNet8):
    """A network whose ``forward`` is not g(h(x))."""

    def forward(self, x):
        return -super().forward(x)


def test_answers_with_noise_are_of_the_forward_of_the_network(tmp_path):
    limits = replace(OPEN, evaluate_epsilon=0.5, epsilon_limit=1.0)
    clients = {f"{__name__}.Reversed": 3}
    federation, data, hub = start(tmp_path, lambda: create(FedAvg(), clients), limits)
    fit(tmp_path, federation, data, rounds=1)
    evaluate = hub.sites["site-1"].handlers["evaluate"]
    [[name, student]] = federation.students.items()
    expected = predict_logits(student, evaluate.examples.inputs)
    torch.testing.assert_close(evaluate.predict({name: student.state_dict()}), expected)


def test_a_method_without_models_of_clients_is_evaluated_too(tmp_path, ledger):
    def means():
        return create(FedClassMeans(**STATISTICS), {"resnet8": 3})

    train = digits()
    train = FederatedDataModule(
        train.private, Given(auxiliary=Digits().auxiliary()[:40]), num_clients=3, alpha=1.0
    )
    limits = Limits(evaluate=True, evaluate_epsilon=0.3)
    federation, data, _ = prepare(
        tmp_path, means, train, limits, own_tests=True, evaluate=True, rehearsal=False
    )
    fit(tmp_path, federation, data, rounds=1)
    assert len(ledger()) == 6  # test records have a budget of their own
    assert "and what the lines below say" in federation.privacy()[-2]
    assert federation.history[0].keys() >= {f"client_accuracy/{name}" for name in NAMES}
    assert "evaluates on 20 samples, epsilon 0.3 each time" in describe_status(tmp_path / "server")


def test_other_models_with_equal_weights_are_another_release(tmp_path, ledger, monkeypatch):
    limits = Limits(epsilon_limit=9.0, evaluate=True, evaluate_epsilon=0.5)
    monkeypatch.setattr(EvaluateWithNoise, "count_right", lambda *_: torch.tensor([5]))
    models = ({"resnet8": 3}, {}), ({"resnet8": 3}, {"norm": "group"}), ({"shufflenet": 3}, {})
    for count, (clients, options) in enumerate(models, start=1):
        _, _, hub = start(
            tmp_path, lambda c=clients, o=options: create(FedAvg(), c, model_options=o), limits
        )
        evaluate = hub.sites["site-0"].handlers["evaluate"]
        one, two = (evaluate.release({}, 1)[0] for _ in range(2))
        assert one == two
        assert len(ledger()) == count
    # with another key on disk, an entry still names the key of its digests
    key, state = machine_key(), tmp_path / "state" / "fedaux_pl"
    shutil.rmtree(state / "ledger")
    monkeypatch.setattr("fedaux_pl.sites.ledger._SEEN", {})  # this process had entries there
    (state / KEY_FILE).write_bytes(bytes(len(key)))
    evaluate.release({}, 1)
    assert len(Ledger(key_id(key)).entries()) == 1


def test_weights_are_on_the_device_before_a_prediction(tmp_path, monkeypatch):
    federation, data, hub = start(tmp_path)
    seen = asked(hub, "site-0")
    fit(tmp_path, federation, data, rounds=1)
    site, given = hub.sites["site-0"], []

    def predict(model, state, inputs):
        given.extend(tensor.device.type for tensor in state.values())
        return torch.zeros(len(inputs), len(data.classes))

    runner = site.federation.server.run.runner
    monkeypatch.setattr(runner, "predict", predict)
    monkeypatch.setattr(type(runner), "device", torch.device("meta"))
    assert "code" not in site.answer(seen[0]).fields
    assert {*given} == {"meta"}


@pytest.mark.parametrize("monitor", ["mean_client/accuracy", "val/worst_client/accuracy"])
@pytest.mark.parametrize("has_validation", [False, True])
def test_callbacks_cannot_monitor_what_sites_may_stop_to_send(tmp_path, monitor, has_validation):
    federation, data, _ = start(tmp_path)
    if has_validation:
        data.private.validation = data.private.test
    trainer = quiet_trainer(tmp_path / "server", 1)
    trainer.callbacks.append(EarlyStopping(monitor, mode="max"))
    with pytest.raises(
        ConfigurationError, match=f"monitors {monitor}, but sites send .*: monitor acc"
    ):
        trainer.fit(federation, datamodule=data)
    assert not federation.history


def test_what_cannot_be_evaluated_is_refused_at_the_start(tmp_path):
    with pytest.raises(ValueError, match="add --evaluate true"):
        Limits(evaluate_epsilon=0.1)
    for value in (math.inf, 1e-7, True, 0.0):
        with pytest.raises(ValueError, match=f"evaluate_epsilon.* (got|is|they are) {value}"):
            Limits(evaluate=True, evaluate_epsilon=value)
    limits = Limits(evaluate=True, evaluate_epsilon=0.1)
    with pytest.raises(ConfigurationError, match=r"may cost epsilon 0 .* state more with"):
        start(tmp_path, limits=limits)
    for own in ({"epsilon_limit": 0.09}, {"epsilon_limit": 1.0, "epsilon_limit_alone": 0.09}):
        with pytest.raises(ConfigurationError, match=r"is 0\.1, but .* may cost epsilon 0\.09 "):
            start(tmp_path, limits=replace(limits, **own))
    start(tmp_path, limits=replace(limits, epsilon_limit=0.1))
    federation, data, _ = prepare(tmp_path, plain, digits(), evaluate=True)
    with pytest.raises(ConfigurationError, match=r"set sites\.evaluate to false"):
        fit(tmp_path, federation, data)

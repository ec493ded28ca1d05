"""Sites are evaluated with BatchNorm statistics of their own, and write the final model."""

from dataclasses import replace

import pytest
import torch
from torch.optim.swa_utils import update_bn

from fedaux_pl.algorithms import FedAvg, FedClassMeans
from fedaux_pl.cli.site import site_output
from fedaux_pl.data import Digits, FederatedDataModule
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import LocalTraining
from fedaux_pl.models import load_exported
from fedaux_pl.sites import Limits
from tests.federations import assert_close, assert_same, create, weights
from tests.federations import fit as fit_locally
from tests.sites.loopback import Given, fit, prepare
from tests.sites.test_same_results import STATISTICS

OPEN = Limits(rehearsal=True, evaluate=True)
NAMES = tuple(f"site-{i}" for i in range(3))


def silos():
    """Three clients that training and test data name."""
    parts = []
    for examples in (Digits().train().take(slice(96)), Digits().test().take(slice(60))):
        owners = torch.arange(len(examples)) % 3
        parts.append(replace(examples, clients=owners, client_names=NAMES))
    return FederatedDataModule(Given(*parts), num_clients=3)


def own(algorithm=FedAvg, **options):
    clients = options.pop("clients", {"resnet8": 3})
    return create(algorithm(), clients, batchnorm_statistics="own", **options)


def start(root, federation_of=own, limits=OPEN, data=silos, **options):
    root.mkdir(exist_ok=True)
    return prepare(root, federation_of, data(), limits, own_tests=True, **options)


def by_site(federation):
    return {k: v for k, v in federation.metrics.items() if "client_accuracy/" in k}


def test_sites_measure_what_a_simulation_measures(tmp_path, capsys):
    """Also with two architectures: a site has a model of one of them."""

    def mixed():
        return own(clients={"resnet8": 2, "shufflenet": 1})

    federation, data, _ = start(tmp_path, mixed, evaluate=True)
    fit(tmp_path, federation, data, rounds=1)
    told = capsys.readouterr().out
    assert "20 test samples of its own, with BatchNorm statistics of its training data: NOT" in told
    assert "the same metrics depend on the training records" in federation.privacy()[-1]
    local = mixed()
    fit_locally(tmp_path / "local", local, rounds=1, data=silos())
    assert_same(weights(federation), weights(local))
    assert by_site(federation) == pytest.approx(by_site(local), abs=1e-6)
    running = create(FedAvg(), {"resnet8": 2, "shufflenet": 1})
    fit_locally(tmp_path / "running", running, rounds=1, data=silos())
    assert by_site(running) != by_site(local)


def test_noise_does_not_cover_training_records(tmp_path):
    limits = Limits(evaluate=True, evaluate_epsilon=0.1, epsilon_limit=1.0)
    expected = r"batchnorm_statistics 'own' .* training records, .* --evaluate_epsilon"
    with pytest.raises(ConfigurationError, match=expected):
        start(tmp_path, limits=limits, rehearsal=False)


def test_server_and_sites_agree_on_it(tmp_path, capsys):
    federation, data, hub = start(tmp_path)
    federation.batchnorm_statistics = "running"
    with pytest.raises(ConfigurationError, match="sites refuse"):
        fit(tmp_path, federation, data, rounds=1)
    assert "batchnorm_statistics is 'own' here, None at the server" in capsys.readouterr().out
    assert not any(message.body for message in hub.sent)


def test_test_data_of_the_server_cannot_be_those_of_sites(tmp_path):
    federation, data, _ = prepare(tmp_path, own, silos())
    with pytest.raises(ConfigurationError, match=r"are at the sites, but the server's test"):
        fit(tmp_path, federation, data, rounds=1)


def write_to(site, output):
    """Let a site do this with the final model."""
    site.handlers["finish"] = replace(site.handlers["finish"], output=output)


@pytest.mark.parametrize("fine_tuning", [0, 1])
def test_a_site_writes_the_final_model_with_what_is_its_own(tmp_path, capsys, fine_tuning):
    federation, data, hub = start(tmp_path, final_model=True)
    write_to(hub.sites["site-1"], site_output(tmp_path / "model", fine_tuning, "site-1"))
    hub.away.add("site-2")
    fit(tmp_path, federation, data, rounds=2)
    told = capsys.readouterr().out
    assert "site-1 has written the final model" in told
    assert "nothing: the final model is written only with --output" in told  # of site-0
    assert "site-2 has no final model: it is not connected" in told
    kinds = [message.fields.keys() for message in hub.sent if "written" in message.fields]
    assert kinds == [{"request", "written"}] * 2
    [model] = load_exported(tmp_path / "model").models

    simulated = own(local=LocalTraining(batch_size=16, fine_tuning=fine_tuning))
    local = silos()
    fit_locally(tmp_path / "local", simulated, rounds=2, data=local)
    simulated.students.load_state_dict(weights(federation))
    assert_close(model.state_dict(), simulated.client_model("site-1").state_dict())
    if not fine_tuning:
        expected = federation.students["resnet8"]
        before = expected.bn1.running_mean.clone()
        update_bn([(local.client(1).inputs,)], expected)
        torch.testing.assert_close(model.bn1.running_mean, expected.bn1.running_mean)
        assert not torch.allclose(model.bn1.running_mean, before)
    card = (tmp_path / "model" / "README.md").read_text()
    tuned = "fine-tuning on its training data (1 epoch), " if fine_tuning else ""
    text = f"that of site-1: the server's with {tuned}BatchNorm statistics of its training data"
    assert text in card
    assert "the server's last request, after round 2" in card
    assert "NOT private: this model: it depends on the training data of site-1" in card


def test_a_site_of_a_method_without_models_gets_the_final_one(tmp_path):
    def means():
        return create(FedClassMeans(**STATISTICS), {"resnet8": 3})

    public = Digits().auxiliary()[:40]

    def data():
        loaded = silos()
        return FederatedDataModule(loaded.private, Given(auxiliary=public), num_clients=3)

    federation, data, hub = start(tmp_path, means, data=data, final_model=True)
    write_to(hub.sites["site-0"], site_output(tmp_path / "model", 0, "site-0"))
    fit(tmp_path, federation, data, rounds=1)
    [model] = load_exported(tmp_path / "model").models
    assert_same(model.state_dict(), federation.students["resnet8"].state_dict())
    assert "that of site-0: the server's |" in (tmp_path / "model" / "README.md").read_text()


def test_a_run_that_is_finished_sends_it_again(tmp_path):
    federation, data, hub = start(tmp_path, final_model=True)
    trainer = fit(tmp_path, federation, data, rounds=1)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    federation, data, hub = start(tmp_path, final_model=True)
    write_to(hub.sites["site-1"], site_output(tmp_path / "model", 0, "site-1"))
    fit(tmp_path, federation, data, rounds=1, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert len(hub.sent) == 3  # no round
    assert (tmp_path / "model" / "config.json").is_file()


def test_other_tensors_are_not_written(tmp_path):
    federation, data, hub = start(tmp_path, final_model=True)
    write_to(hub.sites["site-1"], site_output(tmp_path / "model", 0, "site-1"))

    def cut(answer, request):
        is_last = request.fields["kind"] == "finish"
        return answer(replace(request, body=request.body[:-100]) if is_last else request)

    hub.faults["site-1"] = cut
    fit(tmp_path, federation, data, rounds=1)
    assert hub.sent[-2].fields["code"] == "message"
    assert not (tmp_path / "model").exists()


def test_an_output_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigurationError, match="got 1; expected epochs from 0 on, with --output"):
        site_output(None, 1, "north")
    with pytest.raises(ConfigurationError, match="got -1; expected epochs from 0 on"):
        site_output(tmp_path, -1, "north")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is not empty: give --output another folder"):
        site_output(tmp_path, 0, "north")
    (tmp_path / "config.json").write_text("{}")  # an earlier model
    assert site_output(tmp_path, 0, "north") is not None
    assert site_output(None, 0, "north") is None

"""Private updates of sites: charged, stored, limited, and nothing else beside them."""

import dataclasses

import pytest
import torch
from safetensors.torch import load

from fedaux_pl.algorithms import FedAUX, FedAvg, FedProx
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import LocalTraining, UpdatePrivacy
from fedaux_pl.files import state_folder
from fedaux_pl.scoring import ClassStatistics, Ledger, Privacy, Whitened
from fedaux_pl.sites import Limits
from fedaux_pl.sites.final_model import Output
from fedaux_pl.sites.wire import Message, write_tensors
from tests import federations
from tests.federations import assert_same, split, weights
from tests.sites.loopback import fit, limit, prepare
from tests.sites.test_same_results import images

LOCAL = LocalTraining(
    batch_size=8, batchnorm="frozen", privacy=UpdatePrivacy(epsilon=4.0, clip_norm=0.5)
)
TWO = {"resnet8": 2}
PRIVATE = images(FedAvg(), TWO, local=LOCAL)


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A folder for a run, with ledgers of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def prepare_sites(root, federation_of=PRIVATE, limits=None, rounds=2, **data):
    return prepare(
        root,
        federation_of,
        split(2, **({"auxiliary": None} | data)),
        limits or Limits(),
        rounds,
        rehearsal=False,
    )


def watch(hub, name="site-0"):
    """All requests that a site gets from now on."""
    seen = []
    hub.faults[name] = lambda answer, request: seen.append(request) or answer(request)
    return seen


def spent(site):
    ledger = Ledger(site.federation.data.key_id)
    digests = site.federation.data.record_digests(0)
    return ledger.total([digests], LOCAL.privacy.delta)


def test_a_run_spends_its_budget_and_sends_no_loss(alone, capsys):
    federation, data, hub = prepare_sites(alone)
    requests = watch(hub)
    fit(alone, federation, data, rounds=2)
    answers = [message for message in hub.sent if message.body]
    assert len(answers) == 4
    assert all("loss" not in message.fields for message in answers)
    assert not any(name.startswith("client_loss") for name in federation.history[-1])
    [line] = federation.privacy()
    assert line.startswith("all that leaves a client, its updates in 2 rounds, is (epsilon 4, ")
    assert "NOT private" not in line
    for site in hub.sites.values():
        total = spent(site)
        assert total.releases == 2
        assert 3.9 < total.epsilon <= 4
    assert "a model update, (epsilon " in capsys.readouterr().out
    assert [request.fields["round"] for request in requests] == [1, 2]


def test_a_repeated_request_gets_the_stored_update(alone):
    federation, data, hub = prepare_sites(alone)
    requests = watch(hub)
    fit(alone, federation, data, rounds=2)
    site = hub.sites["site-0"]
    before = spent(site)
    first = next(message for message in hub.sent if message.body)
    again = site.answer(requests[0])
    assert again.body == first.body
    assert spent(site) == before
    for path in (state_folder() / "updates").iterdir():
        assert path.stat().st_mode & 0o077 == 0
        path.unlink()
    assert site.answer(requests[0]).fields["code"] == "budget"


def test_a_resumed_server_gets_the_same_updates(alone):
    federation, data, hub = prepare_sites(alone)
    fit(alone, federation, data, rounds=2)
    before = [spent(site) for site in hub.sites.values()]
    second, data, hub = prepare_sites(alone)  # a new process of server and sites
    fit(alone, second, data, rounds=2)
    assert_same(weights(federation), weights(second))
    assert [spent(site) for site in hub.sites.values()] == before


def test_another_model_costs_again_and_the_limit_ends_it(alone, capsys):
    federation, data, hub = prepare_sites(alone)
    requests = watch(hub)
    fit(alone, federation, data, rounds=2)
    site = hub.sites["site-0"]
    state = load(requests[0].body)
    other = {key: value + 1 if value.is_floating_point() else value for key, value in state.items()}
    request = Message(requests[0].fields, write_tensors(other))
    assert site.answer(request).fields["code"] == "budget"
    assert "above the epsilon_limit 4" in capsys.readouterr().out
    assert spent(site).releases == 2
    limit(site, epsilon_limit=8.0)
    assert site.answer(request).body
    assert 4 < spent(site).epsilon < 8


def test_whether_a_loss_is_finite_is_not_told(alone):
    """It depends on records without noise: every request is answered, and charged."""
    federation, data, hub = prepare_sites(alone, limits=Limits(epsilon_limit=4.0))
    requests = watch(hub)
    fit(alone, federation, data, rounds=2)
    site = hub.sites["site-0"]
    limit(site, epsilon_limit=50.0)
    state = load(requests[0].body)
    state["head.weight"].zero_()
    for label in range(10):  # the loss of 8 records of other classes is infinite
        state["head.bias"].fill_(2.5e38)
        state["head.bias"][label] = 0
        fields = requests[0].fields | {"round": 10 + label}
        assert "code" not in site.answer(Message(fields, write_tensors(state))).fields
        assert spent(site).releases == 3 + label


def test_another_method_gets_an_update_of_its_own(alone):
    before = []
    for method, trained in ((FedAvg(), "full"), (FedProx(mu=1000.0), "full"), (FedAvg(), "head")):
        folder = alone / f"{method.name}-{trained}"
        folder.mkdir()
        federation_of = images(method, TWO, local=LOCAL, trained=trained)
        federation, data, hub = prepare_sites(
            folder, federation_of, Limits(epsilon_limit=20.0), rounds=1
        )
        fit(folder, federation, data, rounds=1)
        bodies = [message.body for message in hub.sent if message.body]
        assert len(bodies) == 2
        assert not set(bodies) & set(before)
        before += bodies
    assert spent(hub.sites["site-0"]).releases == 3


def test_other_held_out_data_are_another_request(alone):
    for number, fraction in enumerate((0.05, 0.0), start=1):
        folder = alone / str(number)
        folder.mkdir()
        federation, data, hub = prepare(
            folder,
            PRIVATE,
            split(2, auxiliary=None),
            Limits(epsilon_limit=20.0),
            rehearsal=False,
            change_data=lambda _, own, value=fraction: setattr(own, "validation_fraction", value),
        )
        fit(folder, federation, data, rounds=1)
        assert spent(hub.sites["site-0"]).releases == number


def test_a_lower_limit_refuses_a_round(alone):
    federation, data, hub = prepare_sites(alone, limits=Limits(epsilon_limit=3.2))
    seen = watch(hub)
    with pytest.raises(ConfigurationError, match="sites refuse"):
        fit(alone, federation, data, rounds=2)
    assert [request.fields["round"] for request in seen] == [1, 2]
    assert hub.sites["site-0"].answer(seen[-1]).fields["code"] == "budget"
    assert 2 < spent(hub.sites["site-0"]).epsilon <= 3.2


def test_draws_are_secret_and_those_of_a_rehearsal_are_the_simulation(alone):
    for name in ("local", "rehearsal", "secret"):
        (alone / name).mkdir()
    data = split(2, auxiliary=None)
    simulated = PRIVATE()
    federations.fit(alone / "local", simulated, 2, data)
    rehearsed, data, hub = prepare(alone / "rehearsal", PRIVATE, split(2, auxiliary=None), rounds=2)
    fit(alone / "rehearsal", rehearsed, data, rounds=2)
    assert_same(weights(simulated), weights(rehearsed))
    assert rehearsed.privacy()[0].startswith("simulated: with secret draws, all that")
    site = hub.sites["site-0"]
    assert not site.clients.secret_updates
    assert not (state_folder() / "updates").exists()
    secret, data, hub = prepare_sites(alone / "secret")
    assert hub.sites["site-0"].clients.secret_updates
    fit(alone / "secret", secret, data, rounds=2)
    same = weights(secret)
    assert not all(torch.equal(same[key], value) for key, value in weights(simulated).items())


def test_statistics_and_updates_share_one_budget(alone):
    scorer = ClassStatistics(releases=1)
    method = FedAUX(scorer=scorer, feature_map=Whitened(dimensions=8), privacy=Privacy(1.0))
    federation_of = images(method, TWO, local=LOCAL)
    federation, data, hub = prepare_sites(
        alone, federation_of, rounds=1, auxiliary=federations.FewDigits()
    )
    fit(alone, federation, data, rounds=1)
    line = next(line for line in federation.privacy() if line.startswith("all that leaves"))
    assert "its releases and its updates in 1 round, is (epsilon 4" in line
    total = spent(hub.sites["site-0"])
    assert total.releases == 2
    assert 3.9 < total.epsilon <= 4


@pytest.mark.parametrize(
    ("limits", "output", "message"),
    [
        (Limits(evaluate=True), None, "add --evaluate_epsilon, or leave out --evaluate"),
        (Limits(vote=True), None, "add --vote_epsilon"),
        (Limits(), Output(print, fine_tuning=1), "--output_fine_tuning trains without noise"),
    ],
)
def test_what_would_leave_without_noise_is_refused(alone, limits, output, message):
    hub = prepare_sites(alone)[-1]
    site = hub.sites["site-0"]
    site.limits = limits
    site.output = output
    with pytest.raises(ConfigurationError, match=message):
        site.run(site.federation, None)


def test_other_numbers_of_rounds_are_no_agreement(alone):
    federation, data, _ = prepare_sites(alone, rounds=3)
    with pytest.raises(ConfigurationError, match="settings"):
        fit(alone, federation, data, rounds=2)


def test_without_privacy_the_loss_is_sent_as_before(alone):
    plain = images(FedAvg(), TWO, local=dataclasses.replace(LOCAL, privacy=None))
    federation, data, _ = prepare(alone, plain, split(2, auxiliary=None))
    fit(alone, federation, data, rounds=1)
    assert "client_loss/mean" in federation.history[-1]

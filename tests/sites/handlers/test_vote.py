"""Sites vote on the server's models by validation data of their own, if their owners allow it."""

import math
from dataclasses import replace

import pytest
import torch

from fedaux_pl.algorithms import FedDF
from fedaux_pl.data import Digits, FederatedDataModule
from fedaux_pl.federation import Distillation
from fedaux_pl.sites import Limits, wire
from fedaux_pl.sites.handlers.refuse import Refuse
from fedaux_pl.sites.messages.vote import read_weights
from fedaux_pl.sites.site_status import describe_status
from fedaux_pl.sites.wire import Message, RefusalError
from tests.federations import FewDigits, assert_same, create, weights
from tests.federations import fit as fit_locally
from tests.sites.loopback import Given, fit, prepare

OPEN = Limits(rehearsal=True, vote=True)
MIXED = {"resnet8": 2, "shufflenet": 1}


def voted(clients=None):
    distillation = Distillation(batch_size=16, lr=1e-2, blend="vote")
    return create(FedDF(), clients or {"resnet8": 3}, distillation=distillation)


def simulated():
    """Three clients, and validation data that name none."""
    train = Digits().train().take(slice(64))
    private = Given(train, Digits().test().take(slice(40)), validation=held_out())
    auxiliary = FewDigits(auxiliary=40)
    return FederatedDataModule(private, auxiliary, num_clients=3, alpha=1.0)


def held_out():
    return Digits().train().take(slice(64, 124))


def over_sites(root, limits=OPEN, federation_of=voted, fraction=0.0):
    """Sites hold a third of the validation data each, or a fraction of their own training data."""

    def change_data(number, data):
        if fraction:
            data.validation_fraction = fraction
        else:
            data.private.given_validation = held_out().take(slice(20 * number, 20 * number + 20))

    rehearsal = limits.rehearsal
    return prepare(
        root, federation_of, simulated(), limits, change_data=change_data, rehearsal=rehearsal
    )


def votes_of(entry):
    return {key: value for key, value in entry.items() if key.startswith(("blend/", "votes/"))}


@pytest.mark.parametrize("clients", [None, MIXED])
def test_the_votes_are_those_of_a_simulation(tmp_path, clients):
    federation, data, _ = over_sites(tmp_path, federation_of=lambda: voted(clients))
    fit(tmp_path, federation, data, rounds=2)
    local = voted(clients)
    fit_locally(tmp_path / "local", local, 2, simulated())
    assert_same(weights(federation), weights(local))
    for entry, expected in zip(federation.history, local.history, strict=True):
        assert votes_of(entry) == pytest.approx(votes_of(expected), rel=1e-5)
        assert entry["votes/clients"] == 3
        assert entry["bytes/down"] == expected["bytes/down"]
    sent = sum(t.numel() * t.element_size() for t in weights(federation).values())
    if clients is None:  # three models to train, and two for each vote
        assert federation.history[0]["bytes/down"] == 3 * sent + 3 * 2 * sent
    assert any("votes of sites" in line for line in federation.privacy())


def test_sites_that_refuse_or_are_away_are_left_out(tmp_path, capsys):
    federation, data, hub = over_sites(tmp_path)
    hub.sites["site-0"].handlers["vote"] = Refuse("limits", "see --vote")
    hub.away.add("site-1")
    fit(tmp_path, federation, data, rounds=2)
    assert [entry["votes/clients"] for entry in federation.history] == [1, 1]
    shown = describe_status(tmp_path / "server").splitlines()
    assert "does not vote (code limits)" in shown[1]
    assert "vote" not in shown[2]
    assert "votes by 20 samples, NOT covered by epsilon" in shown[3]
    printed = capsys.readouterr().out
    assert printed.count("no votes of site-0") == 1
    assert printed.count("no votes of site-0 from round 1 on") == 1


def test_without_any_vote_the_server_takes_the_average(tmp_path, capsys):
    federation, data, _ = over_sites(tmp_path, Limits(rehearsal=True))
    fit(tmp_path, federation, data, rounds=1)
    assert federation.history[0]["blend/resnet8"] == 0
    assert "no site has voted in round 1" in capsys.readouterr().out


def test_a_site_holds_out_records_of_its_own(tmp_path):
    federation, data, hub = over_sites(tmp_path, fraction=0.25)
    fit(tmp_path, federation, data, rounds=1)
    for site in hub.sites.values():
        own = site.federation.data
        held = len(own.validation_examples)
        assert held == len(site.handlers["vote"].examples) > 0
        assert {len(own.client(i)) for i in range(3)} == {own.client_sizes[0]}
        assert own.client_sizes[0] + held == len(own.private.train())
        kept = {tuple(row.flatten().tolist()) for row in own.client(0).inputs}
        assert not kept & {tuple(x.flatten().tolist()) for x in own.validation_examples.inputs}


def test_sites_that_hold_nothing_out_vote_by_their_training_data(tmp_path, capsys):
    """As the clients of a simulation do."""

    def without_validation():
        data = simulated()
        data.private.given_validation = None
        return data

    federation, data, hub = prepare(
        tmp_path, voted, without_validation(), OPEN, rehearsal=OPEN.rehearsal
    )
    fit(tmp_path, federation, data, rounds=2)
    printed = capsys.readouterr().out
    local = voted()
    fit_locally(tmp_path / "local", local, 2, without_validation())
    assert_same(weights(federation), weights(local))
    for entry, expected in zip(federation.history, local.history, strict=True):
        assert votes_of(entry) == pytest.approx(votes_of(expected), rel=1e-5)
    for site in hub.sites.values():
        size = len(site.federation.data.private.train())
        assert len(site.handlers["vote"].examples) == size
        assert f"its votes by {size} training samples of its own: NOT private" in printed


@pytest.mark.parametrize("asked", [None, [], [0.5] * 17, [2.0], ["a"], [math.nan]])
def test_wrong_candidates_are_refused(asked):
    with pytest.raises(RefusalError):
        read_weights(Message({"weights": asked}))


def test_votes_that_are_not_finite_are_left_out(tmp_path):
    federation, data, hub = over_sites(tmp_path)

    def lie(answer, request):
        reply = answer(request)
        if request.fields["kind"] != "vote":
            return reply
        body = wire.write_tensors({"resnet8": torch.full((5,), math.inf, dtype=torch.double)})
        return replace(reply, body=body)

    hub.faults["site-2"] = lie
    fit(tmp_path, federation, data, rounds=1)
    assert federation.history[0]["votes/clients"] == 2

"""Secure sums over sites: what leaves a site, what it costs, and what ends an attempt."""

import json
from dataclasses import dataclass, replace

import pytest

pytest.importorskip("cryptography")

import torch
from safetensors.torch import load

from fedaux_pl.algorithms import FedAUX, FedClassMeans
from fedaux_pl.data.fingerprints import key_id, machine_key
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import LocalTraining
from fedaux_pl.scoring import (
    ClassStatistics,
    Privacy,
    SecureSum,
    SecureSums,
    StatisticsScoring,
    spent,
)
from fedaux_pl.sites import Limits, server_sums, site_sums
from fedaux_pl.sites.ledger import Ledger
from fedaux_pl.sites.secure_sum import pin, signing_key
from fedaux_pl.sites.site_status import describe_status
from fedaux_pl.sites.wire import Message, write_tensors
from tests.federations import split
from tests.sites.loopback import fit, limit, prepare
from tests.sites.test_same_results import images

NAMES = ["site-0", "site-1", "site-2", "site-3"]
SECRET = Limits(epsilon_limit_alone=5.0)


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    """A ledger and keys for each test; and no pauses."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(server_sums, "_RETRY", 0.0)


@dataclass(frozen=True)
class Statistics(StatisticsScoring):
    """With another weight of the second moment."""

    second_moment: float = 0.15

    def create(self, privacy):
        scorer = ClassStatistics(self.second_moment, self.releases)
        return replace(super().create(privacy), scorer=scorer)


def sites(
    root,
    clients=4,
    limits=SECRET,
    releases=1,
    rho=0.15,
    options=None,
    epsilon=1.0,
    architectures=None,
    **secure,
):
    names = [f"site-{number}" for number in range(clients)]
    pins = {name: pin(signing_key(name)) for name in names}
    method = FedClassMeans(
        scoring=Statistics(4, 0.5, releases, rho),
        privacy=Privacy(epsilon, secure=SecureSums(**({"pins": pins} | secure))),
    )
    federated = images(method, architectures or {"resnet8": clients}, **(options or {}))
    return prepare(root, federated, split(clients), limits=limits, rehearsal=False)


def entries():
    return Ledger(key_id(machine_key())).entries()


def run(root, federation, data):
    fit(root, federation, data, rounds=1)
    return federation


def at(kind, fault):
    """A fault in the answers to one kind of request."""
    return lambda answer, request: (
        fault(answer, request) if request.fields["kind"] == kind else answer(request)
    )


def test_the_server_gets_one_sum_and_each_site_pays_once(tmp_path, capsys):
    federation, data, hub = sites(tmp_path, releases=2)
    twice = []
    hub.faults["site-1"] = at(
        "masked",
        lambda answer, request: twice.append((answer(request), answer(request))) or twice[-1][0],
    )
    run(tmp_path, federation, data)
    assert all(one.body == two.body for one, two in twice)  # asked twice, the same bytes
    [first], [second] = federation.heads, federation.state.releases["gradient/resnet8"].heads
    assert first.clients == second.clients == (0, 1, 2, 3)
    masked = [message for message in hub.sent if "transcript" in message.fields]
    assert len(masked) == len(entries()) == 8
    # of all that leaves a site, the masked vectors alone depend on more than |D_i|
    others = [message for message in hub.sent if message not in masked]
    assert all(not load(message.body) for message in others)
    records = [entry.releases[0] for entry in entries()]
    assert len({record.what for record in records}) == 2
    own = [records[0], next(r for r in records if r.what != records[0].what)]
    assert 0.99 < spent(own, 1e-5)[0] <= 1.0
    assert 1.0 < spent(own, 1e-5, alone=True)[0] < 5.0
    lines = " ".join(federation.privacy())
    assert "if at least 3 of them add their noise" in lines
    assert "also against a server that breaks the protocol" in lines
    assert "in the secure sum" in describe_status(tmp_path / "server")
    assert "secure sum over site-0, site-1, site-2, site-3: 60 numbers" in capsys.readouterr().out


def test_the_status_has_the_sums_of_all_architectures(tmp_path):
    clients = {"resnet8": 3, "shufflenet": 3}
    federation, data, _ = sites(tmp_path, clients=6, architectures=clients)
    run(tmp_path, federation, data)
    shown = describe_status(tmp_path / "server")
    assert shown.count("; in the secure sum") == 6


def test_a_site_that_drops_out_costs_the_others_their_epsilon(tmp_path):
    """The run ends; a second sum about the same data is above the budget."""
    federation, data, hub = sites(tmp_path)
    hub.faults["site-3"] = at("masked", lambda answer, request: None)
    words = r"cost site-0, site-1, site-2 their epsilon .* again when site-3 can answer, which"
    with pytest.raises(ConfigurationError, match=words):
        run(tmp_path, federation, data)
    assert len(entries()) == 3
    # a server that pretends a dropout, and asks again
    site = hub.sites["site-0"]
    [digest] = site.handlers["masked"].sums.pending
    fields = {"kind": "keys", "client": 0, "agreement": site.agreement, "sum": digest}
    again = Message({**fields, "attempt": 2**39, "sites": 3})
    assert site.answer(again).fields["code"] == "budget"
    assert len(entries()) == 3
    # sites that pay for a second attempt
    limits = Limits(epsilon_limit=1.5, epsilon_limit_alone=5.0)
    assert run(tmp_path, *sites(tmp_path, limits=limits)[:2]).heads[0].clients == (0, 1, 2, 3)
    assert len(entries()) == 7


def test_a_failed_sum_is_completed_at_no_cost_while_the_sites_still_run(tmp_path):
    federation, data, hub = sites(tmp_path)
    hub.faults["site-3"] = at("masked", lambda answer, request: None)
    with pytest.raises(ConfigurationError, match="which completes this sum at no further cost"):
        run(tmp_path, federation, data)
    assert len(entries()) == 3
    again, data, other = sites(tmp_path)
    other.sites = hub.sites
    run(tmp_path, again, data)
    assert again.heads[0].clients == (0, 1, 2, 3)
    assert len(entries()) == 4  # three sites have sent the same bytes again


def test_a_server_killed_between_the_steps_goes_on_at_no_cost(tmp_path):
    federation, data, hub = sites(tmp_path)

    def kill(answer, request):
        raise KeyboardInterrupt

    hub.faults["site-2"] = at("masked", kill)
    with pytest.raises(SystemExit):
        run(tmp_path, federation, data)
    assert len(entries()) == 2
    hub.faults.clear()
    again, data, other = sites(tmp_path)
    other.sites = hub.sites
    run(tmp_path, again, data)
    assert again.heads[0].clients == (0, 1, 2, 3)
    assert len(entries()) == 4  # the two have sent the same bytes again


def test_a_second_run_costs_nothing(tmp_path):
    """With new processes of the sites, and other settings that do not change the sum."""
    first, second = (
        run(tmp_path, *sites(tmp_path, options={"local": LocalTraining(lr=lr)})[:2])
        for lr in (0.1, 0.2)
    )
    assert torch.equal(first.heads[0].weight, second.heads[0].weight)
    federation, data, hub = sites(tmp_path)
    hub.away = {"site-3"}  # without it there would be a new sum
    with pytest.raises(ConfigurationError, match=r"sites that are absent \(site-3: .* or delete"):
        run(tmp_path, federation, data)
    assert len(entries()) == 4


def test_a_stored_vector_with_too_little_noise_stays_at_its_site(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        few = (100, ClassStatistics().integer_sensitivity(4, 10)[1])
        patch.setattr(ClassStatistics, "integer_sensitivity", lambda *_: few)
        run(tmp_path, *sites(tmp_path)[:2])
    assert len(entries()) == 4
    federation, data, hub = sites(tmp_path)
    with pytest.raises(ConfigurationError, match="site-0: budget"):
        run(tmp_path, federation, data)
    assert all("transcript" not in message.fields for message in hub.sent)
    assert "it was made by other code" in capsys.readouterr().out


def test_wrong_vectors_end_the_attempt(tmp_path):
    federation, data, hub = sites(tmp_path)

    def wrong(change):
        return at(
            "masked",
            lambda answer, request: Message(
                (message := answer(request)).fields,
                write_tensors({"masked": change(load(message.body)["masked"])}),
            ),
        )

    hub.faults["site-1"] = wrong(lambda vector: vector[:-1].clone())
    hub.faults["site-2"] = wrong(lambda vector: vector.double())
    reasons = r"site-1: masked is torch\.int64 .*site-2: masked is torch\.float64 of"
    with pytest.raises(ConfigurationError, match=reasons):
        run(tmp_path, federation, data)


def test_a_false_vector_does_not_pass_for_a_sum(tmp_path):
    federation, data, hub = sites(tmp_path)

    def fault(answer, request):
        message = answer(request)
        false = torch.randint(-(2**62), 2**62, load(message.body)["masked"].shape)
        return Message(message.fields, write_tensors({"masked": false}))

    hub.faults["site-1"] = at("masked", fault)
    with pytest.raises(Exception, match="larger than any data and noise can be"):
        run(tmp_path, federation, data)


def test_too_few_sites(tmp_path):
    federation, data, hub = sites(tmp_path)
    hub.away = {"site-1", "site-2"}
    with pytest.raises(
        ConfigurationError, match=r"needs 3 sites, but has site-0, site-3 \(the oth"
    ):
        run(tmp_path, federation, data)
    assert entries() == []


def test_the_limits_of_a_site(tmp_path):
    with pytest.raises(ConfigurationError, match="state with --epsilon_limit_alone"):
        sites(tmp_path, limits=Limits())
    low, between = {"epsilon_limit_alone": 1.2}, {"epsilon_limit_alone": 1.6}  # of 3, and of 4
    federation, data, hub = sites(tmp_path)
    for own in ({"epsilon_limit": 0.9, "epsilon_limit_alone": 5.0}, low, between):
        for site in hub.sites.values():
            limit(site, **own)
        with pytest.raises(ConfigurationError, match=r"site-0: .*budget"):
            run(tmp_path, federation, data)
        assert entries() == []
    # a server that asks for the keys of 3 sites, and then sends a list of 4
    for name in NAMES:
        hub.faults[name] = at("keys", lambda answer, r: answer(Message({**r.fields, "sites": 3})))
    with pytest.raises(ConfigurationError, match=r"has none \(site-0: .*budget"):
        run(tmp_path, federation, data)
    assert entries() == []
    with pytest.raises(ValueError, match=r"epsilon_limit_alone: got .* to be a positive number"):
        Limits(epsilon_limit_alone=0.0)


def test_a_site_that_cannot_pay_costs_the_others_nothing(tmp_path):
    """It says so before there are keys; the others have their sum."""
    federation, data, hub = sites(tmp_path)
    limit(hub.sites["site-3"], epsilon_limit_alone=1.2)
    run(tmp_path, federation, data)
    assert [head.clients for head in federation.heads] == [(0, 1, 2)]
    assert len(entries()) == 3


def other_h0(request, number):
    tensors = load(request.body)
    tensors["h0/conv1.weight"] *= 1 + 1e-3 * (number + 1)
    return Message(request.fields, write_tensors(tensors))


def refuse_work(*_):
    raise AssertionError("nothing may be computed for a request that is refused")


def test_a_refused_request_computes_and_keeps_nothing(tmp_path, monkeypatch):
    federation, data, hub = sites(tmp_path, clients=3)
    seen = []
    hub.faults["site-0"] = lambda answer, request: seen.append(request) or answer(request)
    run(tmp_path, federation, data)
    site, first = hub.sites["site-0"], seen[0]
    assert [*site.handlers["masked"].sums.pending] == [seen[1].fields["sum"]]
    monkeypatch.setattr(type(site.federation.pool), "integers", refuse_work)
    for number in range(10):
        assert site.answer(other_h0(first, number)).fields["code"] == "budget"
    assert [*site.handlers["masked"].sums.pending] == [seen[1].fields["sum"]]
    assert "code" not in site.answer(first).fields  # it was paid for


def test_a_site_keeps_few_vectors_of_sums_that_nobody_finishes(tmp_path):
    """None is paid for yet, so the budget refuses none of them."""
    federation, data, hub = sites(tmp_path, clients=3)
    seen = []

    def flood(answer, request):
        seen.append(request)
        result = answer(request)
        if len(seen) == 1:
            for number in range(10):
                assert "code" not in answer(other_h0(request, number)).fields
                answer(request)  # in use
        return result

    hub.faults["site-0"] = flood
    run(tmp_path, federation, data)
    assert federation.heads[0].clients == (0, 1, 2)  # the sum in use is still there
    site = hub.sites["site-0"]
    assert len(site.handlers["masked"].sums.pending) == site_sums.MAX_PENDING
    for number in range(10):
        site.answer(other_h0(seen[0], number))
    # an honest server prepares again
    assert "code" not in site.answer(seen[0]).fields
    assert site.answer(seen[-1]).body
    assert len(entries()) == 3


def test_the_budget_is_checked_before_noise_is_drawn(tmp_path, monkeypatch):
    federation, data, hub = sites(tmp_path, limits=Limits(epsilon_limit_alone=1.6))
    drawn = []
    for name in NAMES:  # keys of 3 sites, and then a list of 4, whose own noise is smaller
        hub.faults[name] = at("keys", lambda answer, r: answer(Message({**r.fields, "sites": 3})))
    pool = type(hub.sites["site-0"].federation.pool)
    noise_bytes = pool.noise_bytes
    monkeypatch.setattr(pool, "noise_bytes", lambda *a: drawn.append(a) or noise_bytes(*a))
    with pytest.raises(ConfigurationError, match=r"has none \(site-0: .*budget"):
        run(tmp_path, federation, data)
    assert entries() == drawn == []


def test_local_releases_count_for_the_limit_of_the_own_noise(tmp_path):
    """The counts of FedAUX, after the sum."""
    pins = {name: pin(signing_key(name)) for name in NAMES[:3]}
    method = FedAUX(
        scoring=StatisticsScoring(4, whitening=0.5, releases=1),
        privacy=Privacy(1.0, secure=SecureSums(count_share=0.2, pins=pins)),
    )
    federated, options = images(method, {"resnet8": 3}), {"rehearsal": False}
    with pytest.raises(ConfigurationError, match=r"with all sites it costs 1\.384,"):
        prepare(tmp_path, federated, split(3), limits=Limits(), **options)
    own = Limits(epsilon_limit_alone=1.35)
    federation, data, hub = prepare(tmp_path, federated, split(3), limits=own, **options)
    with pytest.raises(ConfigurationError, match="no site has released the numbers of its records"):
        run(tmp_path, federation, data)
    assert len(entries()) == 3
    assert [message.fields["code"] for message in hub.sent[-3:]] == ["budget"] * 3


def test_the_second_sum_waits_for_all_sites_of_the_first(tmp_path):
    """Over fewer sites it would be paid for and not be used."""
    federation, data, hub = sites(tmp_path, releases=2)
    missed = []

    def fault(answer, request):
        if request.fields.get("step") == "gradient" and not missed:
            return missed.append(len(entries()))
        return answer(request)

    hub.faults["site-3"] = fault
    run(tmp_path, federation, data)
    assert missed == [4]
    assert federation.state.releases["gradient/resnet8"].heads[0].clients == (0, 1, 2, 3)
    assert len(entries()) == 8


def test_a_sum_that_the_check_of_a_site_refuses_is_refused_at_the_start(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match=r"4 dimensions with second_moment 1e\+06"):
        sites(tmp_path, rho=1e6)
    # a server that sends more dimensions than agreed
    federation, data, hub = sites(tmp_path)
    check = SecureSum.check

    def check_few(secure):
        check(secure if secure.row_length <= 4 else replace(secure, row_length=20_000))

    monkeypatch.setattr(SecureSum, "check", check_few)

    def widen(answer, request):
        tensors = load(request.body)
        tensors["map/directions"] = torch.cat([tensors["map/directions"]] * 2, dim=1)
        return answer(Message({**request.fields, "directions": 8}, write_tensors(tensors)))

    hub.faults["site-0"] = at("prepare", widen)
    run(tmp_path, federation, data)
    assert federation.heads[0].clients == (1, 2, 3)
    codes = [message.fields.get("code") for message in hub.sent]
    assert codes.count("settings") == 1


def test_records_of_all_sites_are_counted_before_anybody_pays(tmp_path, monkeypatch):
    federation, data, hub = sites(tmp_path)
    monkeypatch.setattr("fedaux_pl.scoring.planning.most_records", lambda rho: 30)
    words = r"have \d+ records together; expected at most 30: leave out"
    with pytest.raises(ConfigurationError, match=words):
        run(tmp_path, federation, data)
    assert entries() == []
    assert {tuple(message.fields) for message in hub.sent} == {("request", "size")}
    monkeypatch.setattr("fedaux_pl.scoring.planning.most_records", lambda rho: 1)
    with pytest.raises(ConfigurationError, match="expected at most 1: leave out"):
        sites(tmp_path)  # a site knows its own


def test_what_cannot_be_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigurationError, match=r"pins has .* for site-0, whose key is"):
        sites(tmp_path, pins={name: pin(signing_key(f"other-{name}")) for name in NAMES})
    with pytest.raises(ConfigurationError, match="pins has none for site-0, whose key is"):
        sites(tmp_path, pins={})
    federation, data, _ = sites(tmp_path, epsilon=None)
    with pytest.raises(ConfigurationError, match=r"sites refuse \(site-0: budget"):
        run(tmp_path, federation, data)


def test_secret_sums_need_real_sites(tmp_path):
    from tests.federations import create
    from tests.federations import fit as fit_locally

    method = FedClassMeans(privacy=Privacy(1.0, secure=SecureSums(), secret=True))
    with pytest.raises(Exception, match="the clients run in one process, which sees all of them"):
        fit_locally(tmp_path, create(method), 1)


def test_other_settings_are_refused(tmp_path):
    limits = Limits(epsilon_limit=2.0, epsilon_limit_alone=5.0)
    federation, data, hub = sites(tmp_path, clients=3, limits=limits)
    seen = []
    hub.faults["site-0"] = lambda answer, request: seen.append(request) or answer(request)
    run(tmp_path, federation, data)
    keys = next(request for request in seen if request.fields["kind"] == "keys")
    other = {**keys.fields, "agreement": {**keys.fields["agreement"], "seed": 7}}
    site = hub.sites["site-0"]
    assert site.answer(Message(other)).fields["code"] == "settings"
    assert (
        site.answer(replace(keys, fields={**keys.fields, "sum": "f" * 64})).fields["code"]
        == "message"
    )
    assert site.answer(keys).fields["code"] == "message"  # an old attempt
    path = next((tmp_path / "state").rglob("secure_sums/*.json"))
    state = json.loads(path.read_text())
    assert sorted(state["keys"]) == NAMES[:3]
    for damaged in ("{", "[]", '{"attempt": 1}', '{"attempt": "x", "keys": {}}'):
        path.write_text(damaged)
        with pytest.raises(ConfigurationError, match="restore it, or delete it"):
            server_sums._read_attempt(path)

"""What the server does when a site does not answer, or not as it should."""

import copy
import dataclasses
import json

import pytest
import torch
from safetensors.torch import load, save

from fedaux_pl.algorithms import (
    Centralized,
    FedAUX,
    FedAUXfdp,
    FedAvg,
    FedBN,
    FedClassMeans,
    Scaffold,
)
from fedaux_pl.cli.entry import main
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import LocalTraining
from fedaux_pl.scoring import MeanScoring, Privacy, SecureSums
from fedaux_pl.sites import Limits, Sites
from fedaux_pl.sites.site_server import attach
from fedaux_pl.sites.wire import Message
from tests.federations import FewDigits, assert_same, create, split, weights
from tests.sites.loopback import Given, fit, prepare
from tests.sites.test_same_results import METHODS, TWO, images

AUX = FedAUX(scoring=MeanScoring(dimensions=8), privacy=Privacy(1.0))


@pytest.fixture
def plain(tmp_path):
    """FedAVG over three sites, without auxiliary data."""
    return fedavg(tmp_path)


def fedavg(root, **options):
    root.mkdir(exist_ok=True)
    return prepare(root, images(FedAvg(), {"resnet8": 3}), split(3, auxiliary=None), **options)


def answered(federation, name):
    return [entry.get(f"answered/{name}") for entry in federation.history]


def changed(change):
    """A fault that changes the tensors of an answer."""

    def fault(answer, request):
        message = answer(request)
        return Message(message.fields, save(change(load(message.body))))

    return fault


def first(tensors, value):
    name = next(name for name in sorted(tensors) if tensors[name].is_floating_point())
    return {**tensors, name: value(tensors[name])}


DAMAGED = {
    "no answer in time": lambda answer, request: None,
    "NaN": changed(lambda tensors: first(tensors, lambda t: torch.full_like(t, torch.nan))),
    "another shape": changed(lambda tensors: first(tensors, lambda t: t.flatten()[:-1].clone())),
    "another dtype": changed(lambda tensors: first(tensors, lambda t: t.double())),
    "a tensor more": changed(lambda tensors: {**tensors, "other": torch.zeros(1)}),
    "cut in half": lambda answer, request: dataclasses.replace(
        (message := answer(request)), body=message.body[: len(message.body) // 2]
    ),
    "a pickle": lambda answer, request: dataclasses.replace(answer(request), body=b"\x80\x04N."),
    "no size": lambda answer, request: Message({"request": request.fields["request"]}),
    "a size of NaN": lambda answer, request: Message(
        {**(message := answer(request)).fields, "size": float("nan")}, message.body
    ),
    "a boolean for a loss": lambda answer, request: Message(
        {**(message := answer(request)).fields, "loss": True}, message.body
    ),
    "an unknown code": lambda answer, request: Message(
        {"request": request.fields["request"], "code": "/etc/passwd"}
    ),
    "far too large": changed(lambda tensors: {**tensors, "x": torch.zeros(1_000_000)}),
}


def test_a_damaged_answer_is_left_out_and_the_round_goes_on(plain, tmp_path, capsys):
    federation, data, hub = plain
    hub.faults["site-1"] = DAMAGED["NaN"]
    fit(tmp_path, federation, data, rounds=2)
    assert answered(federation, "site-1") == [0.0, 0.0]
    assert answered(federation, "site-0") == [1.0, 1.0]
    assert "site-1 gave no answer to round 1" in capsys.readouterr().out
    # as if the site had never been there
    other = tmp_path / "other"
    federation2, data2, hub2 = fedavg(other)
    hub2.away = {"site-1"}
    fit(other, federation2, data2, rounds=2)
    assert_same(weights(federation), weights(federation2))


def test_every_kind_of_damage_is_refused(plain, tmp_path, capsys):
    federation, data, hub = plain
    kinds = iter(DAMAGED.values())
    hub.faults["site-2"] = lambda answer, request: next(kinds)(answer, request)
    fit(tmp_path, federation, data, rounds=len(DAMAGED))
    assert answered(federation, "site-2") == [0.0] * len(DAMAGED)
    out = capsys.readouterr().out
    assert out.count("site-2 gave no answer to round") == len(DAMAGED)
    assert "passwd" not in out


def test_a_release_that_no_data_can_give_is_left_out(tmp_path, capsys):
    federation, data, hub = prepare(tmp_path, images(AUX, {"resnet8": 3}), split(3))

    def empty(answer, request):
        message = answer(request)
        return Message({**message.fields, "size": 0}, message.body)

    hub.faults["site-1"] = changed(lambda tensors: first(tensors, lambda t: t.fill_(1e300)))
    hub.faults["site-2"] = empty
    fit(tmp_path, federation, data, rounds=1)
    assert [head.client for head in federation.heads] == [0]
    told = capsys.readouterr().out
    assert "site-1 gave no answer to prepare: its release is larger" in told
    assert "site-2 gave no answer to prepare: it has no samples" in told
    assert answered(federation, "site-0") == [1.0]


def test_an_architecture_without_a_released_head_does_not_teach(tmp_path):
    """Its only site has never been there."""
    method = FedAUXfdp(scoring=MeanScoring(dimensions=8), privacy=Privacy(1.0))
    federation, data, hub = prepare(
        tmp_path, images(method, {"resnet8": 2, "shufflenet": 1}), split(3)
    )
    hub.away = {"site-2"}
    fit(tmp_path, federation, data, rounds=1)
    assert [head.client for head in federation.heads] == [0, 1]


def test_an_old_answer_is_no_answer(plain, tmp_path, capsys):
    federation, data, hub = plain
    seen = []

    def replay(answer, request):
        seen.append(answer(request))
        return seen[0]

    hub.faults["site-0"] = replay
    assert data.private.parts["train"] is None  # the server has none: asking for it fails the test
    fit(tmp_path, federation, data, rounds=2)
    assert answered(federation, "site-0") == [1.0, 0.0]
    assert "it has answered an earlier request" in capsys.readouterr().out
    sites = [hub.sites[f"site-{i}"].federation.data for i in range(3)]
    assert data.client_sizes == [len(own.client(0)) for own in sites]
    assert data.client_names == ["site-0", "site-1", "site-2"]
    assert "private" not in data.fingerprints


def test_a_round_asks_again_until_there_are_enough_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("fedaux_pl.sites.answer_collector._RETRY", 0.0)
    federation, data, hub = fedavg(tmp_path, min_answers=3)
    silent = iter([True, True, False, False])
    hub.faults["site-0"] = lambda answer, request: None if next(silent) else answer(request)
    fit(tmp_path, federation, data, rounds=1)
    assert answered(federation, "site-0") == [1.0]


def test_a_site_joins_later_and_the_absent_teach_by_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("fedaux_pl.sites.site_requests._PAUSE", 0.0)
    fresh, data, hub = prepare(tmp_path, images(AUX, {"resnet8": 3}), split(3))
    hub.away = {"site-2"}
    rounds = iter(range(1, 6))

    ask = hub.ask

    def come_and_go(requests, timeout):
        if any(message.fields["kind"] == "train" for message in requests.values()):
            number = next(rounds)
            hub.away = {"site-2"} if number < 3 else {"site-0"} if number == 4 else set()
            if number == 1:
                assert [head.client for head in fresh.heads] == [0, 1]
                assert bool((fresh.evidence.certainty["distill"][2] == 0).all())
        yield from ask(requests, timeout)

    monkeypatch.setattr(hub, "ask", come_and_go)
    fit(tmp_path, fresh, data, rounds=5)
    assert answered(fresh, "site-2") == [None, None, None, 1.0, 1.0]
    assert answered(fresh, "site-0") == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert [head.client for head in fresh.heads] == [0, 1, 2]
    assert fresh.history[-1]["memory/clients"] == 3  # site 0 teaches by memory


def test_a_run_resumes_with_its_checkpoint(tmp_path):
    whole, data, _ = prepare(tmp_path, images(AUX, {"resnet8": 3}), split(3))
    fit(tmp_path, whole, data, rounds=3)
    first, data, _ = prepare(tmp_path, images(AUX, {"resnet8": 3}), split(3))
    trainer = fit(tmp_path, first, data, rounds=2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    second, data, hub = prepare(tmp_path, images(AUX, {"resnet8": 3}), split(3))
    fit(tmp_path, second, data, 3, ckpt_path=tmp_path / "two.ckpt", weights_only=True)
    assert_same(weights(second), weights(whole))
    assert len(hub.sent) == 3  # the heads were in the checkpoint: one round of updates alone


def test_a_late_site_makes_both_releases(tmp_path, monkeypatch):
    federation, data, hub = prepare(tmp_path, images(METHODS[TWO], {"resnet8": 3}), split(3))
    hub.away, asked, ask = {"site-2"}, [], hub.ask

    def ask_and_come(requests, timeout):
        if requests:
            asked.append((list(requests), next(iter(requests.values()))))
            hub.away = {"site-2"} if len(asked) < 2 else set()
        yield from ask(requests, timeout)

    monkeypatch.setattr(hub, "ask", ask_and_come)
    trainer = fit(tmp_path, federation, data, rounds=2)
    early, late = ["site-0", "site-1"], ["site-2"]
    assert [names for names, _ in asked] == [early, early, late, late]
    one, other = (load(asked[i][1].body)["sent/weight"] for i in (1, 3))
    assert torch.equal(one, other)  # nobody is asked for the gradient of another classifier
    [_, second] = federation.state.releases.values()
    assert [head.client for head in second.heads] == [0, 1, 2]
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    resumed, data, hub = prepare(tmp_path, images(METHODS[TWO], {"resnet8": 3}), split(3))
    fit(tmp_path, resumed, data, 3, ckpt_path=tmp_path / "two.ckpt", weights_only=True)
    assert not hub.sent
    assert data.client_sizes == federation.data.client_sizes
    assert torch.equal(
        resumed.evidence.class_probabilities["distill"],
        federation.evidence.class_probabilities["distill"],
    )


def test_a_second_release_with_another_sensitivity_is_left_out(tmp_path, capsys):
    federation, data, hub = prepare(tmp_path, images(METHODS[TWO], {"resnet8": 4}), split(4))

    def claim(sensitivity):
        def change(answer, request):
            message = answer(request)
            own = {"sensitivity": sensitivity, "sigma": sensitivity}
            own = own if request.fields["step"] == "gradient" else {}
            return Message({**message.fields, **own}, message.body)

        return change

    hub.faults = {f"site-{i}": claim(own) for i, own in enumerate([0, 5e-324, 1e300], start=1)}
    fit(tmp_path, federation, data, rounds=1)
    [_, second] = federation.state.releases.values()
    assert [head.client for head in second.heads] == [0]
    told = capsys.readouterr().out
    for i in (1, 2, 3):
        assert f"site-{i} gave no answer to prepare: the release of client {i}" in told


def test_refusals_of_all_sites_end_the_run_with_their_codes(tmp_path):
    federation, data, _ = fedavg(tmp_path, limits=Limits(max_batch_size=8, rehearsal=True))
    with pytest.raises(ConfigurationError, match="site-0: limits, site-1: limits"):
        fit(tmp_path, federation, data)


WRONG = {
    "clients": ({"names": ["a", "b"]}, {}, {}, "2 sites, but the federation has 3 clients"),
    "data": ({}, {"holds": None}, {}, "data.holds: got None; expected public"),
    "payload": ({}, {}, {"algorithm": Scaffold()}, "keeps nothing between rounds"),
    "optimizer": (
        {"names": ["a"]},
        {"num_clients": 1},
        {"algorithm": Centralized(), "clients": {"resnet8": 1}},
        "keeps nothing between rounds",
    ),
    "own entries": ({}, {}, {"algorithm": FedBN()}, "keeps nothing between rounds"),
    "plan": ({}, {}, {"algorithm": FedClassMeans()}, "set scoring.dimensions"),
    "pins": (
        {},
        {},
        {"algorithm": FedClassMeans(privacy=Privacy(1.0, secure=SecureSums(pins={"a": "key"})))},
        "privacy.secure.pins has no pin of b, c: let each site run fedaux-pl sites pin",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_run_over_sites_is_refused(case, tmp_path):
    names, own, options, words = WRONG[case]
    settings = Sites(**{"names": ["a", "b", "c"], "certificates": tmp_path, **names})
    data = FederatedDataModule(FewDigits(), **({"num_clients": 3, "holds": "public"} | own))
    sgd = LocalTraining(batch_size=16, optimizer="sgd")
    with pytest.raises(ConfigurationError, match=words):
        attach(create(**({"local": sgd} | options)), data, settings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"names": ["a", "a"]}, "expected to be different"),
        ({"names": ["server"]}, "not 'server'"),
        ({"names": ["a.b"]}, "letters, digits"),
        ({"names": ["a"], "min_answers": 2}, "min_answers: got .*; expected to lie in 1 ... 1"),
        ({"names": ["a"], "timeout": 0}, "timeout: got .*; expected to be positive"),
        ({"names": ["a"], "wait": -1}, "wait: got .*; expected to be at least 0"),
        ({"names": []}, "one or more"),
        ({"names": ["--"]}, "letters, digits"),
        ({"names": ["a" * 64]}, "at most 63"),
    ],
)
def test_wrong_settings_of_sites(options, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        Sites(certificates=tmp_path, **options)


def test_noise_is_secret_unless_it_is_a_rehearsal(tmp_path):
    settings = Sites(["a", "b", "c"], tmp_path)
    data = FederatedDataModule(Given(), holds="public", num_clients=3)
    federation = create(copy.deepcopy(AUX))
    attach(federation, data, settings)
    assert federation.algorithm.secret_noise


def test_status_says_who_is_there(plain, tmp_path, capsys):
    federation, data, hub = plain
    hub.away = {"site-1"}
    fit(tmp_path, federation, data, rounds=1)
    path = tmp_path / "server" / "sites.json"
    content = json.loads(path.read_text())
    content["sites"]["site-0"] |= {"connected": True, "since": 0.0}
    path.write_text(json.dumps(content))
    capsys.readouterr()
    assert main(["sites", "status", f"--root={tmp_path / 'server'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "runs" in lines[0]
    assert lines[1].startswith("site-0  connected")
    assert lines[1].endswith("last round 1")
    assert lines[2].startswith("site-1  not connected")
    assert lines[2].endswith("none yet")
    assert main(["sites", "status", f"--root={tmp_path}"]) == 1
    assert "there is no" in capsys.readouterr().err


def test_sites_that_all_diverge_end_the_run(tmp_path):
    """Their training is seeded: asking again gives the same."""
    steep = LocalTraining(batch_size=16, optimizer="sgd", lr=1e30)
    method = images(FedAvg(), {"resnet8": 2}, local=steep)
    federation, data, hub = prepare(tmp_path, method, split(2, auxiliary=None))
    message = r"site-0: diverged, site-1: diverged\): lower local.lr .*which is 1e\+30"
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, federation, data, rounds=1)
    assert [answer.fields.get("code") for answer in hub.sent] == ["diverged"] * 2


@pytest.mark.parametrize("server", ["localhost", "localhost:abc", "https://localhost:8402"])
def test_the_server_of_a_site_has_a_port(tmp_path, capsys, server):
    pytest.importorskip("nvflare")
    args = ["--config=quickstart", f"--server={server}", f"--certificates={tmp_path}"]
    assert main(["site", *args]) == 1
    assert f"server: got {server}; expected HOST:PORT" in capsys.readouterr().err


def test_wrong_command_lines_of_sites(tmp_path, capsys):
    assert main(["sites", "statsu"]) == 1
    assert "sites: got statsu (did you mean status?); expected init, status or pin" in (
        capsys.readouterr().err
    )
    assert main(["sites", "init", "--server=host:8402", "--sites=a,b"]) == 2
    assert "server: got 'host:8402'; expected to be a host name" in capsys.readouterr().err
    init = ["sites", "init", "--server=host", f"--folder={tmp_path / 'sites'}"]
    assert main([*init, "--sites=a,host"]) == 2
    assert "host: got 'host'; expected to differ from the names of sites" in capsys.readouterr().err
    assert main([*init, "--sites=a,b"]) == 0
    assert "nvflare provision -p" in capsys.readouterr().out
    assert main([*init, "--sites=a,b"]) == 1  # keeps what is there
    assert "exists: choose another --folder" in capsys.readouterr().err

"""What a site answers, and what it refuses."""

import math
import os
import re
import shutil
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torchvision
from safetensors.torch import load

from fedaux_pl.algorithms import FedAUX, FedAvg
from fedaux_pl.data import Digits
from fedaux_pl.data.fingerprints import key_id, machine_key
from fedaux_pl.errors import ConfigurationError, DataError
from fedaux_pl.federation.pretraining import H0Source
from fedaux_pl.federation.public_features import PublicFeatures
from fedaux_pl.scoring import Logistic, Mean, MeanScoring, Privacy, Whitened, spent
from fedaux_pl.sites import Limits
from fedaux_pl.sites.codes import CODES
from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.journal import Journal
from fedaux_pl.sites.ledger import Ledger
from fedaux_pl.sites.wire import (
    Message,
    RefusalError,
    read_message,
    read_number,
    write_tensors,
)
from tests.federations import create, split
from tests.paper import Parts
from tests.sites.loopback import apart, fit, limit, prepare, start_site
from tests.sites.test_same_results import METHODS, TWO, images

AUX = FedAUX(scoring=MeanScoring(dimensions=8), privacy=Privacy(1.0))
SECRET = Limits()


def first_request(root, federation, data, hub):
    """Runs a round; site 0 and the first request that it has answered."""
    seen = []
    hub.faults["site-0"] = lambda answer, request: seen.append(request) or answer(request)
    fit(root, federation, data, rounds=1)
    return hub.sites["site-0"], seen[0]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A site of FedAVG and a request that it answers."""
    root = tmp_path_factory.mktemp("plain")
    three = images(FedAvg(), {"resnet8": 3})
    return first_request(root, *prepare(root, three, split(3, auxiliary=None)))


def test_a_fit_as_a_site_runs_no_round_and_leaves_the_trainer_as_it_was(plain):
    federation = plain[0].federation
    assert (federation.history, federation.metrics) == ([], {})
    assert (federation.trainer.current_epoch, federation.trainer.max_epochs) == (0, 1)


def test_a_site_needs_no_published_weights(tmp_path, monkeypatch):
    """h_0 comes from the server, which may have it from a file."""

    def download(*_, **__):
        raise AssertionError("the site downloads weights")

    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", download)
    name = "torchvision/shufflenet_v2_x0_5"
    algorithm = FedAvg(pretrained=True)

    def federation():
        return create(algorithm, {name: 2}, model_options={"weights": "DEFAULT"})

    _, (data, _) = apart(split(2, private=Digits(size=32), auxiliary=None))
    site = start_site(federation, data, tmp_path / "a", Limits())
    assert name in site.federation.students


def use_new_journal(site, monkeypatch):
    """The journal of an hour in which nothing has happened."""
    monkeypatch.setattr(site, "journal", Journal())
    monkeypatch.setattr(site, "dispatcher", replace(site.dispatcher, journal=site.journal))


def changed(request, **fields):
    return Message({**request.fields, **fields}, request.body)


def other_agreement(request, **fields):
    return changed(request, agreement={**request.fields["agreement"], **fields})


REFUSED = {
    "more epochs": (lambda r: changed(r, epochs=21), "limits"),
    "no epochs": (lambda r: changed(r, epochs=0), "limits"),
    "a huge batch": (lambda r: changed(r, batch_size=4096), "limits"),
    "tiny batches": (lambda r: changed(r, batch_size=1), "limits"),
    "half an epoch": (lambda r: changed(r, epochs=0.5), "message"),
    "another method": (lambda r: other_agreement(r, algorithm={"method": "FedDF"}), "settings"),
    "other classes": (lambda r: other_agreement(r, classes=["cat", "dog"]), "settings"),
    "another format": (lambda r: other_agreement(r, format=2), "settings"),
    "no agreement": (lambda r: changed(r, agreement=None), "settings"),
    "an unknown client": (lambda r: changed(r, client=3), "message"),
    "a negative client": (lambda r: changed(r, client=-1), "message"),
    "something else": (lambda r: changed(r, kind="data"), "message"),
    "a head in FedAVG": (lambda r: changed(r, kind="prepare"), "settings"),
    "a cut message": (lambda r: Message(r.fields, r.body[:-100]), "message"),
    "a pickle": (lambda r: Message(r.fields, b"\x80\x04\x95"), "message"),
    "other tensors": (lambda r: Message(r.fields, write_tensors({"w": torch.ones(2)})), "message"),
    "nothing": (lambda r: Message({}), "settings"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_site_refuses_by_a_code_alone(case, plain, capsys):
    site, request = plain
    change, code = REFUSED[case]
    answer = site.answer(change(request))
    assert answer.fields["code"] == code
    assert code in CODES
    version = {"version"} if code == "settings" else set()
    assert answer.fields.keys() == {"request", "code"} | version
    assert answer.body == b""
    assert "NOT answered" in capsys.readouterr().out  # the reason stays here


@pytest.mark.parametrize(
    ("error", "code"), [(DataError, "failed"), (FloatingPointError, "diverged")]
)
def test_no_exception_text_leaves_a_site(plain, monkeypatch, capsys, error, code):
    site, request = plain

    def fail(*_):
        raise error("patient 4711 in /secret/path")

    monkeypatch.setattr(type(site.federation.pool), "train", fail)
    answer = site.answer(request)
    assert answer.fields == {"request": request.fields["request"], "code": code}
    assert "patient 4711" in capsys.readouterr().out


def test_the_server_may_ask_for_epochs_within_the_limits(plain):
    site, request = plain
    one, two = (site.answer(changed(request, epochs=e)) for e in (1, 2))
    assert "code" not in two.fields
    assert one.body != two.body
    assert site.answer(changed(request, epochs=1)).body == one.body


@pytest.mark.parametrize(
    "fields",
    [
        *("{", "[]", "3", None, b"{}", "[" * 100_000, '"' + "x" * 2**20 + '"'),
        '{"request": ' + "[" * 500 + "]" * 500 + "}",
        '{"agreement": ' + '{"a": ' * 500 + "1" + "}" * 501,
    ],
)
def test_plain_values_of_a_message_are_checked(fields):
    with pytest.raises(RefusalError):
        read_message(fields, b"")


@pytest.mark.parametrize("value", [None, True, "1", -1, 11, math.nan, math.inf, 10**400])
def test_numbers_of_a_message_are_checked(value):
    assert read_number({"bound": 1}, "bound", 0, 10) == 1
    with pytest.raises(RefusalError, match="bound must be a finite number from 0 to 10"):
        read_number({"bound": value}, "bound", 0, 10)
    if value not in (-1, 11):
        with pytest.raises(RefusalError, match="finite"):
            read_number({"bound": value}, "bound", 0, math.inf)


def test_a_server_cannot_fill_the_journal_of_a_site(plain, monkeypatch, capsys):
    """By refused requests, with answered ones between them."""
    site, request = plain
    use_new_journal(site, monkeypatch)
    monkeypatch.setattr("fedaux_pl.sites.journal.time.monotonic", lambda: 0.0)
    site.dispatcher.journal._begin_hour()
    reply = Reply({}, b"", "a model update")
    monkeypatch.setitem(site.handlers, "train", SimpleNamespace(answer=lambda *_: reply))
    for number in range(3000):
        assert site.answer(changed(request, client=-number - 1)).fields["code"] == "message"
        assert "code" not in site.answer(request).fields
    lines = capsys.readouterr().out.splitlines()
    refusals = [line for line in lines if "NOT answered" in line]
    assert len(refusals) == 100 + 5  # 128, 256, ... 2048
    assert "such lines in this hour" not in refusals[99]
    assert refusals[-1].endswith("(sent: only the code 'message') (2,048 such lines in this hour)")
    assert sum("sent: train, round 1" in line for line in lines) == 1000 + 2
    assert len(lines) == 105 + 1002 + 1000 + 3  # and what was asked


def test_invented_settings_make_no_long_line(plain, monkeypatch, capsys):
    site, request = plain
    use_new_journal(site, monkeypatch)
    invented = {f"a{number}": number for number in range(90_000)}
    for more in (invented, {"x" * 10**6: 1}, {"seed": "y" * 10**6}):
        other = other_agreement(request, **more, trained="other")
        assert site.answer(other).fields["code"] == "settings"
        *_, line = capsys.readouterr().out.splitlines()
        assert len(line) < 1500
        assert "trained is 'full' here" in line  # an invented setting hides no other one
    assert site.answer(other_agreement(request, **invented)).fields["code"] == "settings"
    assert "; and 89,990 more (sent: only the code" in capsys.readouterr().out


def test_failures_and_warnings_are_in_the_journal(plain, monkeypatch, capsys):
    site, request = plain
    use_new_journal(site, monkeypatch)

    def fail(*_):
        raise RuntimeError("x" * 10**5 + "\nsent: nothing")

    monkeypatch.setitem(site.handlers, "train", SimpleNamespace(answer=fail))
    for _ in range(200):
        assert site.answer(request).fields["code"] == "failed"
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert told.err == ""
    assert "fail" in "".join(lines)
    assert len(lines) < 1500
    assert all(len(line) < 1100 for line in lines)

    def serve(answer, largest):
        for number in range(2000):
            warnings.warn(f"{number} of 2000 private records", stacklevel=1)

    monkeypatch.setattr(site, "serve", serve)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        site.run()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("warning: 0 of 2000 private records")
    assert len(lines) == 1001


def test_server_and_sites_ping_each_other(monkeypatch, tmp_path):
    """Otherwise a site waits for TCP, up to 15 minutes, where a server is gone without a word."""
    pytest.importorskip("nvflare")
    from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver

    from fedaux_pl.sites import transport

    monkeypatch.setattr(transport, "Cell", lambda **_: None)
    monkeypatch.setattr(transport.os, "environ", dict(os.environ))
    for file in ("rootCA.pem", "server.crt", "server.key"):
        (tmp_path / file).touch()
    for _ in range(2):
        transport._create_cell("server", "grpcs://localhost:1", tmp_path, "server", 2**20)
    names = [name for name, _ in GrpcDriver().options]
    assert names.count("grpc.keepalive_time_ms") == names.count("grpc.keepalive_timeout_ms") == 1
    assert "grpc.max_receive_message_length" in names
    # otherwise gRPC takes them for abuse, and ends the connection of a site that waits or trains
    assert GrpcDriver().options.count(("grpc.http2.max_ping_strikes", 0)) == 1


def test_a_site_whose_loop_ends_ends(monkeypatch, tmp_path, capsys):
    """Otherwise the threads of the transport stay connected, and nobody answers."""
    pytest.importorskip("nvflare")
    from fedaux_pl.sites import transport

    core = SimpleNamespace(add_incoming_filter=lambda *_: None)
    core.set_cell_connected_cb = core.set_cell_disconnected_cb = lambda _: None
    cell = SimpleNamespace(core_cell=core, get_fqcn=lambda: "site-0")
    asked = SimpleNamespace(get_header=lambda _: "{}", payload=b"")
    cell.register_request_cb = lambda cb, **_: setattr(cell, "start", lambda: cb(asked))
    monkeypatch.setattr(transport, "_create_cell", lambda *_: cell)
    monkeypatch.setattr(transport.signal, "signal", lambda *_: None)
    monkeypatch.setattr(transport.os, "_exit", sys.exit)

    def fail(message):
        raise RecursionError("as str() of a nested list")

    with pytest.raises(SystemExit, match="1"):
        transport.serve("site-0", "localhost:1", tmp_path, 2**20, fail, 2**20)
    assert "ended by an error" in capsys.readouterr().out


# --- releases ----------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return lambda: Ledger(key_id(machine_key()))


def secret(root, method=AUX, limits=SECRET, **options):
    """The server's federation and data, and the hub, with noise that is secret."""
    three = images(method, {"resnet8": 3})
    return prepare(root, three, split(3), limits=limits, rehearsal=False, **options)


def released(root, method=AUX, limits=SECRET):
    federation, data, _ = secret(root, method, limits)
    fit(root, federation, data, rounds=1)
    return federation


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """A finished run, and its folder with the ledger of the sites."""
    root = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(root / "state"))
        return released(root), root


@pytest.fixture
def after_first(first_run, ledger, tmp_path):
    """That run, with its folder copied to that of the test."""
    first, root = first_run
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    assert len(ledger().entries()) == 3  # one a site, on its own disk
    return first


def test_a_site_answers_a_second_request_with_the_same_head(after_first, tmp_path, ledger):
    assert all(head.release.is_private for head in after_first.heads)
    again = released(tmp_path)
    assert len(ledger().entries()) == 3
    for one, other in zip(after_first.heads, again.heads, strict=True):
        assert torch.equal(one.weight, other.weight)
    assert "is (epsilon 1, delta 1e-05)-private" in again.privacy()[0]


def test_a_restarted_server_sends_what_it_sent_before(tmp_path, ledger, monkeypatch):
    """Without its cache, and with threads that round in another way; with negatives, too."""
    scoring = Parts(Logistic(0.1), Whitened(dimensions=8), norm_bound="unit")
    method = FedAUX(scoring=scoring, privacy=Privacy(1.0))
    released(tmp_path, method)
    shutil.rmtree(tmp_path / "server" / "cache")
    for owner, name in ((H0Source, "_learn"), (PublicFeatures, "auxiliary")):
        monkeypatch.setattr(owner, name, rounded(getattr(owner, name)))
    assert len(released(tmp_path, method).heads) == len(ledger().entries()) == 3


def rounded(function):
    def changed(*args):
        result = function(*args)
        if isinstance(result, dict):
            return {key: value * (1 + 1e-6) for key, value in result.items()}
        return result * (1 + 1e-6)

    return changed


def test_a_release_for_another_h0_alone_needs_an_explicit_yes(
    tmp_path, ledger, capsys, monkeypatch
):
    site, request = first_request(tmp_path, *secret(tmp_path))
    tensors = load(request.body)
    tensors["h0/conv1.weight"] *= 1 + 1e-6
    other = Message(request.fields, write_tensors(tensors))
    limit(site, epsilon_limit=2.0)
    with monkeypatch.context() as patch:
        patch.setattr(type(site.federation.pool), "release", None)  # nothing is computed
        assert site.answer(other).fields["code"] == "budget"
    told = capsys.readouterr().out
    assert "--allow_new_h0 true, which costs epsilon 1 again" in told
    assert f"about these data ({ledger().entries()[0].describe()}), but the server" in told
    limit(site, allow_new_h0=True)
    assert site.answer(other).fields["code"] == "budget"
    assert "above the epsilon_limit 1" in capsys.readouterr().out
    assert len(ledger().entries()) == 3
    limit(site, epsilon_limit=2.0, allow_new_h0=True)
    assert "code" not in site.answer(other).fields
    assert len(ledger().entries()) == 4
    assert "code" not in site.answer(request).fields  # the first one is there, too
    assert len(ledger().entries()) == 4


@pytest.mark.filterwarnings("ignore:.*private records have features")
def test_a_server_learns_nothing_by_letting_features_overflow(tmp_path, ledger):
    """Whether a site fails would be a free answer about its largest features."""
    federation, data, hub = secret(tmp_path)

    def overflow(answer, request):
        tensors = load(request.body)
        if request.fields["kind"] == "prepare":
            tensors["map/directions"].fill_(1.7e308)
        return answer(Message(request.fields, write_tensors(tensors)))

    hub.faults["site-0"] = overflow
    fit(tmp_path, federation, data, rounds=1)
    assert [head.client for head in federation.heads] == [0, 1, 2]
    assert len(ledger().entries()) == 3  # this one costs what every release costs


def test_a_server_cannot_choose_a_map_that_makes_rows_long(tmp_path, ledger, capsys):
    """Features so small that their squares are 0 look shorter than any bound."""
    method = FedAUX(scoring=Parts(Mean(), Whitened(dimensions=8)), privacy=Privacy(1.0))
    federation, data, hub = secret(tmp_path, method)

    def shrink(answer, request):
        tensors = load(request.body)
        if request.fields["kind"] == "prepare":
            tensors["map/directions"].mul_(1e-200)
        return answer(Message({**request.fields, "bound": 1e-280}, write_tensors(tensors)))

    hub.faults["site-0"] = shrink
    fit(tmp_path, federation, data, rounds=1)
    assert [head.client for head in federation.heads] == [1, 2]
    assert len(ledger().entries()) == 2
    assert "expected to be finite and at least" in capsys.readouterr().out


def test_a_stored_release_with_too_little_noise_stays_at_its_site(tmp_path, ledger, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Mean, "sensitivity", lambda self, n, m: 1e-3)
        site, request = first_request(tmp_path, *secret(tmp_path))
    assert request.fields["kind"] == "prepare"
    again = site.answer(request)
    assert again.fields.keys() == {"request", "code"}
    assert len(ledger().entries()) == 3


def test_the_server_cannot_write_lines_into_the_journal_of_a_site(plain, monkeypatch, capsys):
    site, request = plain
    use_new_journal(site, monkeypatch)
    answer = site.answer(changed(request, kind="x\nsent: \ud800\x1b[2K"))
    assert answer.fields["code"] == "message"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_a_release_beyond_the_limit_is_refused(after_first, tmp_path, ledger, capsys):
    other = FedAUX(scoring=MeanScoring(dimensions=4), privacy=Privacy(1.0))  # needs a new release
    with pytest.raises(ConfigurationError, match="site-0: budget"):
        released(tmp_path, other)
    assert len(ledger().entries()) == 3
    last = ledger().entries()[0].describe()
    assert ", server HOST:1: the mean of its feature rows, epsilon 1" in last
    earlier = f"the ledger has 1 earlier release about these records, the last of {last} "
    text = "epsilon 1.465, above the epsilon_limit 1, of which epsilon 0 is left"
    assert f"{text}: {earlier}" in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match="site-0: budget"):
        released(tmp_path, other, Limits(epsilon_limit=1.4))
    [left] = {
        *re.findall("epsilon_limit 1.4, of which epsilon ([^ ]*) is", capsys.readouterr().out)
    }
    assert spent([Privacy(1.0).cost(1.0), Privacy(float(left)).cost(1.0)], 1e-5)[0] <= 1.4
    assert spent([Privacy(1.0).cost(1.0)] * 2, 1e-5)[0] > 1.4
    released(tmp_path, other, Limits(epsilon_limit=2.0))
    assert len(ledger().entries()) == 6
    assert "spent so far: epsilon 1.4" in capsys.readouterr().out


# --- a second release --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_run(tmp_path_factory):
    """A site after a run with two releases, the requests that it has answered, and the folder."""
    root, seen = tmp_path_factory.mktemp("two"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(root / "state"))
        federation, data, hub = secret(root, METHODS[TWO])
        hub.faults["site-0"] = lambda answer, request: seen.append(request) or answer(request)
        fit(root, federation, data, rounds=1)
    assert [len(step.heads) for step in federation.state.releases.values()] == [3, 3]
    return federation, hub, seen, root


@pytest.fixture
def two(two_run, ledger, tmp_path):
    """The first site, and its two requests; the limits and the ledger are those of the test."""
    _, hub, requests, root = two_run
    shutil.copytree(root / "state", tmp_path / "state")
    site = hub.sites["site-0"]
    limit(site)
    site.budget.ledger = ledger()
    return site, *requests


def with_tensors(request, change, **fields):
    tensors = load(request.body)
    change(tensors)
    return Message({**request.fields, **fields}, write_tensors(tensors))


def test_two_releases_cost_the_budget_of_one(two_run, two, tmp_path, ledger, capsys):
    federation, *_ = two_run
    assert "(epsilon 1, delta 1e-05)" in " ".join(federation.privacy())
    first, second = (entry.releases[0] for entry in ledger().entries()[::3])
    assert first.is_private
    assert first.what != second.what
    assert math.isclose(first.mu, second.mu)
    assert 1 - 1e-6 < spent([first, second], 1e-5)[0] <= 1
    again = released(tmp_path, METHODS[TWO])  # another server, the same releases
    assert len(ledger().entries()) == 6
    for one, other in zip(federation.state.all_heads, again.state.all_heads, strict=True):
        assert torch.equal(one.weight, other.weight)
    assert "spent so far: epsilon 1 in at most 2" in capsys.readouterr().out


def test_a_server_gets_the_gradient_of_one_classifier(two, ledger, capsys):
    site, _, second = two
    other = with_tensors(second, lambda t: t["sent/bias"].add_(1e-9))
    limit(site, epsilon_limit=2.0)
    assert site.answer(other).fields["code"] == "budget"
    assert "--allow_new_h0 true, which costs epsilon 0.6841 again" in capsys.readouterr().out
    limit(site, allow_new_h0=True)
    assert site.answer(other).fields["code"] == "budget"
    assert "above the epsilon_limit 1" in capsys.readouterr().out
    assert len(ledger().entries()) == 6
    limit(site, epsilon_limit=2.0, allow_new_h0=True)
    assert "code" not in site.answer(other).fields
    assert "code" not in site.answer(second).fields  # as before
    assert len(ledger().entries()) == 7


def cut(name):
    return lambda tensors: tensors.update({name: tensors[name][:-1].clone()})


WRONG_SECOND = {
    "another h_0": (lambda t: t["h0/conv1.weight"].mul_(1.5), {}, "budget"),
    "fewer classes": (cut("sent/weight"), {}, "message"),
    "no bias": (lambda t: t.pop("sent/bias"), {}, "message"),
    "float32": (lambda t: t.update({"sent/bias": t["sent/bias"].float()}), {}, "message"),
    "NaN": (lambda t: t["sent/weight"].fill_(math.nan), {}, "diverged"),
    "logits that overflow": (lambda t: t["sent/weight"].fill_(1.7e308), {}, "message"),
    "an unknown step": (lambda t: None, {"step": ["gradient"]}, "settings"),
    "no step of this method": (lambda t: None, {"step": "counts"}, "settings"),
    "a classifier for the first": (lambda t: None, {"step": "statistics"}, "message"),
}


@pytest.mark.parametrize("case", WRONG_SECOND)
def test_a_wrong_second_request_is_refused(case, two, ledger):
    site, _, second = two
    change, fields, code = WRONG_SECOND[case]
    limit(site, epsilon_limit=9.0, allow_new_h0=True)
    assert site.answer(with_tensors(second, change, **fields)).fields["code"] == code
    assert len(ledger().entries()) == 6


def test_the_second_release_follows_the_first(two, tmp_path, ledger, capsys):
    site, first, second = two
    shutil.rmtree(tmp_path / "state" / "fedaux_pl" / "ledger")
    assert site.answer(second).fields["code"] == "budget"
    assert "the ledger does not have the first one" in capsys.readouterr().out
    assert "code" not in site.answer(first).fields
    assert "code" not in site.answer(second).fields
    assert len(ledger().entries()) == 2


def test_one_release_allows_no_second(two):
    site, _, second = two
    first = {"statistics": site.federation.plan["statistics"]}
    site.handlers["prepare"] = replace(site.handlers["prepare"], plan=first)
    assert site.answer(second).fields["code"] == "settings"


def test_each_architecture_has_its_own_classifier(tmp_path, ledger):
    mixed = images(METHODS[TWO], {"resnet8": 2, "shufflenet": 1})
    federation, data, _ = prepare(tmp_path, mixed, split(3), limits=SECRET, rehearsal=False)
    fit(tmp_path, federation, data, rounds=1)
    [_, one, other] = (step.step.scorer for step in federation.state.releases.values())
    assert not torch.equal(one.weight, other.weight)
    assert len(ledger().entries()) == 6


def test_a_site_may_allow_the_first_release_alone(tmp_path, ledger):
    federation = released(tmp_path, METHODS[TWO], Limits(epsilon_limit=0.7))
    assert [len(step.heads) for step in federation.state.releases.values()] == [3, 0]
    assert len(ledger().entries()) == 3


def test_no_noise_at_all_is_refused_unless_the_limit_is_infinite(tmp_path, ledger):
    bare = FedAUX(scoring=MeanScoring(dimensions=8), privacy=Privacy(None))
    with pytest.raises(ConfigurationError, match="budget"):
        released(tmp_path, bare)
    released(tmp_path, bare, Limits(epsilon_limit=math.inf))


def test_a_full_disk_releases_nothing(tmp_path, ledger, monkeypatch, capsys):
    federation, data, hub = secret(tmp_path, min_answers=2)
    answer = hub.sites["site-1"].answer

    def full(path, write, private, exclusive):
        raise OSError(28, "No space left on device")

    def on_a_full_disk(_, request):
        with monkeypatch.context() as patch:
            patch.setattr("fedaux_pl.sites.ledger.write_atomically", full)
            return answer(request)

    hub.faults["site-1"] = on_a_full_disk
    fit(tmp_path, federation, data, rounds=1)
    assert [head.client for head in federation.heads] == [0, 2]
    assert "its disk is full or not writable (code storage)" in capsys.readouterr().out
    assert len(ledger().entries()) == 2
    assert not any(b"space" in message.body for message in hub.sent)


def test_a_site_that_is_no_rehearsal_refuses_seeded_noise(tmp_path, capsys):
    federation, data, _ = prepare(
        tmp_path, images(AUX, {"resnet8": 3}), split(3), limits=SECRET, rehearsal=True
    )
    with pytest.raises(ConfigurationError, match="site-0: settings"):
        fit(tmp_path, federation, data)
    assert "secret_noise is True here, False at the server" in capsys.readouterr().out


def test_a_site_may_lack_classes_and_has_no_other_data():
    _, [first, *_] = apart(split(3, alpha=0.01))
    first.setup()
    assert len(first.classes) == 10
    assert not first.has_auxiliary
    with pytest.raises(DataError, match="they are at the server"):
        _ = first.test_examples


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon_limit": 0.0}, "epsilon_limit: got .*; expected to be a positive number"),
        ({"max_epochs": 0}, "max_epochs: got 0; expected to be at least 1"),
        ({"min_batch_size": 0}, "max_batch_size: got .* to be at least 1 and in this order"),
        (
            {"min_batch_size": 8, "max_batch_size": 4},
            "max_batch_size: got .*; expected to be at least 1 and in this order",
        ),
    ],
)
def test_wrong_limits(options, words):
    with pytest.raises(ValueError, match=words):
        Limits(**options)

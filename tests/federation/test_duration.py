"""What a run says about its duration on a CPU, with a clock that the tests set."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from fedaux_pl.algorithms import FedAUX, FedAvg
from fedaux_pl.federation import duration
from tests.federations import assert_same, run, weights


@pytest.fixture
def seconds_of_steps(monkeypatch):
    """Sets the seconds that all steps of one measurement take."""

    def set_seconds(seconds):
        clock = SimpleNamespace(perf_counter=itertools.count(0, seconds).__next__)
        monkeypatch.setattr(duration, "time", clock)

    return set_seconds


def note(capsys):
    lines = [line for line in capsys.readouterr().out.splitlines() if "on this CPU" in line]
    return lines[0] if lines else ""


def test_a_long_run_says_what_it_takes_before_it_starts(tmp_path, seconds_of_steps, capsys):
    seconds_of_steps(64_000)  # 1000 s for each of 32 samples
    run(tmp_path, FedAvg(), rounds=2)
    # a round trains the 64 samples of all clients and evaluates 40
    expected = "note: this run takes about 58 h on this CPU (29 h a round, by a few measured steps)"
    assert note(capsys) == f"{expected}; `fedaux-pl fit --config quickstart` takes a minute"


def test_pretraining_counts_until_h0_is_in_the_cache(tmp_path, seconds_of_steps, capsys):
    seconds_of_steps(64_000)
    run(tmp_path, FedAUX(), rounds=1)
    text = note(capsys)
    # 40 auxiliary samples, once
    assert "(11 h to learn h_0, 64 h a round" in text
    seconds_of_steps(64_000)
    run(tmp_path, FedAUX(), rounds=1)
    assert "h_0" not in note(capsys)


def test_a_short_run_says_nothing(tmp_path, seconds_of_steps, capsys):
    seconds_of_steps(0.01)
    run(tmp_path, FedAUX(), rounds=2)
    assert note(capsys) == ""


def test_the_measurement_changes_nothing(tmp_path, seconds_of_steps, monkeypatch):
    seconds_of_steps(64_000)
    torch.manual_seed(1)
    measured = run(tmp_path / "one", FedAUX(), rounds=1)
    state = torch.get_rng_state()
    monkeypatch.setattr(duration, "describe_duration", lambda *_, **__: None)
    torch.manual_seed(1)
    plain = run(tmp_path / "other", FedAUX(), rounds=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(weights(measured), weights(plain))


def test_features_of_a_fixed_h_count_once(tmp_path, seconds_of_steps, capsys):
    seconds_of_steps(6_400)
    run(tmp_path, FedAvg(), rounds=2, trained="head")
    # h(x) of 64 + 40 samples; a round trains 64 and evaluates 40
    assert "about 9 h on this CPU (3 h for features, 3 h a round" in note(capsys)

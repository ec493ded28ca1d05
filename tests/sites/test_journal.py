"""The journal of a site, which no server can fill."""

import pytest

from fedaux_pl.sites import journal as module
from fedaux_pl.sites.journal import Journal


@pytest.fixture
def clock(monkeypatch):
    """The seconds of a clock that a test moves."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_an_honest_day_is_printed_line_by_line(clock, capsys):
    journal = Journal()
    for number in range(24 * 900):  # a round of 4 s, and a connection that breaks now and then
        clock[0] = 4.0 * number
        journal.log_line(f"asked: train, round {number}", "asked")
        journal.log_line(f"sent: train, round {number}", "sent: train")
        if number % 30 == 0:
            journal.log_line("the connection has ended", "connection")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 24 * 900 * 2 + 24 * 30
    assert not any("left out" in line or "such lines" in line for line in lines)


def test_a_flood_hides_neither_its_number_nor_other_kinds_nor_the_next_hour(clock, capsys):
    journal = Journal()
    for number in range(5000):
        journal.log_line(f"NOT answered: {number}", "NOT answered")
        journal.log_line(f"sent: keys, {number}", "sent: keys")
    journal.log_line("sent: masked", "sent: masked")
    lines = [line[20:] for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 100 + 6 + 1000 + 3 + 1  # 128 to 4096, and 1024 to 4096
    assert "NOT answered: 4095 (4,096 such lines in this hour)" in lines
    assert lines[-1] == "sent: masked"
    clock[0] = 3600.0
    journal.log_line("NOT answered: the next hour", "NOT answered")
    assert [line[20:] for line in capsys.readouterr().out.splitlines()] == [
        "left out before: 4,894 lines 'NOT answered'",
        "left out before: 3,997 lines 'sent: keys'",
        "NOT answered: the next hour",
    ]


def test_a_long_line_keeps_both_ends(capsys):
    Journal().log_line("sent: " + "\U0001f600" * 10**5 + "\nepsilon 1", "sent: masked")
    [line] = capsys.readouterr().out.splitlines()
    assert len(line) < 1100
    assert line.isascii()
    assert line[20:].startswith("sent: \\U0001f600")
    assert "characters left out]" in line
    assert line.endswith(r"\nepsilon 1")

"""The table of sites: also of files that no server has written, or not to the end."""

import json

import pytest

from fedaux_pl.cli.entry import main
from fedaux_pl.sites.site_status import SiteStatus

SITE = {"connected": True, "since": 0.0, "last_round": 1, "last_code": None}
WHOLE = {"pid": 1, "updated": 0.0, "sites": {"a": SITE}}


def changed(**values):
    return json.dumps(WHOLE | {"sites": {"a": SITE | values}})


FOREIGN = {
    "nothing": "",
    "a cut file": json.dumps(WHOLE)[:50],
    "null": "null",
    "a list": "[1, 2]",
    "a text": '"sites"',
    "other names": '{"name": "other"}',
    "no sites": json.dumps(WHOLE | {"sites": {}}),
    "a list of sites": json.dumps(WHOLE | {"sites": ["a"]}),
    "a site that is a number": json.dumps(WHOLE | {"sites": {"a": 1}}),
    "a site without entries": json.dumps(WHOLE | {"sites": {"a": {}}}),
    "an impossible name": json.dumps(WHOLE | {"sites": {"\x1b[2J": SITE}}),
    "a process that is a path": json.dumps(WHOLE | {"pid": "self"}),
    "NaN as a time": changed(since=float("nan")),
    "infinity as a time": json.dumps(WHOLE | {"updated": float("inf")}),
    "a time far away": changed(since=1e300),
    "a time that is a text": changed(since="now"),
    "a round that is a text": changed(last_round="\x1b[2J"),
    "an unknown code": changed(last_code="\x1b[2J"),
    "a code that is a list": changed(last_code=["busy"]),
    "an evaluation of one number": changed(evaluated=[3]),
    "an evaluation of a text": changed(evaluated=["\x1b[2J", None]),
    "an epsilon that is a text": changed(evaluated=[3, "1"]),
    "an unknown code of a vote": changed(voted="\x1b[2J"),
    "deep nesting": "[" * 100_000,
    "bytes": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("case", FOREIGN)
def test_the_status_of_a_foreign_file_is_one_line(case, tmp_path, capsys):
    content = FOREIGN[case]
    path = tmp_path / "sites.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["sites", "status", f"--root={tmp_path}"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    [line] = told.err.splitlines()
    assert f"{path} is not the status of a server of sites, or it is damaged" in line
    assert "give --root the default_root_dir of a run over sites" in line


def test_the_status_of_a_server(tmp_path, capsys):
    status = SiteStatus(tmp_path / "sites.json", ["north", "b"])
    status.write()
    status.change("north", connected=True, since=0.0, last_round=3, in_sum=True)
    status.change("north", evaluated=(20, None), voted=(10, 0.5))
    status.change("b", last_code="absent", evaluated="limits")
    assert main(["sites", "status", f"--root={tmp_path}"]) == 0
    first, north, other = capsys.readouterr().out.splitlines()
    assert "runs; last change 20" in first
    assert north.startswith("north  connected      since 19")
    assert north.endswith(
        "last round 3; in the secure sum; evaluates on 20 samples, NOT covered by epsilon; votes "
        "by 10 samples, epsilon 0.5 each time"
    )
    assert other == (
        "b      not connected  since never  last round none yet; evaluates nothing (code limits); "
        "last code absent"
    )

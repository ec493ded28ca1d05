"""Names by which a site could pose as the server, as another site, or replace a file."""

import pytest

from fedaux_pl.cli.entry import main
from fedaux_pl.sites import Sites
from fedaux_pl.sites.names import check_names, is_host, is_name

WRONG = {
    "the server's in another case": (["LOCALHOST", "b"], "localhost", "differ from the names of s"),
    "the other way round": (["localhost", "b"], "LocalHost", "differ from the names of sites"),
    "two sites in two cases": (["north", "North"], "host", "also if case is ignored, one or more"),
    "the server's on the transport": (["Server", "b"], "host", "not 'server' or 'profile'"),
    "a file of own_keys": (["profile", "b"], "host", "not 'server' or 'profile'"),
    "that file in another case": (["PROFILE", "b"], "host", "not 'server' or 'profile'"),
    "a server like that file": (["a", "b"], "profile", "not 'profile'"),
    "no server": (["a", "b"], "", "be a host name"),
    "a wildcard": (["a", "b"], "*", "be a host name"),
    "a wildcard in a domain": (["a", "b"], "*.example.org", "be a host name"),
    "white space": (["a", "b"], " host", "be a host name"),
    "a line end": (["a", "b"], "host\n", "be a host name"),
    "a dot at the end": (["a", "b"], "host.", "be a host name"),
    "two dots": (["a", "b"], "a..org", "be a host name"),
    "other folders": (["a", "b"], "../host", "be a host name"),
    "other letters": (["a", "b"], "\u212aelvin.org", "be a host name"),
    "no room in a certificate": (["a", "b"], "a." * 31 + "abc", "at most 64 characters"),
}


@pytest.mark.parametrize("case", WRONG)
def test_names_that_are_not_safe_together(case, tmp_path, capsys):
    names, host, words = WRONG[case]
    with pytest.raises(ValueError, match=words):
        check_names(names, host)
    with pytest.raises(ValueError, match=words):
        Sites(names, tmp_path, host=host)
    folder = tmp_path / "sites"
    init = ["sites", "init", f"--sites={','.join(names)}", f"--server={host}"]
    assert main([*init, f"--folder={folder}"]) == 2
    assert words in capsys.readouterr().err
    assert not folder.exists()


def test_names_that_are_safe():
    for host in ("localhost", "fl.example.org", "10.0.0.1", "server", "A-1.b", "a." * 31 + "ab"):
        assert is_host(host)
        check_names(["North", "south_2", "a-b"], host)
    assert is_name("a" * 63)
    assert not is_name("a" * 64)


def test_each_member_has_a_file_of_its_own(tmp_path):
    """Also on a file system that ignores case."""
    folder = tmp_path / "sites"
    assert main(["sites", "init", "--sites=a,b", "--server=fl.org", f"--folder={folder}"]) == 0
    files = [path.name.lower() for path in (folder / "own_keys").iterdir()]
    assert sorted(files) == ["a.yml", "b.yml", "fl.org.yml", "profile.yml"]

"""A site and a server of different versions refuse each other at the first message."""

import pytest

from fedaux_pl.algorithms import FedAvg
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.sites.agreement import differences
from fedaux_pl.sites.same_version import describe_difference, minor_version
from fedaux_pl.sites.wire import Message
from tests.federations import create, split
from tests.sites.loopback import fit, prepare


def fedavg():
    return create(FedAvg(), {"resnet8": 3})


def without_version(request):
    """The request as a server of version 1.0 sends it."""
    agreement = dict(request.fields["agreement"])
    del agreement["version"]
    return Message({**request.fields, "agreement": agreement}, request.body)


def test_the_older_side_is_to_be_updated():
    assert describe_difference(minor_version(), "this site", "the server") is None
    for theirs, words in (
        (None, "the server runs fedaux-pl 1.0 or an earlier version, .*: update the server"),
        (["2.0"], "the server runs fedaux-pl 1.0 or an earlier version, .*: update the server"),
        ("2.0; rm", "the server runs fedaux-pl 1.0 or an earlier version, .*: update the server"),
        ("99.1", "the server runs fedaux-pl 99.1, this site .*: update this site"),
    ):
        line = describe_difference(theirs, "this site", "the server")
        with pytest.raises(ValueError, match=words):
            raise ValueError(line)


def test_a_server_of_1_0_is_refused_before_anything_is_computed(tmp_path, capsys, monkeypatch):
    federation, data, hub = prepare(tmp_path, fedavg, split(3, auxiliary=None))
    pool = type(hub.sites["site-0"].federation.pool)
    monkeypatch.setattr(pool, "train", lambda *_: pytest.fail("trained"))
    for name in hub.sites:
        hub.faults[name] = lambda answer, request: answer(without_version(request))
    with pytest.raises(ConfigurationError, match="the same version of fedaux-pl and the same run"):
        fit(tmp_path, federation, data, rounds=1)
    printed = capsys.readouterr().out
    assert (
        "the server runs fedaux-pl 1.0 or an earlier version, this site 2.0: update th" in printed
    )


def test_a_site_of_1_0_refuses_the_settings_and_is_named(tmp_path, capsys):
    federation, data, hub = prepare(tmp_path, fedavg, split(3, auxiliary=None))
    site = hub.sites["site-0"]
    earlier = dict(site.agreement)
    del earlier["version"]

    def refuse(answer, request):
        """Compare settings as version 1.0 does, and answer with its code alone."""
        assert differences(earlier, request.fields["agreement"])
        return Message({"request": request.fields["request"], "code": "settings"})

    for name in hub.sites:
        hub.faults[name] = refuse
    with pytest.raises(ConfigurationError, match="site-0: settings"):
        fit(tmp_path, federation, data, rounds=1)
    printed = capsys.readouterr().out
    assert "the site runs fedaux-pl 1.0 or an earlier version, this server 2.0: update " in printed

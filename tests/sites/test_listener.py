"""How the server listens, and what both ends say of keys and certificates that do not fit."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.stats_pool import StatsPoolManager
from nvflare.lighter.utils import (
    Identity,
    generate_cert,
    generate_keys,
    serialize_cert,
    serialize_pri_key,
)

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.sites import Sites, listener, tls
from fedaux_pl.sites.certificates import check_certificate
from fedaux_pl.sites.kit import find_credentials
from fedaux_pl.sites.listener import HandshakeWatch, local_addresses
from fedaux_pl.sites.site_status import SiteStatus
from fedaux_pl.sites.tls import Silence, explain_silence, has_own_certificate
from fedaux_pl.sites.transport import ServerTransport
from tests.sites.processes import free_port, provision
from tests.test_pages import ROOT

DAY = timedelta(days=1)
TIMES = {"expired": (-10 * DAY, -DAY), "not yet valid": (DAY, 10 * DAY)}


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """The kits of a server and two sites."""
    return provision(tmp_path_factory.mktemp("federation") / "sites", ["site-0", "site-1"], 8402)


def other_certificate(kits, folder, kind, name="site-0", side="client"):
    """A copy of a kit whose certificate is of another time, or signed by another root key."""
    kit = folder / kind.replace(" ", "-")
    shutil.copytree(kits / name / "startup", kit)
    state = json.loads((kits.parent / "state" / "cert.json").read_text())
    root = load_pem_private_key(state["root_pri_key"].encode(), None)
    if kind == "foreign":
        root, _ = generate_keys()
    key, public = generate_keys()
    now = datetime.now(UTC)
    start, end = TIMES.get(kind, (-DAY, DAY))
    certificate = generate_cert(
        Identity(name, "fedaux"),
        Identity("fedaux"),
        root,
        public,
        not_valid_before=now + start,
        not_valid_after=now + end,
    )
    (kit / f"{side}.crt").write_bytes(serialize_cert(certificate))
    (kit / f"{side}.key").write_bytes(serialize_pri_key(key))
    return kit


@pytest.fixture
def transport(kits, tmp_path, monkeypatch):
    """A function that makes the transport of a server."""
    for name in ("MAX_BLOB_SIZE", "CHUNK_SIZE", "RETRY_TIMEOUT"):
        monkeypatch.setenv(f"NVFLARE_STREAMING_{name}", "")
    for name in ("NVFLARE_MAX_MESSAGE_SIZE", "NVFLARE_ALLOW_ADHOC_CONNS"):
        monkeypatch.setenv(name, "")

    def make(port, kit=kits / "localhost"):
        # a process has one cell of NVFlare with this name, and this one has those of earlier tests
        monkeypatch.setattr(CoreCell, "ALL_CELLS", {})
        monkeypatch.setattr(StatsPoolManager, "pools", {})
        sites = Sites(["site-0", "site-1"], kit, port=port, host="localhost")
        return ServerTransport(sites, SiteStatus(tmp_path / "sites.json", sites.names))

    return make


@contextlib.contextmanager
def listening(host, port, shared=True):
    """Somebody else on a port, who lets others share it, as gRPC does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
        other.bind((host, port))
        other.listen()
        yield


def has_ipv6():
    with socket.socket(socket.AF_INET6) as one:
        try:
            one.bind(("::1", 0))
        except OSError:
            return False
    return True


ADDRESSES = ["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_server_does_not_share_its_port(address, transport, tmp_path, capsys):
    """Not even one of the addresses of its host: the sites would be split."""
    port = free_port()
    message = rf"cannot listen on localhost:{port} \(\[Errno 98\] another process listens on "
    with listening(address, port), pytest.raises(ConfigurationError, match=message):
        transport(port).__enter__()
    assert "listening" not in capsys.readouterr().out
    assert not (tmp_path / "sites.json").exists()  # that of the other server stays
    everywhere = "0.0.0.0"  # noqa: S104 - the test of this
    with listening(everywhere, port), pytest.raises(ConfigurationError, match=message):
        transport(port).__enter__()


def test_a_port_that_is_taken_at_the_last_moment_is_not_shared_either(
    transport, monkeypatch, capsys
):
    port = free_port()
    monkeypatch.setattr(listener, "_try_to_bind", lambda *_: None)
    message = r"\[Errno 98\] gRPC cannot listen on 127.0.0.1"
    with listening("127.0.0.1", port), pytest.raises(ConfigurationError, match=message):
        transport(port).__enter__()
    assert "listening" not in capsys.readouterr().out


def test_it_listens_once_all_addresses_answer_by_tls(transport, kits, tmp_path, capsys):
    port = free_port()
    files = find_credentials(kits / "localhost", "server")
    assert not has_own_certificate("localhost", port, files)
    with transport(port):
        out = capsys.readouterr().out
        assert f"sites: listening on localhost:{port} (127.0.0.1:{port}" in out
        assert json.loads((tmp_path / "sites.json").read_text())["pid"] == os.getpid()
        for address in ADDRESSES:
            assert has_own_certificate(address, port, files)
        with pytest.raises(OSError, match="in use"), listening("127.0.0.1", port):
            pass  # nobody can come later either
    assert not has_own_certificate("localhost", port, files)


def test_a_port_without_tls_is_not_listening(transport, monkeypatch, capsys):
    monkeypatch.setattr("fedaux_pl.sites.transport.has_own_certificate", lambda *_: False)
    monkeypatch.setattr("fedaux_pl.sites.transport._START", 1.0)
    with pytest.raises(ConfigurationError, match=r"nothing answers by TLS on 127\.0"):
        transport(free_port()).__enter__()
    assert "listening" not in capsys.readouterr().out


def test_addresses_of_a_host(monkeypatch):
    port = free_port()
    assert local_addresses("127.0.0.1", port) == [f"127.0.0.1:{port}"]
    assert f"127.0.0.1:{port}" in local_addresses("LocalHost", port)
    elsewhere = [
        (socket.AF_INET, 1, 6, "", (number, port)) for number in ("192.0.2.1", "127.0.0.1")
    ]
    monkeypatch.setattr(listener, "_resolve", lambda *_: elsewhere)
    assert local_addresses("host", port) == [f"127.0.0.1:{port}"]  # the other is no address here
    monkeypatch.setattr(listener, "_resolve", lambda *_: elsewhere[:1])
    with pytest.raises(OSError, match="assign requested address"):
        local_addresses("host", port)


# --- certificates --------------------------------------------------------------------------------


DAMAGE = {
    "another key": "is not the key of {side}.crt beside it",
    "expired": r"{side}.crt has expired on 20..-..-.. ..:.. UTC: provision again",
    "not yet valid": r"{side}.crt is valid only from .* on: set the clock",
    "foreign": "{side}.crt is not signed by rootCA.pem beside it, so it is of another federation",
    "no certificate": "{side}.crt cannot be read",
    "no key": "{side}.key cannot be read",
}


@pytest.mark.parametrize(("name", "side"), [("localhost", "server"), ("site-0", "client")])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_kit_that_nobody_can_accept_is_refused_at_once(kind, name, side, kits, tmp_path):
    check_certificate(kits / name, side)
    kit = tmp_path / "kit"
    if kind in TIMES or kind == "foreign":
        kit = other_certificate(kits, tmp_path, kind, name, side)
    else:
        shutil.copytree(kits / name / "startup", kit)
    if kind == "another key":
        (kit / f"{side}.key").write_bytes((kits / "site-1/startup/client.key").read_bytes())
    elif kind.startswith("no "):
        (kit / f"{side}.{'crt' if 'cert' in kind else 'key'}").write_text("nothing")
    with pytest.raises(ConfigurationError, match=DAMAGE[kind].format(side=side)):
        check_certificate(kit, side)


def test_a_server_with_another_key_does_not_start(transport, kits, tmp_path):
    kit = tmp_path / "kit"
    shutil.copytree(kits / "localhost" / "startup", kit)
    shutil.copy(kits / "site-1" / "startup" / "client.key", kit / "server.key")
    with pytest.raises(ConfigurationError, match=r"is not the key of server\.crt"):
        transport(free_port(), kit)


@pytest.fixture
def said(monkeypatch):
    """What the server says, whose patience with handshakes is short."""
    lines = []
    monkeypatch.setattr("fedaux_pl.sites.transport.log_line", lines.append)
    monkeypatch.setattr(listener, "_HANDSHAKE", 0.2)
    return lines


def wait_for(is_there):
    end = time.monotonic() + 60
    while not is_there():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["expired", "not yet valid", "foreign"])
def test_both_ends_say_that_a_certificate_is_not_accepted(kind, transport, kits, tmp_path, said):
    """A site whose clock is wrong, or that does not check itself."""
    port = free_port()
    files = find_credentials(other_certificate(kits, tmp_path, kind), "client")
    good = find_credentials(kits / "site-0", "client")
    with transport(port):
        assert explain_silence("localhost", port, good) is None
        refusal = f"the server at localhost:{port} does not accept the certificate of this site"
        assert explain_silence("localhost", port, files).startswith(refusal)
        words = "refused: the certificate has expired, is of another federation, or"
        wait_for(lambda: any(words in line for line in said))


def test_a_site_says_why_it_has_no_server(transport, kits, tmp_path):
    port = free_port()
    good = find_credentials(kits / "site-0", "client")
    assert explain_silence("localhost", port, good) == (
        f"no server answers at localhost:{port} ([Errno 111] Connection refused): it may not have "
        "started yet"
    )
    assert "no server answers at nowhere.invalid:1" in explain_silence("nowhere.invalid", 1, good)
    other = provision(tmp_path / "other", ["site-0", "site-1"], port)
    with transport(port):
        reason = explain_silence("127.0.0.1", port, good)
        assert "this site does not accept the certificate of the server" in reason
        assert "IP address mismatch" in reason
        foreign = find_credentials(other / "site-0", "client")
        assert "unable to get local issuer" in explain_silence("localhost", port, foreign) or (
            "self-signed" in explain_silence("localhost", port, foreign)
        )


def test_connections_without_a_certificate_are_counted(monkeypatch):
    lines = []
    watch = HandshakeWatch(lines.append)
    monkeypatch.setattr(watch, "_wait", lambda: None)
    watch.expected = 1
    for _ in range(3):
        watch.begin()
    watch.accept()
    watch.look(2)  # the third one has just begun
    assert not lines
    watch.look(3)
    watch.look(3)
    assert len(lines) == 1
    assert lines[0].startswith("a connection was refused: the certificate has expired, is of")
    for number in range(1000):
        watch.begin()
        watch.begin()
        watch.look(3 + 2 * (number + 1))
    assert lines[1].startswith("2 connections were refused")
    assert len(lines) == 100 + 3  # and 128, 256, 512
    assert lines[-1].endswith("(512 such lines)")


def test_a_silence_is_explained_once_and_again_after_a_connection(monkeypatch):
    monkeypatch.setattr(tls, "_FIRST_LOOK", 0.01)
    monkeypatch.setattr(tls, "_LAST_LOOK", 0.01)
    reasons = ["off", "off", None, "off", "on", "on"]
    asked, lines = [], []

    def explain():
        asked.append(1)
        return reasons[min(len(asked), len(reasons)) - 1]

    silence = Silence(explain, lines.append)
    silence.begin()
    wait_for(lambda: len(asked) > 10)
    assert lines == ["off", "on"]
    silence.end()
    silence.begin()
    wait_for(lambda: len(lines) == 3)
    silence.end()
    assert lines[2] == "on"


SITE = """
import sys
from pathlib import Path
from fedaux_pl.sites import transport
name, server, kit = sys.argv[1:]
transport.serve(name, server, Path(kit), 2**20, None, 2**20)
"""


@pytest.mark.sites  # another process takes long to start
def test_a_site_that_is_no_member_is_told_at_both_ends(transport, kits, said):
    port = free_port()
    with transport(port) as server:
        server.sites = SimpleNamespace(**vars(server.sites) | {"names": ["site-0"]})
        server.filter.peers = ["site-0"]
        site = subprocess.Popen(
            [sys.executable, "-c", SITE, "site-1", f"localhost:{port}", kits / "site-1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        try:
            lines = iter(site.stdout.readline, "")
            found = next(line for line in lines if re.search(r"is not in sites\.names|Error", line))
        finally:
            site.kill()
            site.wait()
            site.stdout.close()
        assert f"site-1 is not in sites.names of the server localhost:{port}: it is" in found
        assert "'site-1' has a valid certificate, but is not in sites.names: it" in "\n".join(said)
        assert server.connected() == []

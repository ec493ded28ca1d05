"""Faults and strangers with real processes of ``fedaux-pl``: kills, hangs, floods, certificates.

``python -m tools.site_faults --folder DIR [--only NAME ...]`` runs the cases one after another and
prints the table of docs/sites.md. A case fails by an assertion.
"""

import argparse
import csv
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pytorch_lightning.callbacks import Callback
from torch import nn

from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.models import FeatureClassifier
from tests.federations import split
from tests.sites.processes import Federated, log_to, provision, run
from tests.sites.test_real_sites import AUX

CASES = {}
AVG = {"class_path": "FedAvg"}


def case(function):
    CASES[function.__name__.replace("_", " ")] = function
    return function


def started(folder, method=AVG, rounds=8, sites=(0, 1, 2), pause=1.0, **settings):
    """A federation whose server and sites run, with a pause after rounds to disturb them."""
    federated = Federated(folder, split(3), method, **settings)
    federated.config["trainer"] |= {
        "max_epochs": rounds,
        "callbacks": [{"class_path": "tools.site_faults.Pause", "init_args": {"seconds": pause}}],
    }
    federated.start_server()
    for number in sites:
        federated.start_site(number)
    return federated


def answers(federated, name):
    """The rounds that a site has answered, as a text such as 110011."""
    marks = {None: "-", 0.0: "0", 1.0: "1"}
    return "".join(marks[entry.get(f"answered/{name}")] for entry in federated.history())


class Pause(Callback):
    """Waits after every round."""

    def __init__(self, seconds):
        self.seconds = seconds

    def on_train_epoch_end(self, trainer, pl_module):
        time.sleep(self.seconds)


@case
def a_site_is_killed_and_comes_back(folder):
    with started(folder, AUX, rounds=10) as federated:
        federated.wait_for("site-1", "sent: train, round 2")
        federated.processes["site-1"].kill()
        federated.wait_for("server", "site-1 is absent in round")
        federated.start_site(1)
        federated.join()
        seen = answers(federated, "site-1")
        assert re.fullmatch("1+0+1+", seen), seen
        assert answers(federated, "site-0") == "1" * 10
        memory = max(entry["memory/clients"] for entry in federated.history())
        return f"site-1 answered {seen}, the others all; {memory:.0f} clients teach"


@case
def a_site_hangs_and_goes_on(folder):
    with started(folder, rounds=10, timeout=4) as federated:
        federated.wait_for("site-1", "sent: train, round 2")
        os.kill(federated.processes["site-1"].pid, signal.SIGSTOP)
        federated.wait_for("server", "site-1 gave no answer to round")
        time.sleep(1)
        os.kill(federated.processes["site-1"].pid, signal.SIGCONT)
        federated.join()
        seen = answers(federated, "site-1")
        assert re.fullmatch("1+0+1+", seen), seen
        return f"SIGSTOP: site-1 answered {seen}; each lost round took at most its timeout of 4 s"


@case
def a_site_answers_late(folder):
    with started(folder, timeout=3, sites=(0, 1)) as federated:
        federated.start("late", late_site, federated.folder, federated.site_args(2))
        federated.join()
        seen = answers(federated, "site-2")
        log = federated.log("server")
        assert re.fullmatch("0+1*", seen), seen
        assert "still works on an earlier request" in log
        return f"5 s for a timeout of 3 s: site-2 answered {seen}, its late answers were dropped"


def late_site(folder, args):
    """A site whose trainings take 5 s longer in the first rounds."""
    original = LocalClients.train

    def train(pool, round_, *args):
        time.sleep(5 if round_ < 3 else 0)
        return original(pool, round_, *args)

    LocalClients.train = train
    run(args, folder / "site-2.log", folder / "state-site-2")


@case
def a_site_joins_after_round_3(folder):
    with started(folder, AUX, rounds=12, sites=(0, 1), wait=1) as federated:
        federated.wait_for("site-0", "sent: train, round 3")
        federated.start_site(2)
        federated.join()
        seen = answers(federated, "site-2")
        assert re.fullmatch("---+1+", seen), seen
        assert "heads" in federated.checkpoint()["federation"]
        return f"FedAUX: site-2 released its head when it came and answered {seen}"


@case
def the_server_is_killed_in_a_round_and_resumed(folder):
    with started(folder, AUX, rounds=6, pause=0.0) as whole:
        whole.join()
        expected = whole.checkpoint()["state_dict"]
    other = folder / "killed"
    with started(other, AUX, rounds=6) as federated:
        federated.wait_for("site-0", "asked: train, round 4")
        federated.processes["server"].kill()
        federated.processes["server"].join()
        start = time.monotonic()
        federated.start_server("--ckpt_path=last")
        federated.wait_for("server", "connected", count=4)
        back = time.monotonic() - start
        federated.join()
        found = federated.checkpoint()["state_dict"]
        assert all(bool((found[key] == expected[key]).all()) for key in expected)
        return f"same weights bit for bit as undisturbed; first site back after {back:.0f} s"


@case
def a_second_run_gets_the_same_heads(folder):
    with started(folder, AUX, rounds=2, pause=0.0, rehearsal=False) as federated:
        federated.join()
        first = federated.checkpoint()["federation"]["releases"]["scores"]["heads"]
        shutil.rmtree(folder / "logs")
        federated.start_server()
        federated.join()
        again = federated.checkpoint()["federation"]["releases"]["scores"]["heads"]
        assert all(bool((first[key] == again[key]).all()) for key in first)
        entries = [
            len(list(folder.glob(f"state-site-{i}/fedaux_pl/ledger/*.pt"))) for i in range(3)
        ]
        assert entries == [1, 1, 1]
        assert not list(folder.glob("state-server/fedaux_pl/ledger/*.pt"))
        spent = federated.log("site-0").split("spent so far: ")[-1].splitlines()[0]
        return f"secret noise, one release in each site's ledger, none at the server; {spent}"


@case
def a_full_disk_at_a_site(folder):
    """The state folder of site 1 is a file system of 32 KiB, if this process may mount one."""
    state = folder / "state-site-1"
    state.mkdir(parents=True)
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", state], capture_output=True
    )
    how = "a file system of 32 KiB"
    if mounted.returncode:
        how = "a state folder that is a file"
        state.rmdir()
        state.write_text("full")
    try:
        if not mounted.returncode:
            (state / "filler").write_bytes(b"0" * 24 * 1024)
        with started(folder, AUX, rounds=3, rehearsal=False, wait=15) as federated:
            federated.join()
            log = federated.log("server")
            assert "its disk is full or not writable (code storage)" in log, log
            assert answers(federated, "site-0") == "111"
            assert str(folder) not in "".join(x for x in log.splitlines() if "storage" in x)
            return f"{how}: code storage, nothing released, rounds go on with two sites"
    finally:
        if not mounted.returncode:
            subprocess.run(["/bin/umount", state], check=True)


def refused(folder, prepare, words=None):
    """A stranger beside two good sites: the run goes on, the stranger answers nothing."""
    with started(folder, rounds=6, sites=(0, 1), wait=3, pause=1.5) as federated:
        federated.wait_for("server", "site-1 connected")
        prepare(federated)
        federated.join()
        assert answers(federated, "site-0") == "111111"
        assert "1" not in answers(federated, "site-2"), answers(federated, "site-2")
        log = federated.log("server")
        if words is not None:
            assert words in log, log
        return federated, log


KNOCK = """
import grpc, sys
port, root, *own = sys.argv[1:]
read = lambda path: open(path, "rb").read()
trust = grpc.ssl_channel_credentials(read(root), *map(read, own))
address = f"localhost:{port}"
for channel in (grpc.insecure_channel(address), grpc.secure_channel(address, trust)):
    try:
        grpc.channel_ready_future(channel).result(timeout=4)
        print("IN")
    except grpc.FutureTimeoutError:
        print("OUT")
"""


def knock(federated, *own):
    """Connects without TLS, and with the root certificate, which is no secret, and a key."""
    root = federated.kits / "site-2" / "startup" / "rootCA.pem"
    command = [sys.executable, "-c", KNOCK, str(federated.port), root, *own]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == ["OUT", "OUT"], done.stdout + done.stderr


@case
def a_stranger_without_a_certificate(folder):
    refused(folder, knock, "PEER_DID_NOT_RETURN_A_CERTIFICATE")
    return "plain and TLS without a certificate: no handshake, logged; rounds go on"


@case
def a_certificate_of_another_federation(folder):
    def connect(federated):
        kit = provision(folder / "foreign", ["site-2"], federated.port) / "site-2" / "startup"
        knock(federated, kit / "client.key", kit / "client.crt")

    refused(folder, connect, "CERTIFICATE_VERIFY_FAILED")
    return "no handshake, logged; rounds go on"


@case
def a_valid_certificate_with_the_name_of_another(folder):
    def connect(federated):
        own = (federated.folder, federated.port, federated.kits / "site-0", "site-2")
        federated.start("thief", speak_as, *own)

    refused(folder, connect, "authenticated as 'site-0' but claimed endpoint 'site-2'")
    return "refused by the name in the certificate, and logged; rounds go on"


def speak_as(folder, port, kit, name):
    """A site with the certificate of another that calls itself ``name``."""
    from fedaux_pl.sites import transport

    log_to(folder / "thief.log")
    transport.serve(name, f"localhost:{port}", kit, 2**30, lambda message: message, 2**30)


@case
def a_member_floods_the_server(folder):
    with started(folder, AUX, rounds=8, sites=(0, 1), wait=3) as federated:
        federated.wait_for("server", "site-1 connected")
        federated.start("flood", flood, *federated.as_peer("site-2"))
        federated.wait_for("flood", "sent 20")
        before = memory(federated.processes["server"].pid)
        federated.join()
        assert answers(federated, "site-0") == "1" * 8
        log = federated.log("server")
        lines = [line for line in log.splitlines() if "refused" in line]
        assert lines, log
        assert "Stream error" not in log, log
        assert before < 1500, before
        return f"20 messages of 200 MB: {lines[0].removeprefix('sites: ')!r}; {before:.0f} MB"


def create_cell(log, name, port, kit, side):
    """NVFlare's cell of a peer that has its own program, in a process whose output is a log."""
    from fedaux_pl.sites import transport

    log_to(log)
    return transport._create_cell(name, f"grpcs://localhost:{port}", kit, side, 2**32)


def flood(folder, port, kit):
    """Site 2 sends large messages that nobody has asked for."""
    from nvflare.fuel.f3.cellnet.utils import new_cell_message

    cell = create_cell(folder / "flood.log", "site-2", port, kit, "client")
    cell.start()
    time.sleep(2)
    for number in range(1, 21):
        message = new_cell_message({"fedaux": "{}"}, bytes(200 * 2**20))
        channel = ("fedaux", "aux_communication")[number % 2]
        cell.fire_and_forget(channel=channel, topic="ask", targets="server", message=message)
        time.sleep(0.2)
        print(f"sent {number}", flush=True)
    time.sleep(60)


def first_chunks(cell, target, route, requests, size):
    """Sends the first chunks of streams that declare a size and never end, one a request."""
    from nvflare.fuel.f3.message import Message
    from nvflare.fuel.f3.streaming import stream_const
    from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey as Stream

    for number, request in enumerate(requests):
        headers = {Stream.CHANNEL: route[0], Stream.TOPIC: route[1], Stream.SIZE: size}
        headers |= {Stream.STREAM_ID: number, Stream.STREAM_REQ_ID: request, Stream.SEQUENCE: 0}
        headers |= {Stream.DATA_TYPE: stream_const.StreamDataType.CHUNK}
        kind = stream_const.STREAM_CHANNEL, stream_const.STREAM_DATA_TOPIC
        cell.core_cell.fire_and_forget(*kind, target, Message(headers, bytes(2**10)))


@case
def a_member_declares_gigabytes(folder):
    with started(folder, rounds=4, sites=(0, 1), timeout=20) as federated:
        federated.start("member", declare_at_server, *federated.as_peer("site-2"))
        federated.wait_for("member", "asked")
        before = memory(federated.processes["server"].pid)
        federated.wait_for("member", "sent")
        after = largest_memory(federated.processes["server"].pid)
        federated.join()
        assert answers(federated, "site-0") == "1111"
        shown = f"6 chunks of 1 KiB: the server has {before:.0f} MB before, {after:.0f} MB after"
        assert after < before + 200, shown
        return shown


def declare_at_server(folder, port, kit):
    """Site 2 answers each request by six streams that declare 1 GiB."""
    from concurrent.futures import Future

    from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey as Stream

    cell = create_cell(folder / "member.log", "site-2", port, kit, "client")

    def attack(request):
        print("asked", flush=True)
        time.sleep(2)
        own = [request.get_header(Stream.STREAM_REQ_ID)] * 6
        first_chunks(cell, "server", ("return_only", "fedaux:ask"), own, 2**30)
        print("sent", flush=True)
        return Future()

    cell.register_request_cb(channel="fedaux", topic="ask", cb=attack)
    cell.start()
    time.sleep(300)


@case
def a_server_declares_gigabytes(folder):
    with Federated(folder, split(3), AVG) as federated:
        site = federated.start_site(0)
        federated.start("attacker", declare_at_site, *federated.as_peer("localhost"))
        federated.wait_for("site-0", "connected to")
        before = memory(site.pid)
        federated.wait_for("attacker", "sent")
        after = largest_memory(site.pid)
        shown = f"5 chunks of 1 KiB: a site has {before:.0f} MB before, {after:.0f} MB after"
        assert after < before + 200, shown
        return shown


def declare_at_site(folder, port, kit):
    """A server that sends five streams that declare 1 GiB to site 0."""
    cell = create_cell(folder / "attacker.log", "server", port, kit, "server")
    cell.start()
    while not cell.core_cell.is_cell_connected("site-0"):
        time.sleep(0.1)
    time.sleep(2)
    first_chunks(cell, "site-0", ("fedaux", "ask"), map(str, range(5)), 2**30)
    print("sent", flush=True)
    time.sleep(300)


@case
def a_member_poses_as_the_server(folder):
    with Federated(folder, split(3), AVG) as federated:
        kit = federated.folder / "thief"  # the certificate of site 1 under the server's file names
        shutil.copytree(federated.kits / "site-1" / "startup", kit)
        for end in ("crt", "key"):
            (kit / f"client.{end}").rename(kit / f"server.{end}")
        process = federated.start("attacker", declare_at_site, *federated.as_peer(kit))
        federated.start_site(0)
        federated.wait_for("site-0", "waits for the server")
        time.sleep(15)
        assert "connected" not in federated.log("site-0"), federated.log("site-0")
        assert "sent" not in federated.log("attacker")
        process.kill()
        process.join()
        federated.start_server()
        federated.wait_for("site-0", "connected to")
        return "no handshake: gRPC compares the certificate with the host of --server"


def largest_memory(pid, seconds=15):
    """The largest resident memory of a process in MB in the next seconds."""
    sizes = []
    for _ in range(10 * seconds):
        sizes.append(memory(pid))
        time.sleep(0.1)
    return max(sizes)


def memory(pid):
    """The resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1000
    return 0.0


@case
def a_hundred_rounds(folder):
    """The overhead of a round, and the memory of server and sites over 100 rounds."""
    federated = Federated(folder, split(3), AVG)
    federated.config["trainer"]["max_epochs"] = 100
    federated.config["model"]["model_options"] = {"width": 1.0}
    with federated:
        federated.start_server()
        for number in range(3):
            federated.start_site(number)
        sizes = []
        for done in range(10, 101, 10):
            federated.wait_for("site-0", f"asked: train, round {done}", seconds=400)
            server = memory(federated.processes["server"].pid)
            sizes.append((server, memory(federated.processes["site-0"].pid)))
        federated.join()
        work = [
            float(line.split(" after ")[1].split(" s;")[0])
            for line in federated.log("site-0").splitlines()
            if "sent: train" in line
        ]
        rounds = [entry["seconds/clients"] for entry in federated.history()]
        beyond = sorted(r - w for r, w in zip(rounds, work, strict=True))
        growth = statistics.mean(s for s, _ in sizes[7:]) - statistics.mean(
            s for s, _ in sizes[1:4]
        )
        assert growth < 100, sizes
        assert beyond[50] < 1.0, beyond
        shown = ", ".join(f"{server:.0f}" for server, _ in sizes[1::2])
        return (
            f"ResNet-8: median {beyond[50]:.2f} s a round beyond the training of a site, 95th of "
            f"100 {beyond[95]:.2f} s; server {shown} MB after 20, 40, ... 100 rounds; site "
            f"{sizes[0][1]:.0f} to {sizes[-1][1]:.0f} MB"
        )


@case
def half_a_gigabyte(folder):
    """A model of 500 MB goes to one site and back."""
    federated = Federated(folder, split(3), AVG, timeout=300)
    federated.config["trainer"]["max_epochs"] = 2
    federated.config["model"] |= {
        "clients": {"tools.site_faults.Large": 3},
        "participation": 0.3,
        "model_options": {},
    }
    with federated:
        federated.start_server("--trainer.enable_checkpointing=false")
        for number in range(3):
            federated.start_site(number)
        federated.join(seconds=500)
        [curve] = (folder / "logs").rglob("curve.csv")
        with curve.open() as file:
            seconds = [float(row["seconds/clients"]) for row in csv.DictReader(file)]
        return f"one site, 2 rounds: {seconds[0]:.0f} and {seconds[1]:.0f} s with its training"


class Large(FeatureClassifier):
    """A network of 125 million parameters that is fast to compute."""

    def __init__(self, num_classes, *, in_channels=3):
        super().__init__(num_classes, feature_dim=8, in_channels=in_channels)
        self.conv = nn.Conv2d(in_channels, 8, 3, padding=1)
        self.table = nn.Embedding(1_000_000, 125)

    def feature_map(self, x):
        return self.conv(x).relu() + 0 * self.table.weight[0, 0]


def run_cases(about, cases):
    """Run the cases that the command line selects, each in a folder of its own."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[""])
    options = parser.parse_args()
    for name, run_case in cases.items():
        if not any(word in name for word in options.only):
            continue
        own = options.folder / name.replace(" ", "-")
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        begin = time.monotonic()
        seen = run_case(own)
        print(f"| {name} | {seen} | {time.monotonic() - begin:.0f} s |", flush=True)


if __name__ == "__main__":
    from tools import site_faults  # the classes by their names in configurations

    run_cases(__doc__, site_faults.CASES)

"""Faults of networks: real processes of ``fedaux-pl`` in network namespaces of their own.

``python -m tools.network_faults --folder DIR [--only WORD ...]``, as root on Linux, runs the
cases and prints the table of docs/robustness.md. A case fails by an assertion; all ends after 30
minutes.
"""

import re
import signal
import statistics
import time

from tests.federations import split
from tests.sites.processes import Federated, run
from tools.site_faults import AVG, answers, run_cases
from tools.site_networks import HOST, SERVER, Networks, enter

CASES = {}


def case(function):
    CASES[function.__name__.replace("_", " ")] = function
    return function


def run_in(namespace, hosts, *args):
    """Run ``fedaux-pl`` in a namespace, with a file of hosts of its own."""
    enter(namespace, hosts)
    run(*args)


class Remote(Federated):
    """A federation whose processes are in the namespaces of ``networks``."""

    def __init__(self, folder, networks, rounds=6, width=0.125, timeout=60, pause=1.0, **settings):
        super().__init__(folder, split(3), AVG, host=HOST, timeout=timeout, **settings)
        self.networks = networks
        self.config["trainer"] |= {
            "max_epochs": rounds,
            "callbacks": [
                {"class_path": "tools.site_faults.Pause", "init_args": {"seconds": pause}}
            ],
        }
        self.config["model"]["model_options"] = {"width": width}

    def _start(self, name, args):
        log, state = self.folder / f"{name}.log", self.folder / f"state-{name}"
        namespace = SERVER if name == "server" else name.replace("site-", "fx-")
        return self.start(name, run_in, namespace, self.networks.hosts, args, log, state)

    def start_all(self):
        self.start_server()
        for number in range(3):
            self.start_site(number)
        return self

    def median(self):
        """The median seconds of a round's clients, without the first round."""
        return statistics.median(entry["seconds/clients"] for entry in self.history()[1:])


def run_over(folder, change, delay=0.0, **settings):
    """Run six rounds over links that ``change`` makes; every site must answer all."""
    with (
        Networks(folder / "hosts", delay=delay) as networks,
        Remote(folder, networks, **settings) as all_,
    ):
        for number in range(3):
            change(networks, number)
        all_.start_all().join()
        assert all(answers(all_, f"site-{i}") == "111111" for i in range(3)), all_.tails()
        [size] = {m[1] for m in re.finditer(r"asked: train.* ([\d,]+) bytes", all_.log("site-0"))}
        return f"all sites answered all rounds; median round {all_.median():.1f} s, {size} bytes"


@case
def plain_links(folder):
    return run_over(folder, lambda *_: None)


@case
def delay_200_ms(folder):
    return run_over(folder, lambda *_: None, delay=0.1)


@case
def loss_5_percent(folder):
    return run_over(folder, lambda networks, number: networks.lose(number, 5))


@case
def rate_1_MB_s(folder):  # noqa: N802 - the unit
    return run_over(folder, lambda networks, number: networks.limit(number, "8mbit"), width=0.5)


@case
def all_three(folder):
    def change(networks, number):
        networks.lose(number, 5)
        networks.limit(number, "8mbit")

    return run_over(folder, change, delay=0.1)


@case
def a_link_cut_for_60_s(folder):
    """The link of site 1 drops all packets for a minute, from round 2 on."""
    with (
        Networks(folder / "hosts") as networks,
        Remote(folder, networks, 40, timeout=5, pause=3.0) as all_,
    ):
        all_.start_all()
        all_.wait_for("site-1", "sent: train, round 2")
        networks.cut.add(1)
        time.sleep(60)
        networks.cut.clear()
        start, before = time.monotonic(), all_.log("site-1").count("sent:")
        all_.wait_for("site-1", "sent:", count=before + 2, seconds=200)  # the first may be late
        back = time.monotonic() - start
        all_.join(seconds=400)
        seen = answers(all_, "site-1")
        assert re.fullmatch("1+0+1+", seen), seen
        assert answers(all_, "site-0") == "1" * 40
        return f"site-1 answered {seen}; its first answers came {back:.0f} s after the link"


@case
def the_address_of_the_server_changes(folder):
    """Its old address is gone without a word: no reset reaches a site."""
    with (
        Networks(folder / "hosts") as networks,
        Remote(folder, networks, 40, timeout=5, wait=30) as all_,
    ):
        all_.start_all()
        all_.wait_for("site-0", "sent: train, round 2")
        networks.move_server("10.78.0.1", "10.78.0.2")
        start = time.monotonic()
        all_.processes["server"].kill()
        all_.processes["server"].join()
        all_.start_server("--ckpt_path=last")
        found = []
        for number in range(3):
            all_.wait_for(f"site-{number}", "connected to", count=2, seconds=300)
            found.append(time.monotonic() - start)
        all_.join(seconds=400)
        seen = [answers(all_, f"site-{i}") for i in range(3)]
        return f"sites are back after {max(found):.0f} s without a restart; {seen[0]}"


if __name__ == "__main__":
    for number in (signal.SIGALRM, signal.SIGTERM):  # namespaces and processes end all the same
        signal.signal(number, signal.default_int_handler)
    signal.alarm(1800)
    run_cases(__doc__, CASES)

"""Network namespaces for a server and its sites, with links that delay, lose, slow down or are cut.

For ``python -m tools.network_faults``; needs root, Linux, iproute2 and nftables. Each site
has a namespace ``fx-N`` and a TUN link to the namespace of the server, ``fx-server``. A thread of
this process moves the packets, so that a delay needs no netem. Loss is by nftables (numgen), rate
by tc (tbf), at both ends. Nothing outside these namespaces is changed.
"""

import ctypes
import heapq
import os
import select
import struct
import subprocess
import threading
import time
from contextlib import suppress
from fcntl import ioctl
from itertools import count
from pathlib import Path
from typing import Self

HOST, SERVER = "federation.test", "fx-server"
CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x00020000
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001


def call(command: str) -> None:
    """Run a command line without quotes."""
    subprocess.run(command.split(), check=True)  # noqa: S603 - our own lines


def enter(namespace: str, hosts: Path | None = None) -> None:
    """Move this thread to a network namespace; ``hosts`` becomes its /etc/hosts."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns comes with Python 3.12
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    if hosts is not None:
        if libc.unshare(CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        call("mount --make-rprivate /")
        call(f"mount --bind {hosts} /etc/hosts")


class Networks:
    """The namespaces and their links, which exist while this is used as a context manager.

    Args:
        hosts: The file of hosts that all processes see, to be written.
        sites: The number of sites.
        delay: The seconds for which each packet is held back in each direction.
    """

    def __init__(self, hosts: Path, sites: int = 3, delay: float = 0.0) -> None:
        self.hosts, self.sites, self.delay = hosts, sites, delay
        self.cut: set[int] = set()  # the numbers of the sites whose packets are dropped
        self._peers: dict[int, tuple[int, int]] = {}  # to a TUN: the other end and the site
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._move_packets, daemon=True)

    def __enter__(self) -> Self:
        self._remove()
        for name in self._names():
            call(f"ip netns add {name}")
            call(f"ip -n {name} link set lo up")
        for number in range(self.sites):
            near, far = (self._create_tun(*end) for end in self._ends(number))
            self._peers |= {near: (far, number), far: (near, number)}
            call(f"ip -n fx-{number} route add default dev wan")
        call(f"ip -n {SERVER} addr add 10.78.0.1/32 dev lo")
        self.name_server("10.78.0.1")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for tun in self._peers:
            os.close(tun)
        self._remove()

    def name_server(self, address: str) -> None:
        """Let the name of the server mean an address."""
        self.hosts.write_text(f"127.0.0.1 localhost\n{address} {HOST}\n")

    def move_server(self, old: str, new: str) -> None:
        """Give the server another address; packets to the old one get no reply."""
        call(f"ip -n {SERVER} addr del {old}/32 dev lo")
        call(f"ip -n {SERVER} addr add {new}/32 dev lo")
        self.name_server(new)

    def lose(self, number: int, percent: int) -> None:
        """Drop a part of the packets that arrive, at both ends of the link of a site."""
        for namespace, device, _ in self._ends(number):
            nft = f"ip netns exec {namespace} nft add"
            call(f"{nft} table inet {device}")
            call(f"{nft} chain inet {device} loss {{ type filter hook input priority 0 ; }}")
            drop = f"numgen random mod 100 < {percent} drop"
            call(f"{nft} rule inet {device} loss iifname {device} {drop}")

    def limit(self, number: int, rate: str) -> None:
        """Limit the rate of the link of a site, such as 8mbit, in each direction."""
        for namespace, device, _ in self._ends(number):
            qdisc = f"tbf rate {rate} burst 16kb latency 200ms"
            call(f"tc -n {namespace} qdisc replace dev {device} root {qdisc}")

    def _names(self) -> list[str]:
        return [SERVER, *(f"fx-{number}" for number in range(self.sites))]

    def _remove(self) -> None:
        for name in self._names():
            if Path(f"/run/netns/{name}").exists():
                call(f"ip netns del {name}")

    def _ends(self, number: int) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
        """Return namespace, device and address of both ends of a link."""
        site = (f"fx-{number}", "wan", f"10.77.{number}.2/24")
        return site, (SERVER, f"site{number}", f"10.77.{number}.1/24")

    def _create_tun(self, namespace: str, name: str, address: str) -> int:
        found: list[int] = []

        def create() -> None:
            enter(namespace)
            found.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
            request = struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER)
            ioctl(found[0], _TUNSETIFF, request)

        thread = threading.Thread(target=create)  # the namespace is that of the thread alone
        thread.start()
        thread.join()
        call(f"ip -n {namespace} addr add {address} dev {name}")
        call(f"ip -n {namespace} link set {name} up")
        return found[0]

    def _move_packets(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        order = count()
        while not self._ended.is_set():
            pause = min(0.1, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.1
            for tun in select.select(list(self._peers), [], [], pause)[0]:
                packet, (peer, number) = os.read(tun, 65536), self._peers[tun]
                if number not in self.cut:
                    due = time.monotonic() + self.delay
                    heapq.heappush(waiting, (due, next(order), peer, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, peer, packet = heapq.heappop(waiting)
                with suppress(OSError):  # a full queue: the packet is lost
                    os.write(peer, packet)

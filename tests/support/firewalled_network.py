"""Machines on a network that forwards only permitted connections: network namespaces behind a router.

Each machine has a network namespace with an address, and a mount namespace with a separate /etc/hosts and an empty
/run. The router forwards by stateless policy rules on source, destination and TCP port (ip-rule(8)), with one rule for
requests and one rule for replies. The namespaces end with the processes that hold them. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

_PERMITTED = 100
"""Priority of the rules that permit connections, and number of their routing table."""


class Flow(NamedTuple):
    """A permitted TCP connection between machines."""

    source: str
    target: str
    port: int


def can_make_networks() -> bool:
    """Whether this process may create namespaces and the required tools are installed."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    rule = "ip rule add from 10.0.0.1 to 10.0.0.2 ipproto tcp dport 80 lookup main"
    made = "ip link add veth0 type veth peer name veth1"
    return (
        subprocess.run(["unshare", "--net", "--mount", "sh", "-c", f"{rule} && {made}"], capture_output=True).returncode
        == 0
    )


class FirewalledNetwork:
    """Machines by name, and the permitted connections between machines."""

    def __init__(self, directory: Path, machines: Mapping[str, Sequence[str]], permitted: Collection[Flow]) -> None:
        """Create the description of the network; entering the context creates the network.

        Args:
            directory: directory for hosts files.
            machines: host names of each machine.
            permitted: permitted connections; all other connections are rejected.
        """
        self._directory = directory
        self._hosts = machines
        self._permitted = permitted
        self._addresses = {name: f"10.99.{number}.2" for number, name in enumerate(machines, 1)}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._router: subprocess.Popen[bytes] | None = None

    def address(self, machine: str) -> str:
        return self._addresses[machine]

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for holder in (*self._holders.values(), *([self._router] if self._router else ())):
            holder.kill()
            holder.wait()

    def command(self, machine: str, *argv: str) -> list[str]:
        """Return a command line that runs `argv` on a machine."""
        return ["nsenter", "--target", str(self._holders[machine].pid), "--net", "--mount", "--", *argv]

    def put(self, machine: str, source: Path, path: str) -> None:
        """Copy a file or a folder to a path under /run of a machine."""
        assert path.startswith("/run/")
        _run(self.command(machine, "sh", "-c", f"mkdir -p {Path(path).parent} && cp -r {source} {path}"))

    def _make(self) -> None:
        hosts = self._directory / "hosts"
        hosts.write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{self._addresses[name]} {' '.join(names)}\n" for name, names in self._hosts.items() if names)
        )
        # A name server that refuses queries, because resolvers wait for name servers that do not respond.
        resolver = self._directory / "resolv.conf"
        resolver.write_text("nameserver 127.0.0.1\n")
        self._router = _hold("sysctl -qw net.ipv4.ip_forward=1")
        script = ["set -e", "ip link set lo up"]
        for number, (name, address) in enumerate(self._addresses.items(), 1):
            machine = self._holders[name] = _hold(
                "mount --make-rprivate / && mount -t tmpfs tmpfs /run && path=$(readlink -m /etc/resolv.conf) &&"
                f"mkdir -p ${{path%/*}} && touch $path && mount --bind {resolver} $path &&"
                f"mount --bind {hosts} /etc/hosts"
            )
            script += [
                f"ip link add m{number} type veth peer name eth0 netns {machine.pid}",
                f"ip address add 10.99.{number}.1/24 dev m{number}",
                f"ip link set m{number} up",
                f"ip route add {address} dev m{number} table {_PERMITTED}",
            ]
        # The router rejects by ICMP, at a limited rate; the other packets are dropped.
        script.append(f"ip rule add priority 90 ipproto icmp lookup {_PERMITTED}")
        for flow in self._permitted:
            source, target = self._addresses[flow.source], self._addresses[flow.target]
            lookup = f"lookup {_PERMITTED} priority {_PERMITTED}"
            script += [
                f"ip rule add from {source} to {target} ipproto tcp dport {flow.port} {lookup}",
                f"ip rule add from {target} to {source} ipproto tcp sport {flow.port} {lookup}",
            ]
        script.append("ip rule add priority 300 prohibit")
        _run(["nsenter", "--target", str(self._router.pid), "--net", "--", "sh", "-c", "\n".join(script)])
        for number, (name, address) in enumerate(self._addresses.items(), 1):
            _run(
                self.command(
                    name,
                    "sh",
                    "-ec",
                    f"ip link set lo up; ip address add {address}/24 dev eth0; ip link set eth0 up;"
                    f"ip route add default via 10.99.{number}.1",
                )
            )


def _hold(prepare: str) -> subprocess.Popen[bytes]:
    """Start a process in new namespaces, which exist until the process ends."""
    holder = subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-c", f"{prepare} && echo ready && exec sleep infinity"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    return holder


def _run(command: Sequence[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr

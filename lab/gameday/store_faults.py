"""Faults of etcd: compaction while agents are disconnected, loss of the quorum, and slow commits."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from statistics import median

from adapters.servers.process import ServerProcess
from lab.demo.findings import Measured
from lab.gameday.fault_injection import put_wan_fault
from lab.gameday.workers import Workers
from lab.planet.configs import url
from lab.planet.planet import ASK_TIMEOUT_S, Planet
from lab.planet.topology import ETCD, etcd_port

STOPPED_S, RUNNING_S = 0.4, 0.1
"""Durations (s) for which etcd alternately stops and runs, so that a commit takes hundreds of milliseconds."""

REVISIONS = 200
"""Number of revisions that are written before the compaction, in addition to the control planes' writes."""

LAB_KEY = b64encode(b"lab/gameday").decode()
"""A key outside the prefix of the fleet."""


def compact(planet: Planet) -> Callable[[], None]:
    """Disconnect every agent from etcd; the end of the fault compacts etcd before it reconnects the agents."""
    pairs = [(region, ETCD) for region in planet.topology.region_names]
    put_wan_fault(planet, pairs, "cut")

    def lift() -> None:
        for _ in range(REVISIONS):
            revision = _put(planet)
        _call(planet, "kv/compaction", {"revision": str(revision), "physical": True})
        put_wan_fault(planet, pairs, "none")

    return lift


def lose_quorum(planet: Planet) -> Callable[[], None]:
    """Kill all members of etcd except the first; the end of the fault restarts the members with their data."""
    lost = planet.topology.etcd_members[1:]
    planet.kill(lost)
    return lambda: planet.restart(lost)


def slow_etcd(planet: Planet) -> Callable[[], Measured]:
    """Alternately stop and continue all members of etcd; the end of the fault returns the measured commit times."""
    return _IntermittentEtcd(planet).stop


class _IntermittentEtcd:
    """Stops all members for four fifths of the time, while a writer measures the commit times."""

    def __init__(self, planet: Planet) -> None:
        self._planet = planet
        self._members: list[ServerProcess] = [planet.processes()[member] for member in planet.topology.etcd_members]
        self._commits_s: list[float] = []
        self._workers = Workers(self._alternate, self._write)

    def stop(self) -> Measured:
        self._workers.stop()
        if not self._commits_s:
            return Measured(0, "no commit succeeded")
        says = (
            f"{len(self._commits_s)} commits: median {1000 * median(self._commits_s):.0f} ms, "
            f"maximum {1000 * max(self._commits_s):.0f} ms"
        )
        return Measured(len(self._commits_s), says)

    def _alternate(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            for member in self._members:
                member.pause()
            stopped.wait(STOPPED_S)
            for member in self._members:
                member.resume()
            stopped.wait(RUNNING_S)

    def _write(self, stopped: threading.Event) -> None:
        while not stopped.wait(RUNNING_S):
            began = time.monotonic()
            try:
                _put(self._planet)
            except OSError:
                continue
            self._commits_s.append(time.monotonic() - began)


def _put(planet: Planet) -> int:
    """Write LAB_KEY; return the revision."""
    answer = _call(planet, "kv/put", {"key": LAB_KEY, "value": ""})
    return int(answer["header"]["revision"])


def _call(planet: Planet, method: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
    """Call a method of etcd's JSON gateway; return the response."""
    where = url(planet.ports[etcd_port(planet.topology.etcd_members[0], "client")])
    request = urllib.request.Request(f"{where}/v3/{method}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=ASK_TIMEOUT_S) as response:
        answer: dict[str, dict[str, str]] = json.load(response)
    return answer

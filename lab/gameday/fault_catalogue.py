"""The faults of game days: what is done to the fleet, what ends it, and what is expected."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from lab.planet.configs import url
from lab.planet.planet import ASK_TIMEOUT_S, Planet
from lab.planet.topology import engine_port
from lab.servers.errors import ServerError

SLOW_FACTOR = 10


class TargetKind(StrEnum):
    """What a fault takes away, and thus how its detection and the recovery are observed."""

    REGION = "region"
    """Other regions' agents report it as failed; afterwards they no longer do."""
    ENDPOINTS = "endpoints"
    """The region's agents report none of its endpoints as ready; afterwards all of them."""
    SLOW_ENDPOINT = "slow_endpoint"
    """The region's agents send it fewer requests."""
    LEADER = "leader"
    """Another control plane leads; afterwards exactly one."""
    STORE = "store"
    """Nothing is to be observed but that serving goes on; afterwards exactly one control plane leads."""


class Fault(NamedTuple):
    """One game day."""

    name: str
    what: str
    """What is done, in a few words."""
    kind: TargetKind
    region: str
    """The region that suffers; empty for the fleet."""
    inject: Callable[[Planet], Callable[[], None]]
    """Begins the fault, and returns what ends it. Both block."""
    detected_within_s: float | None = None
    """Limit (s) for the detection; None where nothing detects it."""
    clients_within_s: float | None = None
    """Limit (s) for the last attempt of a client at the region; None where clients need not leave it."""
    may_break: bool = False
    """Whether requests that entered through the region, or that its engines were running, may fail."""
    endpoint: str = ""
    """The endpoint that suffers; empty for none in particular."""


def _freeze(process: str) -> Callable[[Planet], Callable[[], None]]:
    def inject(planet: Planet) -> Callable[[], None]:
        server = planet.processes()[process]
        server.pause()
        return server.resume

    return inject


def _freeze_leader(planet: Planet) -> Callable[[], None]:
    leader = planet.leading_control_plane()
    if leader is None:
        raise ServerError("no control plane reports that it leads; look at the logs of the control planes")
    return _freeze(f"control plane {leader}")(planet)


def _kill_region(region: str) -> Callable[[Planet], Callable[[], None]]:
    def inject(planet: Planet) -> Callable[[], None]:
        planet.kill_region(region)
        return lambda: planet.start_region(region)

    return inject


def _slow(region: str, endpoint: str) -> Callable[[Planet], Callable[[], None]]:
    def inject(planet: Planet) -> Callable[[], None]:
        where = url(planet.ports[engine_port(region, endpoint)]) + "/lab/faults"
        _post(where, {"slow": SLOW_FACTOR})
        return lambda: _post(where, {})

    return inject


def _post(where: str, body: dict[str, int]) -> None:
    request = urllib.request.Request(where, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=ASK_TIMEOUT_S):
        pass


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "region-killed",
            "kill -9 of every agent and engine of eu-de, which is started again",
            TargetKind.REGION,
            "eu-de",
            _kill_region("eu-de"),
            detected_within_s=1.0,
            clients_within_s=1.0,
            may_break=True,
        ),
        Fault(
            "agent-frozen",
            "SIGSTOP of the only agent of eu-es",
            TargetKind.REGION,
            "eu-es",
            _freeze("agent eu-es/a"),
            # Three probes, a quarter of a second apart, that wait 0.5 s and up to two round trips to Tokyo.
            detected_within_s=2.5,
            # Two health checks of 1 s each, a quarter of a second apart: that of the clients, not of the fleet.
            clients_within_s=3.0,
        ),
        Fault(
            "engines-frozen",
            "SIGSTOP of the process with all engines of eu-de",
            TargetKind.ENDPOINTS,
            "eu-de",
            _freeze("engines eu-de"),
            # Four probes in a row that wait 2 s for an answer: a busy engine must not be taken for a dead one.
            detected_within_s=10.0,
        ),
        Fault(
            "engine-slow",
            f"the fastest engine of the small model in eu-de becomes {SLOW_FACTOR} times as slow",
            TargetKind.SLOW_ENDPOINT,
            "eu-de",
            _slow("eu-de", "eu-de-small-a100"),
            endpoint="eu-de-small-a100",
        ),
        Fault(
            "leader-frozen",
            "SIGSTOP of the leading control plane",
            TargetKind.LEADER,
            "",
            _freeze_leader,
            detected_within_s=5.0,
        ),
        Fault("etcd-frozen", "SIGSTOP of etcd", TargetKind.STORE, "", _freeze("etcd")),
        Fault("redis-frozen", "SIGSTOP of Redis", TargetKind.STORE, "", _freeze("redis")),
    )
}
"""By name."""

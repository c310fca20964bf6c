"""Polls the status of agents and control planes during a run, and records what they report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx
import msgspec

from lab.planet.configs import control_plane_urls
from lab.planet.planet import Planet

LOOK_EVERY_S = 0.1
"""Interval (s) of looks, and of status requests to each process, unless `FleetWatch.interval_s` differs."""

TIMEOUT_S = 1.0
"""Timeout (s) of a status request."""

FRESH_S = 1.5
"""Maximum age (s) of a status. A process with an older status counts as silent."""

CONFIRMED_S = 3.0
"""Maximum age (s) of an agent's copy of policy and plan. An agent with an older copy counts as unconfirmed."""


class Look(msgspec.Struct, frozen=True):
    """The reported state of the fleet at one time. Silent agents are absent from all fields except `silent`."""

    at_s: float
    failed_peers: dict[str, tuple[str, ...]] = {}
    """By region/agent: the regions that the agent reports as failed."""
    unready: dict[str, tuple[str, ...]] = {}
    """By region/agent: the agent's endpoints that are not ready."""
    endpoints: dict[str, int] = {}
    """By region/agent: the agent's number of endpoints."""
    held: int = 0
    """Requests in flight at agents and endpoints, plus waiting requests."""
    silent: tuple[str, ...] = ()
    """Agents without a status of the last FRESH_S."""
    leaders: tuple[str, ...] = ()
    """Control planes that report that they lead."""
    refusing: tuple[str, ...] = ()
    """Control planes that report errors of the policy source."""
    policies: tuple[str, ...] = ()
    """Distinct digests of the policies in force at control planes."""
    reachable: dict[str, dict[str, int]] = {}
    """By region/agent and peer region: the number of the region's agents that the agent reaches."""
    plans: dict[str, tuple[int, int]] = {}
    """By region/agent: epoch and generation of the agent's plan."""
    newest_plan: tuple[int, int] | None = None
    """Epoch and generation of the newest plan of the leading control planes; None without a plan."""
    unconfirmed: tuple[str, ...] = ()
    """Agents whose copy of policy and plan etcd has not confirmed for CONFIRMED_S."""
    retries: dict[str, float] = {}
    """By region/agent: the agent's retries after failed connections, of agents outside `FleetWatch.lost_region`."""


class FleetWatch:
    """Records a `Look` in every interval."""

    def __init__(self, planet: Planet, clock: Callable[[], float]) -> None:
        """Create a watch without looks; `clock` returns the time (s) of a look."""
        self._agents = planet.admin_urls()
        self._control_planes = control_plane_urls(planet.topology, planet.ports)
        self._agents_headers = {"authorization": f"Bearer {planet.agents_key}"}
        self._headers = {"authorization": f"Bearer {planet.admin_token}"}
        self._clock = clock
        self.interval_s = LOOK_EVERY_S
        self.lost_region = ""
        """The region that is being lost, or empty; looks then have the retries of other regions' agents."""
        self.looks: list[Look] = []

    async def run(self) -> None:
        """Record looks until cancelled. A task polls each process, so that a frozen process delays no look."""
        agents: dict[str, _Polled] = {}
        control_planes: dict[str, _Polled] = {}
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client, asyncio.TaskGroup() as group:
            for name, where in self._agents.items():
                group.create_task(self._poll(client, where, name, agents))
            for name, where in self._control_planes.items():
                group.create_task(self._poll(client, where, name, control_planes))
            while True:
                await asyncio.sleep(self.interval_s)
                self.looks.append(self._look(_fresh(agents), _fresh(control_planes), agents))

    async def _poll(self, client: httpx.AsyncClient, where: str, name: str, into: dict[str, _Polled]) -> None:
        is_agent = name in self._agents
        headers, path = (self._agents_headers, "/status") if is_agent else (self._headers, "/v1/status")
        while True:
            began, retries = time.monotonic(), None
            status = await _get(client, where + path, headers)
            if is_agent and self.lost_region not in ("", name.partition("/")[0]):
                metrics = await _get(client, where + "/metrics", headers)
                retries = _retries(metrics.text) if metrics is not None else None
            if status is not None:
                into[name] = _Polled(began, status.json(), retries)
            await asyncio.sleep(max(0.0, began + self.interval_s - time.monotonic()))

    def _look(
        self,
        agents: Mapping[str, Mapping[str, Any]],
        control_planes: Mapping[str, Mapping[str, Any]],
        polled: Mapping[str, _Polled],
    ) -> Look:
        return Look(
            at_s=self._clock(),
            failed_peers={
                name: tuple(peer for peer, seen in status["peers"].items() if seen["state"] == "failed")
                for name, status in agents.items()
            },
            unready={
                name: tuple(endpoint["name"] for endpoint in status["endpoints"] if not endpoint["ready"])
                for name, status in agents.items()
            },
            endpoints={name: len(status["endpoints"]) for name, status in agents.items()},
            held=sum(_held(status) for status in agents.values()),
            silent=tuple(name for name in self._agents if name not in agents),
            leaders=tuple(name for name, status in control_planes.items() if status.get("leading")),
            refusing=tuple(name for name, status in control_planes.items() if status["policy"]["refused"]),
            policies=tuple(sorted({str(status["policy"]["digest"]) for status in control_planes.values()})),
            reachable={
                name: {peer: len(seen["agents"]) for peer, seen in status["peers"].items()}
                for name, status in agents.items()
            },
            plans={name: _plan(status) for name, status in agents.items() if status["plan"] is not None},
            newest_plan=max(
                (_plan(status) for status in control_planes.values() if status.get("leading") and status["plan"]),
                default=None,
            ),
            unconfirmed=tuple(
                name
                for name, status in agents.items()
                if status["config_age_s"] is None or status["config_age_s"] > CONFIRMED_S
            ),
            retries={name: last.retries for name, last in polled.items() if last.retries is not None},
        )


class _Polled(NamedTuple):
    """The last status of a process and the monotonic time (s) of its request."""

    at: float
    status: dict[str, Any]
    retries: float | None = None


async def _get(client: httpx.AsyncClient, where: str, headers: Mapping[str, str]) -> httpx.Response | None:
    """Return a response with status 200; None otherwise."""
    try:
        response = await client.get(where, headers=headers)
    except httpx.HTTPError:
        return None
    return response if response.status_code == 200 else None


def _retries(metrics: str) -> float:
    """Return an agent's retries after connections that failed or were closed before a response."""
    return sum(
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("penstock_agent_retries_total{") and ("connect_failed" in line or "closed_early" in line)
    )


def _fresh(polled: Mapping[str, _Polled]) -> dict[str, dict[str, Any]]:
    oldest = time.monotonic() - FRESH_S
    return {name: last.status for name, last in polled.items() if last.at >= oldest}


def _plan(status: Mapping[str, Any]) -> tuple[int, int]:
    return int(status["plan"]["epoch"]), int(status["plan"]["generation"])


def _held(status: Mapping[str, Any]) -> int:
    waiting, endpoints = status["waiting"].values(), status["endpoints"]
    in_flight = sum(status["in_flight"].values()) + sum(endpoint["in_flight"] for endpoint in endpoints)
    return int(in_flight + sum(waiting))

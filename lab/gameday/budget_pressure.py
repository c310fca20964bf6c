"""A tenant that sends more than its budget to all agents, and by how much the fleet exceeds the budget meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import httpx

from lab.demo.findings import Measured
from lab.gameday.workers import Workers
from lab.planet.configs import control_plane_urls, url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, agent_port

PER_MINUTE, BURST = 300.0, 30.0
"""The budget of requests, for the fleet."""

MAX_OVERSHOOT = 0.05
"""Largest part by which the budget may be exceeded."""

LEAD_S = 7.0
"""Time (s) of pressure before the fault; longer than the load before it."""

TIMEOUT_S = 5.0

PAUSES_S = (0.05, 0.1, 0.4)
"""Time (s) between two requests to an agent, in turn: the demand is uneven."""

_CHAT = {"model": CHAT_8B, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


class BudgetPressure:
    """A thread for each agent that sends requests of one tenant.

    Args:
        planet: the fleet.
    """

    def __init__(self, planet: Planet) -> None:
        self._lock = threading.Lock()
        self._permitted = self._offered = 0
        self._began_at: float | None = None
        self._headers = {"authorization": f"Bearer {_create_tenant(planet)}"}
        agents = [
            url(planet.ports[agent_port(region.name, agent, "traffic")])
            for region in planet.topology.regions
            for agent in region.agents
        ]
        self._workers = Workers(
            *(partial(self._send, agent, PAUSES_S[number % len(PAUSES_S)]) for number, agent in enumerate(agents))
        )

    def stop(self) -> Measured:
        """Stop the threads; return by how much the budget was exceeded."""
        self._workers.stop()
        allowed = BURST + (time.monotonic() - (self._began_at or time.monotonic())) * PER_MINUTE / 60.0
        overshoot = max(0.0, self._permitted / allowed - 1.0)
        says = (
            f"{self._permitted} of {self._offered} requests were permitted, of {allowed:.0f} that the budget permits:"
            f" overshoot {overshoot:.1%}"
        )
        return Measured(self._permitted if overshoot <= MAX_OVERSHOOT else 0, says)

    def _send(self, agent: str, pause_s: float, stopped: threading.Event) -> None:
        while not stopped.is_set():
            with (
                suppress(httpx.HTTPError),
                httpx.Client(base_url=agent, headers=self._headers, timeout=TIMEOUT_S) as http,
            ):
                while not stopped.is_set():
                    sent_at = time.monotonic()
                    status = http.post("/v1/chat/completions", json=_CHAT).status_code
                    self._count(status, sent_at)
                    time.sleep(pause_s)
            time.sleep(pause_s)

    def _count(self, status: int, sent_at: float) -> None:
        with self._lock:
            # An agent that does not know the key yet answers 401.
            self._offered += status != 401
            if status == 200:
                self._permitted += 1
                self._began_at = min(sent_at, self._began_at or sent_at)


class UnderPressure:
    """A fault while a tenant sends more than its budget, which it does from a moment before.

    Args:
        fault: injects the fault.
    """

    def __init__(self, fault: Callable[[Planet], Callable[[], None]]) -> None:
        self._fault = fault
        self._pressure: BudgetPressure | None = None

    def prepare(self, planet: Planet) -> float:
        """Begin the pressure; return the time (s) until the fault begins."""
        self._pressure = BudgetPressure(planet)
        return LEAD_S

    def inject(self, planet: Planet) -> Callable[[], Measured]:
        """Inject the fault; its end also ends the pressure."""
        lift = self._fault(planet)

        def end() -> Measured:
            lift()
            assert self._pressure is not None
            return self._pressure.stop()

        return end


def _create_tenant(planet: Planet) -> str:
    """Create a tenant with a budget; return its key."""
    name = f"pressed-{time.monotonic_ns()}"
    budget = {"unit": "requests_per_minute", "limit": PER_MINUTE, "burst": BURST, "scope": "fleet"}
    body = {"name": name, "tier": "standard", "budgets": [budget], "reason": "gameday"}
    headers = {"authorization": f"Bearer {planet.admin_token}"}
    base = next(iter(control_plane_urls(planet.topology, planet.ports).values()))
    with httpx.Client(base_url=base, headers=headers, timeout=TIMEOUT_S) as http:
        http.post("/v1/tenants", json=body).raise_for_status()
        made = http.post(f"/v1/tenants/{name}/keys", json={"reason": "gameday"})
        made.raise_for_status()
        return str(made.json()["key"])

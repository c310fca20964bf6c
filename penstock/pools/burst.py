"""Decides whether a request uses a burst endpoint: a serverless one, which costs money for each second of a request.

A request uses it if policy has a price for its model in the region, no slot of the region's own endpoints is free, and
it would be refused otherwise or starts sooner by more than the price counts as latency
(`Objective.latency_ms_per_cost`). Other regions precede it: their slots are paid for already, so that only the egress
to them costs money. The burst endpoints of other regions come last (`penstock.routing.burst_regions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from penstock.on_demand.wake_history import ColdStarts
from penstock.planning.egress_cost import egress_cost
from penstock.policy.kinds.regions import BurstPool
from penstock.policy.policy import MS_PER_S, Policy
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.reasons import Reason

REJECTED_PRESSURE = 1.0
"""Pressure of an engine that has just rejected a request: its slots are not free, whatever their number."""

NOT_USED = (0.0, 0.0)
"""The used time (s) of burst endpoints, and its cost, of a request on other endpoints."""


class Otherwise(NamedTuple):
    """What becomes of a request without burst endpoints."""

    free_slots: int
    """Free slots of the region's own endpoints."""
    wait_s: float
    """Expected time (s) until it starts; inf if it would be refused."""
    left_s: float
    """Time (s) until its deadline."""


class BurstStart(NamedTuple):
    """A request on a burst endpoint."""

    cold_s: float
    """Expected time (s) until the server runs; 0 if it runs."""
    service_s: float
    """Expected time (s) of the request on a server that runs."""
    trip_s: float = 0.0
    """Round trip (s) to the region of the endpoint."""
    egress: float = 0.0
    """What the traffic to that region costs."""

    @property
    def start_s(self) -> float:
        """Expected time (s) until the request starts."""
        return self.trip_s + self.cold_s

    def cost(self, terms: BurstPool) -> float:
        """What the request is expected to cost."""
        return terms.cost_per_second * (self.cold_s + self.service_s) + self.egress

    def price_s(self, policy: Policy, terms: BurstPool) -> float:
        """The cost as latency (s)."""
        return self.cost(terms) * policy.objective.latency_ms_per_cost / MS_PER_S


class Verdict(NamedTuple):
    """Why a request does not use a burst endpoint."""

    reason: Reason
    detail: str


def free_slots(views: Iterable[EndpointView]) -> int:
    """The slots of a region's own endpoints on which a request could start now."""
    return sum(
        [
            max(0, view.slots - view.in_flight)
            for view in views
            if view.ready and not view.draining and view.pressure < REJECTED_PRESSURE
        ]
    )


def why_not(policy: Policy, terms: BurstPool | None, otherwise: Otherwise, start: BurstStart) -> Verdict | None:
    """Why a request does not use a burst endpoint; None if it does.

    Args:
        terms: the price of the policy; None without one.
    """
    if terms is None:
        return Verdict(Reason.BURST_WITHOUT_PRICE, "burst: the region has no price for the model in the policy")
    if otherwise.free_slots:
        return Verdict(Reason.BURST_NOT_NEEDED, f"burst: {otherwise.free_slots} slots of the region are free")
    if start.start_s >= otherwise.left_s:
        return Verdict(
            Reason.BURST_NOT_NEEDED, f"burst: a cold start of {start.start_s:.0f} s ends after the request's deadline"
        )
    if otherwise.wait_s == inf:
        return None
    price_s = start.price_s(policy, terms)
    if otherwise.wait_s <= start.start_s + price_s:
        return Verdict(
            Reason.BURST_COSTS_MORE,
            f"burst: would start in {start.start_s:.1f} s, and costs {start.cost(terms):.4g}, which counts as"
            f" {price_s:.1f} s; a slot is expected in {otherwise.wait_s:.1f} s",
        )
    return None


def precedes_spillover(policy: Policy, origin: str, server: str, model: str, cost: float) -> bool:
    """Whether a burst endpoint at the origin, for `cost`, is cheaper than the egress to another region's free slot."""
    prices = policy.regions[origin].egress_cost_per_gb, policy.regions[server].egress_cost_per_gb
    return egress_cost(policy.models[model], *prices) > cost


class ServerState:
    """Whether the server of a burst endpoint runs, as one agent can tell from its own requests: nothing else may reach
    the endpoint."""

    def __init__(self) -> None:
        self._starts = ColdStarts()
        self._used_at = -inf
        self._starting_since: float | None = None
        self._awaiting = 0
        """Requests that were sent and whose response has not begun."""

    def cold_start_s(self, terms: BurstPool) -> float:
        """The expected duration (s) of a cold start: the longest of the last five, or that of the policy."""
        return self._starts.expected_s(terms.cold_start_s)

    def runs_in_s(self, terms: BurstPool, running: int, now: float) -> float:
        """Time (s) until the server is expected to run, if a request is sent to it now.

        Args:
            running: requests on the endpoint, of all agents of the region.
        """
        if self._starting_since is not None:
            return max(0.0, self._starting_since + self.cold_start_s(terms) - now)
        if running or now - self._used_at < terms.idle_s:
            return 0.0
        return self.cold_start_s(terms)

    def sent(self, cold_s: float, now: float) -> None:
        """Record that a request is sent, which waits for the server for `cold_s` (s, expected)."""
        self._awaiting += 1
        if cold_s and self._starting_since is None:
            self._starting_since = now

    def began(self, usual_s: float, now: float) -> None:
        """Record the first byte of a response, which takes `usual_s` (s) on a server that runs."""
        self._awaiting -= 1
        if self._starting_since is not None:
            self._starts.add(max(0.0, now - self._starting_since - usual_s))
            self._starting_since = None
        self._used_at = now

    def ended(self, now: float, *, began: bool) -> None:
        """Record the end of a request, and whether its response `began`."""
        if began:
            self._used_at = now
        else:
            self._awaiting -= 1
            if not self._awaiting:
                self._starting_since = None


class BurstUse:
    """The use of a burst endpoint by one request."""

    __slots__ = ("_began", "_cost_per_second", "_on_ended", "_server", "_since", "_used_s", "_usual_s")

    def __init__(
        self,
        server: ServerState,
        cost_per_second: float,
        usual_s: float,
        since: float,
        on_ended: Callable[[float, float], None],
    ) -> None:
        """Begin the use of a server at `since` (s).

        Args:
            cost_per_second: price of the policy, at the beginning.
            usual_s: expected time (s) to the first byte on a server that runs.
            on_ended: called once with the used time (s) and its cost.
        """
        self._server = server
        self._cost_per_second = cost_per_second
        self._usual_s = usual_s
        self._since = since
        self._on_ended = on_ended
        self._began = False
        self._used_s: float | None = None

    def began(self, now: float) -> None:
        """Record the first byte of the response."""
        if not self._began:
            self._began = True
            self._server.began(self._usual_s, now)

    def ended(self, now: float) -> None:
        """Record the end of the request."""
        self._used_s = max(0.0, now - self._since)
        self._server.ended(now, began=self._began)
        self._on_ended(self._used_s, self._used_s * self._cost_per_second)

    def used(self, now: float) -> tuple[float, float]:
        """Return the used time (s) and its cost, as of the end or of `now` (s)."""
        used_s = max(0.0, now - self._since) if self._used_s is None else self._used_s
        return used_s, used_s * self._cost_per_second

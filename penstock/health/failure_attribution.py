"""Attributes failed requests to endpoints or to the tenant whose requests they are.

A prompt can make an engine fail. If each such failure counted against its endpoint, one tenant could eject the
endpoints that serve all others. Two observations show that the requests are the cause:

- several endpoints fail one request in turn: their connections break, or they respond with errors,
- several endpoints fail requests of one tenant alone, and serve the requests of other tenants in the same time.

Such failures do not count against the endpoints. With a single tenant, or where endpoints fail the requests of several
tenants, the failures count as usual.
"""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, TypeVar

Place = TypeVar("Place")
"""Describes to its user where a request was sent."""

WINDOW_S: Final = 30.0
"""Time (s) for which failures and served requests are evidence."""

MIN_ENDPOINTS: Final = 2
"""Number of endpoints that must fail a tenant's requests alone. A single endpoint that does so may be the cause: it can
lack an adapter, or the memory for long prompts."""

MAX_TENANTS: Final = 16
"""Maximum number of failing tenants that are remembered for each endpoint; the least recent failure is evicted."""

MAX_ENDPOINTS: Final = 1024
"""Maximum number of endpoints with remembered failures; the one that failed least recently is evicted."""

JUDGED_AFTER_S: Final = 1.0
"""Time (s) within which a request that broke one endpoint has to break another one to be the cause of both."""

MAX_UNDECIDED: Final = 256
"""Maximum number of breaks whose cause is undecided; beyond it, the oldest counts against its endpoint."""


class _Failures:
    """The failures of one endpoint, and the tenants that it served last."""

    __slots__ = ("by_tenant", "served", "served_before")

    def __init__(self) -> None:
        self.by_tenant: dict[str, tuple[float, float]] = {}
        """Times (s) of the first and the last failure, the least recent failure first."""
        self.served: tuple[str, float] = ("", float("-inf"))
        """The tenant that was served last, and when (s)."""
        self.served_before: tuple[str, float] = ("", float("-inf"))
        """The last other tenant that was served, and when (s)."""

    def concern_only(self, tenant: str, now: float) -> bool:
        """Whether no other tenant failed within WINDOW_S, and another tenant was served since `tenant` failed first."""
        since = max(self.by_tenant[tenant][0], now - WINDOW_S)
        other, served_at = self.served if self.served[0] != tenant else self.served_before
        if not other or served_at < since:
            return False
        return all(name == tenant or last < now - WINDOW_S for name, (_, last) in self.by_tenant.items())


class TenantFailures:
    """The recent failures of one agent's requests, by endpoint and tenant."""

    __slots__ = ("_endpoints", "until")

    def __init__(self) -> None:
        self._endpoints: dict[str, _Failures] = {}
        self.until = float("-inf")
        """Time (s) until which `served` has an effect; in a fleet without failures it needs no call."""

    def failed(self, tenant: str, endpoint: str, now: float) -> bool:
        """Record a failure of a tenant's request at an endpoint. Returns whether it counts against the endpoint.

        Args:
            now: monotonic, in seconds.
        """
        self.until = now + WINDOW_S
        failures = self._endpoints.pop(endpoint, None)
        if failures is None:
            self._make_room(now)
            failures = _Failures()
        self._endpoints[endpoint] = failures
        first, last = failures.by_tenant.pop(tenant, (now, now))
        while len(failures.by_tenant) >= MAX_TENANTS:
            del failures.by_tenant[next(iter(failures.by_tenant))]
        failures.by_tenant[tenant] = (first if now - last <= WINDOW_S else now, now)
        return not self.is_cause(tenant, now)

    def served(self, tenant: str, endpoint: str, now: float) -> None:
        """Record that an endpoint served a tenant's request at `now` (s)."""
        failures = self._endpoints.get(endpoint)
        if failures is None:
            return
        if failures.served[0] != tenant:
            failures.served_before = failures.served
        failures.served = (tenant, now)

    def is_cause(self, tenant: str, now: float) -> bool:
        """Whether the recent failures of a tenant's requests are caused by the requests; `now` in s."""
        alone = 0
        for failures in self._endpoints.values():
            times = failures.by_tenant.get(tenant)
            if times is not None and now - times[1] <= WINDOW_S and failures.concern_only(tenant, now):
                alone += 1
                if alone >= MIN_ENDPOINTS:
                    return True
        return False

    def _make_room(self, now: float) -> None:
        for name in [name for name, failures in self._endpoints.items() if _is_over(failures, now)]:
            del self._endpoints[name]
        while len(self._endpoints) >= MAX_ENDPOINTS:
            del self._endpoints[next(iter(self._endpoints))]


def _is_over(failures: _Failures, now: float) -> bool:
    return all(now - last > WINDOW_S for _, last in failures.by_tenant.values())


class Break(NamedTuple, Generic[Place]):
    """A connection that broke after a request was sent and before a response; or an error in place of a response."""

    request: object
    """The request, compared by identity."""
    place: Place
    """Where the request was sent."""
    at: float
    """When the endpoint failed (s)."""


class UndecidedBreaks(Generic[Place]):
    """Breaks whose cause, the request or the endpoint, is undecided for at most JUDGED_AFTER_S."""

    __slots__ = ("_breaks",)

    def __init__(self) -> None:
        self._breaks: list[Break[Place]] = []

    def broke(self, request: object, place: Place, now: float) -> list[Place]:
        """Record a break at `now` (s). If the request broke another endpoint before, returns both: neither counts."""
        others = [each for each in self._breaks if each.request is not request]
        if len(others) == len(self._breaks):
            self._breaks.append(Break(request, place, now))
            return []
        before = [each.place for each in self._breaks if each.request is request]
        self._breaks = others
        return [*before, place]

    def began(self, request: object) -> list[Place]:
        """Return and forget the places that a request broke before its response began elsewhere: they count."""
        if not self._breaks:
            return []
        before = [each.place for each in self._breaks if each.request is request]
        self._breaks = [each for each in self._breaks if each.request is not request]
        return before

    def decided(self, now: float) -> list[Place]:
        """Remove and return the places of breaks that count against the endpoint by `now` (s)."""
        if not self._breaks:
            return []
        excess = len(self._breaks) - MAX_UNDECIDED
        due = [each for index, each in enumerate(self._breaks) if index < excess or now - each.at >= JUDGED_AFTER_S]
        self._breaks = self._breaks[len(due) :]
        return [each.place for each in due]

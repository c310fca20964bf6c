"""How many connections a server keeps open, and which one it closes when another one is over the limit.

Each connection has a standing: a stranger's until a request on it proves its sender. Each standing has limits of its
own, so that strangers cannot displace authenticated callers, nor callers the fleet's processes. A new connection is
always accepted: the stranger's connection whose request began first leaves. A client that sends its request at once is
therefore served however many slow clients connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import chain

import msgspec

MIN_RECEIVE_RATE = 16 * 1024
"""Rate (bytes/s) at which a body has to arrive to count as no slower than when it began."""


class Standing(StrEnum):
    """What is known of the client of a connection."""

    STRANGER = "stranger"
    CALLER = "caller"
    """A request had a valid credential; for a TLS handshake, its network has completed one before."""
    PROCESS = "process"
    """A request was signed by a process of the fleet."""


class StandingLimits(msgspec.Struct, frozen=True):
    """Maximum numbers of connections of one standing."""

    total: int
    per_holder: int
    """Of one network of strangers, one caller, or one process."""


class CountedConnection:
    """One open connection."""

    __slots__ = ("holder", "is_waiting", "since", "standing")

    def __init__(self, holder: str | None, now: float, standing: Standing) -> None:
        """Starts waiting for the client; `holder` is None without a limit for each holder."""
        self.standing = standing
        self.holder = holder
        self.is_waiting = True
        """Whether the server waits for the client: for a handshake, a head, a body, or for the client to read."""
        self.since = now
        """Time (s) since which it is idle, or a request is in progress; the arrival of a body moves it forward."""


class LimitedConnections:
    """The open connections of one server, by standing and holder."""

    def __init__(self, limits: Mapping[Standing, StandingLimits]) -> None:
        """Starts without connections; `limits` has every standing."""
        self._limits = limits
        self._held: dict[Standing, dict[str | None, dict[CountedConnection, None]]] = {
            standing: {} for standing in Standing
        }
        self._totals = dict.fromkeys(Standing, 0)

    def count(self, standing: Standing) -> int:
        """Returns the number of connections of a standing."""
        return self._totals[standing]

    def open(
        self, holder: str | None, now: float, standing: Standing = Standing.STRANGER
    ) -> tuple[CountedConnection, CountedConnection | None]:
        """Adds a connection; returns it, and the connection to close.

        Args:
            holder: network of the client; None: the limit of one network does not apply, as to a trusted proxy.
            now: time in seconds.
            standing: what is known of the client without a request.
        """
        counted = CountedConnection(holder, now, standing)
        evicted = self._make_room(standing, holder)
        self._add(counted)
        return counted, evicted

    def authenticate(self, counted: CountedConnection, standing: Standing, holder: str) -> CountedConnection | None:
        """Gives a connection the standing of a request on it; returns the connection to close.

        A caller's connections that are being served are not closed: `counted` itself is returned, and keeps its
        standing, if all connections of the caller, or of all callers, are.

        Args:
            holder: name of the caller or process.
        """
        if (counted.standing, counted.holder) == (standing, holder) or not self._is_open(counted):
            return None
        self._remove(counted)
        evicted = self._make_room(standing, holder)
        if evicted is None and self._is_full(standing, holder):
            self._add(counted)
            return counted
        counted.standing, counted.holder = standing, holder
        self._add(counted)
        return evicted

    def begin(self, counted: CountedConnection, now: float) -> None:
        """Records that a response, or the head of a request on an idle connection, is complete."""
        counted.is_waiting, counted.since = True, now

    def receive(self, counted: CountedConnection, count: int, now: float) -> None:
        """Records the arrival of `count` bytes of a body."""
        if counted.is_waiting:
            counted.since = min(now, counted.since + count / MIN_RECEIVE_RATE)

    def close(self, counted: CountedConnection) -> None:
        """Removes a connection; one that was returned for closing is removed already."""
        if self._is_open(counted):
            self._remove(counted)

    def _is_open(self, counted: CountedConnection) -> bool:
        return counted in self._held[counted.standing].get(counted.holder, ())

    def _is_full(self, standing: Standing, holder: str | None) -> bool:
        limits = self._limits[standing]
        own = len(self._held[standing].get(holder, ()))
        return self._totals[standing] >= limits.total or (holder is not None and own >= limits.per_holder)

    def _make_room(self, standing: Standing, holder: str | None) -> CountedConnection | None:
        """Removes and returns the connection that leaves for another one of `holder`; None if there is room, or if
        none can leave."""
        if not self._is_full(standing, holder):
            return None
        held = self._held[standing]
        own = held.get(holder, {})
        is_own_limit = holder is not None and len(own) >= self._limits[standing].per_holder
        evicted = _longest(own if is_own_limit else chain.from_iterable(held.values()), standing)
        if evicted is not None:
            self._remove(evicted)
        return evicted

    def _add(self, counted: CountedConnection) -> None:
        self._held[counted.standing].setdefault(counted.holder, {})[counted] = None
        self._totals[counted.standing] += 1

    def _remove(self, counted: CountedConnection) -> None:
        own = self._held[counted.standing][counted.holder]
        del own[counted]
        if not own:
            del self._held[counted.standing][counted.holder]
        self._totals[counted.standing] -= 1


def _longest(limited: Iterable[CountedConnection], standing: Standing) -> CountedConnection | None:
    """Returns the connection that is in its state for the longest time.

    A process's connections that wait for the process are preferred, and a caller's are the only ones. A stranger's
    connection may be served, or wait for that, for a long time only in a flood of requests.
    """
    if standing is Standing.CALLER:
        limited = (counted for counted in limited if counted.is_waiting)
    is_graded = standing is Standing.PROCESS
    return min(limited, key=lambda counted: (is_graded and not counted.is_waiting, counted.since), default=None)

"""Which connection a server closes when another one needs its place.

Each connection has a standing: a stranger's until a request on it proves its sender. Each standing has places of its
own, so that strangers cannot take the places of authenticated callers, nor callers those of the fleet's processes. A
new connection always finds a place: the stranger's connection whose request began first leaves. A client that sends its
request at once is therefore served however many slow clients connect.
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


class PlaceLimits(msgspec.Struct, frozen=True):
    """Maximum numbers of connections of one standing."""

    total: int
    per_holder: int
    """Of one network of strangers, one caller, or one process."""


class Place:
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


class ConnectionPlaces:
    """The open connections of one server, by standing and holder."""

    def __init__(self, limits: Mapping[Standing, PlaceLimits]) -> None:
        """Starts without connections; `limits` has every standing."""
        self._limits = limits
        self._held: dict[Standing, dict[str | None, dict[Place, None]]] = {standing: {} for standing in Standing}
        self._totals = dict.fromkeys(Standing, 0)

    def count(self, standing: Standing) -> int:
        """Returns the number of connections of a standing."""
        return self._totals[standing]

    def open(
        self, holder: str | None, now: float, standing: Standing = Standing.STRANGER
    ) -> tuple[Place, Place | None]:
        """Adds a connection; returns its place, and the place of the connection to close.

        Args:
            holder: network of the client; None: the limit of one network does not apply, as to a trusted proxy.
            now: time in seconds.
            standing: what is known of the client without a request.
        """
        place = Place(holder, now, standing)
        evicted = self._make_room(standing, holder)
        self._add(place)
        return place, evicted

    def authenticate(self, place: Place, standing: Standing, holder: str) -> Place | None:
        """Gives a connection the standing of a request on it; returns the place of the connection to close.

        A caller's connections that are being served are not closed: `place` itself is returned, and keeps its
        standing, if all connections of the caller, or of all callers, are.

        Args:
            holder: name of the caller or process.
        """
        if (place.standing, place.holder) == (standing, holder) or not self._is_open(place):
            return None
        self._remove(place)
        evicted = self._make_room(standing, holder)
        if evicted is None and self._is_full(standing, holder):
            self._add(place)
            return place
        place.standing, place.holder = standing, holder
        self._add(place)
        return evicted

    def begin(self, place: Place, now: float) -> None:
        """Records that a response, or the head of a request on an idle connection, is complete."""
        place.is_waiting, place.since = True, now

    def receive(self, place: Place, count: int, now: float) -> None:
        """Records the arrival of `count` bytes of a body."""
        if place.is_waiting:
            place.since = min(now, place.since + count / MIN_RECEIVE_RATE)

    def close(self, place: Place) -> None:
        """Removes a connection; one that was returned for closing is removed already."""
        if self._is_open(place):
            self._remove(place)

    def _is_open(self, place: Place) -> bool:
        return place in self._held[place.standing].get(place.holder, ())

    def _is_full(self, standing: Standing, holder: str | None) -> bool:
        limits = self._limits[standing]
        own = len(self._held[standing].get(holder, ()))
        return self._totals[standing] >= limits.total or (holder is not None and own >= limits.per_holder)

    def _make_room(self, standing: Standing, holder: str | None) -> Place | None:
        """Removes and returns the place that another connection of `holder` takes; None if there is room, or none can
        leave."""
        if not self._is_full(standing, holder):
            return None
        held = self._held[standing]
        own = held.get(holder, {})
        is_own_limit = holder is not None and len(own) >= self._limits[standing].per_holder
        evicted = _longest(own if is_own_limit else chain.from_iterable(held.values()), standing)
        if evicted is not None:
            self._remove(evicted)
        return evicted

    def _add(self, place: Place) -> None:
        self._held[place.standing].setdefault(place.holder, {})[place] = None
        self._totals[place.standing] += 1

    def _remove(self, place: Place) -> None:
        own = self._held[place.standing][place.holder]
        del own[place]
        if not own:
            del self._held[place.standing][place.holder]
        self._totals[place.standing] -= 1


def _longest(places: Iterable[Place], standing: Standing) -> Place | None:
    """Returns the connection that is in its state for the longest time.

    A process's connections that wait for the process are preferred, and a caller's are the only ones. A stranger's
    connection may be served, or wait for that, for a long time only in a flood of requests.
    """
    if standing is Standing.CALLER:
        places = (place for place in places if place.is_waiting)
    is_graded = standing is Standing.PROCESS
    return min(places, key=lambda place: (is_graded and not place.is_waiting, place.since), default=None)

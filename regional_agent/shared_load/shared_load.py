"""The load of each endpoint over all agents of a region: this agent's reservations and the other agents' load.

A reservation counts at once and never waits; `shared_load_exchange` publishes it to the others within about 10 ms.
While Redis is unreachable the weight of the other agents' load falls to zero (`penstock.fleet.shared_counts`), and this
agent's own reservations remain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from typing import Annotated, Any, TypeVar

import msgspec
import structlog

from penstock.fleet.shared_counts import weight_at_age, weighted_count
from penstock.routing.placement import Reservation
from penstock.routing.pool_accounting import NO_LOAD, Load
from regional_agent.endpoints.endpoint_set import EndpointSet

MAX_REQUESTS = 1_000_000
"""Maximum requests of one agent on one endpoint; a larger number is published as this one."""

MAX_US = 10**13
"""Maximum work (µs) of one agent on one endpoint, some months; a larger number is published as this one."""

MAX_WAITED_MS = 3_600_000
"""Maximum time (ms) that a request is published to have waited."""

log = structlog.get_logger()

_Requests = Annotated[int, msgspec.Meta(ge=0, le=MAX_REQUESTS)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=MAX_WAITED_MS)]
_Work = Annotated[int, msgspec.Meta(ge=0, le=MAX_US)]


class QueueSummary(msgspec.Struct, array_like=True, frozen=True):
    """The admission queue of one agent for one model."""

    requests: _Requests
    behind: int
    """Negated priority of the request at the head."""
    waited_ms: _Milliseconds
    """How long (ms) the request at the head had waited when this was published."""
    which: int
    """Number of the request at the head, unique in the region."""


class PublishedLoad(msgspec.Struct, frozen=True):
    """What an agent publishes to the other agents of its region."""

    loads: dict[str, tuple[_Requests, _Work, _Work]]
    """By endpoint: requests, reserved prefill (µs), reserved decode (µs); see `endpoint.Load`."""
    waiting: dict[str, QueueSummary] = {}
    """Admission queues by model."""


_decoder = msgspec.json.Decoder(PublishedLoad)


class _UncheckedLoad(msgspec.Struct, frozen=True):
    """A PublishedLoad whose entries are not decoded yet."""

    loads: dict[str, msgspec.Raw]
    waiting: dict[str, msgspec.Raw] = {}


_unchecked_decoder = msgspec.json.Decoder(_UncheckedLoad)
_load_decoder = msgspec.json.Decoder(tuple[_Requests, _Work, _Work])
_queue_decoder = msgspec.json.Decoder(QueueSummary)

Reserved = TypeVar("Reserved", bound=Reservation[Any])


class SharedLoad:
    """This agent's reservations and the last received load of the region's other agents."""

    def __init__(
        self, endpoints: EndpointSet, *, shared: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a view without reservations.

        Args:
            endpoints: the endpoints whose views show the load.
            shared: whether the region has other agents to receive load from; False for the only agent of a region.
            clock: monotonic, in seconds.
        """
        self.shared = shared
        """Whether load is exchanged with other agents."""
        self.up = False
        """Whether the last exchange with Redis succeeded."""
        self.changed = asyncio.Event()
        """Set when this agent's load or its queues have changed since `begin_publishing`."""
        self._has_changed = False
        """Same as `changed`, cheaper to test on every request."""
        self._endpoints = endpoints
        self._clock = clock
        self._remote_loads: dict[str, Load] = {}
        self._remote_queues: dict[str, list[QueueSummary]] = {}
        self._weight = 0.0
        """Weight (0-1) that the remote load counts with now."""
        self._read_at = -inf
        self._has_logged_invalid = False

    def reserve(self, reservation: Reserved) -> Reserved:
        """Count a reservation on its endpoint."""
        reservation.take()
        if not self._has_changed:
            self.publish()
        return reservation

    def prefilled(self, reservation: Reservation[Any]) -> None:
        """Release the prefill of a reservation. A second call does nothing."""
        if reservation.end_prefill() and not self._has_changed:
            self.publish()

    def release(self, reservation: Reservation[Any]) -> None:
        """Release all that a reservation still holds. A second call does nothing."""
        if reservation.release() and not self._has_changed:
            self.publish()

    def publish(self) -> None:
        """Have this agent's load and queues published soon. Called after either has changed."""
        self._has_changed = True
        self.changed.set()

    def begin_publishing(self) -> dict[str, tuple[int, int, int]]:
        """The load to publish now, by endpoint: requests, prefill (µs), decode (µs); later changes set `changed` again.

        Two servers that had the same endpoint name one after the other count together. Numbers are clamped to what the
        other agents accept.
        """
        self.changed.clear()
        self._has_changed = False
        loads: dict[str, tuple[int, int, int]] = {}
        for endpoint in self._endpoints.every():
            load = endpoint.local_load
            if load.requests:
                requests, prefill_us, decode_us = loads.get(endpoint.name, NO_LOAD)
                loads[endpoint.name] = (
                    min(MAX_REQUESTS, requests + load.requests),
                    min(MAX_US, prefill_us + load.prefill_us),
                    min(MAX_US, decode_us + load.decode_us),
                )
        return loads

    def receive(self, published: Iterable[bytes], read_at: float) -> bool:
        """Replace the other agents' load by what they published; whether it differs from before.

        Args:
            published: JSON of a PublishedLoad for each other agent; invalid entries are skipped and logged once.
            read_at: when the exchange began, by the clock (s).
        """
        self._read_at = read_at
        loads, queues = self._merged(published)
        if loads == self._remote_loads and queues == self._remote_queues and self._weight >= 1.0:
            return False
        self._remote_loads, self._remote_queues = loads, queues
        self._apply(1.0)
        return True

    def fade(self) -> bool:
        """Reduce the weight of the other agents' load according to its age; whether it has changed."""
        weight = weight_at_age(self.age_s())
        if weight >= self._weight:
            return False
        self._apply(weight)
        return True

    def remote_queues(self, model: str) -> list[QueueSummary]:
        """The other agents' admission queues for a model; empty once their load has lost all its weight."""
        return self._remote_queues.get(model, []) if self._weight > 0.0 else []

    def age_s(self) -> float:
        """Age (s) of the other agents' load; infinite before the first exchange, 0 if there are no other agents."""
        return self._clock() - self._read_at if self.shared else 0.0

    def status(self) -> dict[str, object]:
        """For the status page."""
        age_s = self.age_s()
        return {"up": self.up, "age_s": round(age_s, 3) if age_s < inf else None}

    def _merged(self, published: Iterable[bytes]) -> tuple[dict[str, Load], dict[str, list[QueueSummary]]]:
        loads: dict[str, Load] = {}
        queues: dict[str, list[QueueSummary]] = {}
        for encoded in published:
            try:
                agent = _decoder.decode(encoded)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if not self._has_logged_invalid:
                    log.warning("invalid load of another agent ignored", error=str(error))
                self._has_logged_invalid = True
                agent = _valid_part(encoded)
            for name, (requests, prefill_us, decode_us) in agent.loads.items():
                sum_ = loads.get(name, NO_LOAD)
                loads[name] = Load(sum_.requests + requests, sum_.prefill_us + prefill_us, sum_.decode_us + decode_us)
            for model, queue in agent.waiting.items():
                queues.setdefault(model, []).append(queue)
        return loads, queues

    def _apply(self, weight: float) -> None:
        self._weight = weight
        loads = self._remote_loads
        if weight < 1.0:
            loads = {name: Load(*(weighted_count(part, weight) for part in load)) for name, load in loads.items()}
        self._endpoints.set_remote_loads(loads)


def _valid_part(encoded: bytes) -> PublishedLoad:
    """The entries of a published load that are valid: one invalid number must not hide the agent's other requests."""
    try:
        agent = _unchecked_decoder.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return PublishedLoad({})
    loads: dict[str, tuple[int, int, int]] = {}
    for name, load in agent.loads.items():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            loads[name] = _load_decoder.decode(load)
    queues: dict[str, QueueSummary] = {}
    for model, queue in agent.waiting.items():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            queues[model] = _queue_decoder.decode(queue)
    return PublishedLoad(loads, queues)

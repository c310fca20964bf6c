"""The load that an agent publishes to the other agents of its region; encoded as an authentication tag, then JSON."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import msgspec

from penstock.admission.region_work import MAX_PUBLISHED, MAX_WORK_US, WorkTotal
from penstock.wire.region_key import RegionKey

MAX_REQUESTS = 1_000_000
"""Maximum number of requests of one agent on one endpoint; a larger number is published as this number."""

MAX_US = 10**13
"""Maximum work (µs) of one agent on one endpoint, 116 days; a larger number is published as this number."""

MAX_WAITED_MS = 3_600_000
"""Maximum published waiting time (ms) of a request; a longer time is published as this time."""

MAX_IDLE_MS = 3_600_000
"""Maximum published time (ms) since the last use of a model; a longer time is published as this time."""

MAX_MODELS = 1_000
"""Maximum number of published models of one endpoint."""

MAX_RANK = 10_000
"""Maximum absolute value of a published priority."""

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Models = Annotated[list[_Name], msgspec.Meta(max_length=MAX_MODELS)]
_Requests = Annotated[int, msgspec.Meta(ge=0, le=MAX_REQUESTS)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=MAX_WAITED_MS)]
_Work = Annotated[int, msgspec.Meta(ge=0, le=MAX_US)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
_EndpointLoad = tuple[_Requests, _Work, _Work]
_Total = Annotated[int, msgspec.Meta(ge=-MAX_WORK_US, le=MAX_WORK_US)]
_Priority = Annotated[int, msgspec.Meta(ge=-MAX_RANK, le=MAX_RANK)]
_Idle = Annotated[int, msgspec.Meta(ge=0, le=MAX_IDLE_MS)]
_Totals = Annotated[list[tuple[_Priority, _Name, _Total]], msgspec.Meta(max_length=MAX_PUBLISHED)]


class QueueSummary(msgspec.Struct, array_like=True, frozen=True):
    """The admission queue of one agent for one model."""

    requests: _Requests
    behind: int
    """Negated priority of the request at the head."""
    waited_ms: _Milliseconds
    """Time (ms) that the request at the head had waited when the summary was published."""
    which: int
    """Number of the request at the head, unique in the region."""
    tenant: _Name = ""
    """Tenant of the request at the head; empty from an agent of an earlier release."""


class PublishedLoad(msgspec.Struct, frozen=True):
    """The load of one agent."""

    agent: _Name
    epoch: _Number
    """Number of the start of the agent; grows with every start."""
    number: _Number
    """Sequence number; grows with every load that this start of the agent publishes. A smaller number is a replay."""
    loads: dict[str, _EndpointLoad] = {}
    """Loads by endpoint: requests, reserved prefill (µs), reserved decode (µs); see `pool_accounting.Load`."""
    waiting: dict[str, QueueSummary] = {}
    """Admission queues by model."""
    work: dict[str, _Totals] = {}
    """Work that tenants received at this agent, by model; see `region_work`."""
    idle_ms: dict[str, dict[str, _Idle]] = {}
    """Time (ms) since this agent's last use of models, by endpoint and model; 0 while requests run. Only of endpoints
    whose models share a memory."""
    batch: dict[str, _Requests] = {}
    """Running batch requests of this agent that may be preempted, by endpoint."""
    asleep: dict[str, _Models] = {}
    """Models that this agent lets sleep, or has just put to sleep, by endpoint."""

    @property
    def field(self) -> str:
        """Name of the field of the Redis hash in which the load is stored."""
        return f"{self.agent}~{self.epoch}"


class _UncheckedLoad(msgspec.Struct, frozen=True):
    """A PublishedLoad whose entries are not decoded yet."""

    agent: _Name
    epoch: _Number
    number: _Number
    loads: dict[str, msgspec.Raw] = {}
    waiting: dict[str, msgspec.Raw] = {}
    work: dict[str, msgspec.Raw] = {}
    idle_ms: dict[str, msgspec.Raw] = {}
    batch: dict[str, msgspec.Raw] = {}
    asleep: dict[str, msgspec.Raw] = {}


_decoder = msgspec.json.Decoder(PublishedLoad)
_unchecked_decoder = msgspec.json.Decoder(_UncheckedLoad)
_load_decoder = msgspec.json.Decoder(_EndpointLoad)
_totals_decoder = msgspec.json.Decoder(_Totals)
_idle_decoder = msgspec.json.Decoder(dict[str, _Idle])
_models_decoder = msgspec.json.Decoder(_Models)
_requests_decoder = msgspec.json.Decoder(_Requests)
_queue_decoder = msgspec.json.Decoder(QueueSummary)


def seal_load(load: PublishedLoad, key: RegionKey) -> bytes:
    """Encode a load and authenticate it."""
    return key.seal(msgspec.json.encode(load))


def open_load(sealed: bytes, key: RegionKey) -> PublishedLoad:
    """Decode the load that another agent published. Invalid entries are dropped; valid entries are kept.

    Raises:
        BadSignature: the load was not published by an agent of the region.
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the load is authentic, but no part of it is valid.
    """
    encoded = key.open(sealed)
    try:
        return _decoder.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _valid_part(encoded)


def _valid_part(encoded: bytes) -> PublishedLoad:
    unchecked = _unchecked_decoder.decode(encoded)
    loads: dict[str, tuple[int, int, int]] = {}
    for name, load in unchecked.loads.items():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            loads[name] = _load_decoder.decode(load)
    queues: dict[str, QueueSummary] = {}
    for model, queue in unchecked.waiting.items():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            queues[model] = _queue_decoder.decode(queue)
    work: dict[str, list[WorkTotal]] = {}
    for model, totals in unchecked.work.items():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            work[model] = _totals_decoder.decode(totals)
    idle_ms: dict[str, dict[str, int]] = {}
    for name, models in unchecked.idle_ms.items():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            idle_ms[name] = _idle_decoder.decode(models)
    batch: dict[str, int] = {}
    for name, requests in unchecked.batch.items():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            batch[name] = _requests_decoder.decode(requests)
    asleep: dict[str, list[str]] = {}
    for name, models in unchecked.asleep.items():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            asleep[name] = _models_decoder.decode(models)
    agent, epoch, number = unchecked.agent, unchecked.epoch, unchecked.number
    return PublishedLoad(agent, epoch, number, loads, queues, work, idle_ms, batch, asleep)

"""A question about usage, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from enum import StrEnum
from typing import Final

import msgspec

from penstock.ledger.segment_names import SegmentName


class Dimension(StrEnum):
    """What usage can be divided by."""

    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"
    ROUTE = "route"
    REGION = "region"
    """Region that served; empty for requests that none served, or whose end is not known."""
    ORIGIN = "origin"
    """Region whose agent received the request."""
    GPU_CLASS = "gpu_class"
    OUTCOME = "outcome"
    OBJECTIVE = "objective"
    """Service objective that counts a request (`first_byte 1.5 0.99`: measure, limit in seconds, share); empty if none
    does."""
    DAY = "day"
    """Day (UTC) on which requests ended."""


class UsageOrder(StrEnum):
    """What groups can be ordered by, largest first: fields of `UsageRow`."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    GPU_S = "gpu_s"
    PRICE = "price"
    GPU_COST = "gpu_cost"


class StoreToRead(msgspec.Struct, frozen=True):
    """One usage store of the policy."""

    name: str
    url: str


class UsageRequest(msgspec.Struct, frozen=True):
    """A question: the usage of a range of days."""

    stores: tuple[StoreToRead, ...]
    first_day: date
    last_day: date
    """Last day (UTC), included."""
    by: tuple[Dimension, ...] = (Dimension.TENANT,)
    tenant: str | None = None
    """Only this tenant; None: all."""
    top: int | None = None
    """Maximum number of groups, the largest by `order`; None: all, ordered by their names."""
    order: UsageOrder = UsageOrder.REQUESTS
    last_put: tuple[SegmentName, ...] = ()
    """The last segment that each agent has put into its store, as it reports."""


class UsageRow(msgspec.Struct, frozen=True):
    """The usage of one group. GPU seconds include those of forwarded requests, lost attempts and copies."""

    group: dict[str, str]
    """Value of each dimension of the question."""
    requests: int
    """Requests whose end is known."""
    unknown_requests: int
    """Requests that ran when the agent that received them died: what they used is not known, and not in any sum."""
    successes: int
    input_tokens: int
    """Tokens of prompts that are the tenant's usage, those of caches included."""
    cached_tokens: int
    output_tokens: int
    overhead_tokens: int
    """Tokens that the fleet bears, because requests failed through no fault of the tenant."""
    estimated_requests: int
    """Requests of which the agent counted a part of the tokens."""
    gpu_s: float
    overhead_gpu_s: float
    """The part of `gpu_s` that the fleet bears: lost attempts, copies and failed requests."""
    egress_bytes: int
    """Bytes of responses that crossed regions."""
    price: float
    """What the tenants pay."""
    gpu_cost: float
    """What the GPU seconds cost by the regions' prices, those of spot capacity included."""
    objective_requests: int = 0
    """Requests that a service objective of their model counts. Records of earlier releases have none."""
    within_objective: int = 0
    """The part of them that succeeded within the objective's limit."""
    burst_s: float = 0.0
    """Seconds of requests at burst endpoints, lost attempts included, which are no part of `gpu_s`."""
    burst_cost: float = 0.0
    """Their cost, by the regions' prices per second."""


CAPACITY_DIMENSIONS: Final = frozenset({Dimension.DAY, Dimension.REGION, Dimension.GPU_CLASS, Dimension.MODEL})
"""What GPU time that served nothing can be divided by: it belongs to no tenant."""


class GpuTimeRow(msgspec.Struct, frozen=True):
    """The GPU time that the endpoints of one group had, in the intervals for which an agent recorded it."""

    group: dict[str, str]
    ready_gpu_s: float
    """GPU seconds of endpoints that could serve."""
    unready_gpu_s: float
    """GPU seconds of endpoints that were listed and could not serve."""
    used_gpu_s: float
    """GPU seconds of requests that ended in these intervals, overhead included."""
    idle_share: float
    """Share (0-1) of the GPU seconds that served nothing."""
    idle_cost: float
    """What that share costs by the regions' prices."""
    known_s: float
    """Time (s), summed over regions, for which the GPU time is known; nothing is assumed about the rest."""


def sum_of(rows: Sequence[UsageRow]) -> UsageRow:
    """Return the sums of all rows, without a group."""
    fields = UsageRow.__struct_fields__[1:]
    return UsageRow({}, *(sum(getattr(row, field) for row in rows) for field in fields))


class UsageAnswer(msgspec.Struct, frozen=True):
    """The answer to a question."""

    first_day: date
    last_day: date
    rows: tuple[UsageRow, ...]
    segments: int
    """Number of segments that were read."""
    missing: tuple[str, ...] = ()
    """What the sums lack: stores that could not be read, segments that agents hold or have put elsewhere, requests
    whose end is not known."""
    currency: str = ""
    """Currency of `price` and `gpu_cost`; empty without a price list."""
    others: UsageRow | None = None
    """Sums of the groups beyond the largest ones that the question wants; None without such groups."""
    capacity: tuple[GpuTimeRow, ...] = ()
    """GPU time that served nothing, if the question is about all tenants by some of day, region, GPU class, model."""

"""One record of the ledger: what a request used and what it costs. It contains no prompt and no client address."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.accounts.outcome_rules import Outcome


class RecordKind(IntEnum):
    """What a record describes."""

    REQUEST = 0
    """A finished request of a client, by the agent that received it. Each request has exactly one."""
    SERVED = 1
    """GPU time of a request that another region forwarded, by the agent that served it."""
    LOST_ATTEMPT = 2
    """GPU time of an attempt that did not serve its request (a retry): overhead of the fleet."""
    UNKNOWN_END = 3
    """A request of a client that ran when its agent died: its outcome and what it used are not known."""
    UNKNOWN_SERVED = 4
    """A request of another region that ran when the agent that served it died: its GPU time is not known."""
    CAPACITY = 5
    """GPU time of the region's endpoints of one GPU class and model within an interval, as one agent saw it: no
    request. Records of earlier releases have no model."""
    COPY = 6
    """GPU time of a copy of a request that a version in a rollout ran: overhead of the fleet, of no tenant."""
    START = 100
    """Written when a request is sent to a target; stands only in spool files."""


UNKNOWN_OF_START: Final = {True: RecordKind.UNKNOWN_END, False: RecordKind.UNKNOWN_SERVED}
"""The kind of the record for a start without an end, by whether the agent's region is the origin."""


class LedgerRecord(msgspec.Struct, array_like=True, gc=False):
    """One record. The order of the fields is part of the format of spool files: append, do not insert.

    A record of the kind START has the fields up to `agent` alone.
    """

    kind: int
    """A value of `RecordKind`."""
    at_ms: int
    """Unix time (ms) of the end, at most 0.1 s before it; for UNKNOWN_END and UNKNOWN_SERVED, of the start or later."""
    request_id: str
    tenant: str
    key: str
    """Identifier of the API key; empty without a key."""
    model: str
    route: str
    origin: str
    """Region whose agent received the request."""
    agent: str
    """Name of the agent that writes the record."""
    region: str = ""
    """Region that served the request; empty if none did or it is not known."""
    gpu_class: str = ""
    """Accelerator of the endpoint; empty if no endpoint of this agent served."""
    outcome: str = ""
    """A value of `penstock.accounts.outcome_rules.Outcome`; empty if the record describes no end of a request."""
    status: int = 0
    input_tokens: int = 0
    """Tokens of the prompt, those of a cache included."""
    cached_tokens: int = 0
    output_tokens: int = 0
    gpu_s: float = 0.0
    """GPU seconds at endpoints of this agent: the held slot's share of the endpoint, times its number of GPUs."""
    price: float = 0.0
    """What the tenant pays, by the price list in force; 0 without a price."""
    gpu_cost: float = 0.0
    """`gpu_s` by the price of a GPU hour of the model in the region."""
    egress_bytes: int = 0
    """Bytes of the response that crossed regions."""
    is_estimated: bool = False
    """Whether the agent counted a part of the tokens."""
    is_overhead: bool = False
    """Whether the fleet bears the tokens, and not the tenant."""
    policy_digest: str = ""
    """First 12 characters of the digest of the policy whose prices apply."""
    ready_gpu_s: float = 0.0
    """Of CAPACITY: GPU seconds of ready endpoints. Segments of earlier releases lack this field and those below."""
    unready_gpu_s: float = 0.0
    """Of CAPACITY: GPU seconds of endpoints that were listed and not ready: failed, warming up, ejected or draining."""
    capacity_cost: float = 0.0
    """Of CAPACITY: the cost of both by the price of a GPU hour of the model in the region."""
    first_byte_ms: int = 0
    """Of REQUEST: time (ms, rounded up) from the request to the first byte of the response; 0 if none began."""
    total_ms: int = 0
    """Of REQUEST: time (ms, rounded up) from the request to its end."""
    objective: str = ""
    """Of REQUEST: the service objective that counts it, see `penstock.policy.service_objective.objective_id`; empty if
    none does."""
    is_within: bool = False
    """Whether the request succeeded within the limit of `objective`."""
    burst_s: float = 0.0
    """Seconds of the request at burst endpoints of this agent, which have no GPU seconds. Segments of earlier releases
    lack this field and those below."""
    burst_cost: float = 0.0
    """Their cost, by the price per second of the model in the region."""
    is_input_estimated: bool = False
    """Of REQUEST and SERVED: whether `is_estimated` is true of the input, those of a cache included."""
    is_output_estimated: bool = False
    """Of REQUEST and SERVED: whether `is_estimated` is true of the output."""


def unpaid(record: LedgerRecord) -> LedgerRecord:
    """The record of a finished run whose result is not delivered: overhead of the fleet."""
    return replace(record, outcome=Outcome.SHUTDOWN.value, price=0.0, is_overhead=True)

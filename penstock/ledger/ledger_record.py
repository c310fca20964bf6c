"""One record of the ledger: what a request used and what it costs. It contains no prompt and no client address."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class RecordKind(IntEnum):
    """What a record describes."""

    REQUEST = 0
    """A finished request of a client, by the agent that received it. Each request has exactly one."""
    SERVED = 1
    """GPU time of a request that another region forwarded, by the agent that served it."""
    LOST_ATTEMPT = 2
    """GPU time of an attempt that did not serve its request (a retry): overhead of the fleet."""
    UNKNOWN_END = 3
    """A request that ran when its agent died: what it used since its start is not known."""


class LedgerRecord(msgspec.Struct, array_like=True, gc=False):
    """One record. The order of the fields is part of the format of spool files: append, do not insert."""

    kind: int
    """A value of `RecordKind`."""
    at_ms: int
    """Unix time (ms) of the end; for UNKNOWN_END, of the start."""
    request_id: str
    tenant: str
    key: str
    """Identifier of the API key; empty without a key."""
    model: str
    route: str
    origin: str
    """Region whose agent received the request."""
    region: str
    """Region that served the request; empty if none did."""
    agent: str
    """Name of the agent that writes the record."""
    gpu_class: str
    """Accelerator of the endpoint; empty if no endpoint of this agent served."""
    outcome: str
    """A value of `penstock.accounts.outcome_rules.Outcome`."""
    status: int
    input_tokens: int
    """Tokens of the prompt, those of a cache included."""
    cached_tokens: int
    output_tokens: int
    gpu_s: float
    """GPU seconds at endpoints of this agent: the held slot's share of the endpoint, times its number of GPUs."""
    price: float
    """What the tenant pays, by the price list in force; 0 without a price."""
    gpu_cost: float
    """`gpu_s` by the region's price of a GPU hour."""
    egress_bytes: int
    """Bytes of the response that crossed regions."""
    is_estimated: bool
    """Whether the agent counted a part of the tokens."""
    is_overhead: bool
    """Whether the fleet bears the tokens, and not the tenant."""
    policy_digest: str
    """First 12 characters of the digest of the policy whose prices apply."""

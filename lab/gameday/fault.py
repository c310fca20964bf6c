"""A fault of a game day: how it is injected and ended, and its expected outcome."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from lab.demo.findings import Measured
from lab.planet.planet import Planet


class TargetKind(StrEnum):
    """The target of a fault, which determines how detection and recovery are observed."""

    REGION = "region"
    """Detected when all agents of other regions report the region as failed; recovered when no agent does."""
    ENDPOINTS = "endpoints"
    """Detected when the region's agents report no endpoint as ready; recovered when they report all as ready."""
    SLOW_ENDPOINT = "slow_endpoint"
    """Detected when the region's agents send the endpoint fewer requests."""
    LEADER = "leader"
    """Detected when another control plane leads; recovered when exactly one control plane leads."""
    PARTITION = "partition"
    """Detected when each of two regions, and no third region, reports the other as failed; recovered when none does."""
    POLICY = "policy"
    """Detected when every control plane reports errors of the policy source; recovered when none does."""
    MODEL = "model"
    """Detected when no agent reports an endpoint of the model as ready; recovered when all endpoints are ready."""
    AGENTS = "agents"
    """Detected when other regions' agents reach only the remaining agents; no agent may report the region as failed."""
    CONFIG = "config"
    """Detected when etcd confirms no agent's copy of policy and plan; recovered when etcd confirms every copy."""
    STORE = "store"
    """Not detected: serving must continue. Recovered when exactly one control plane leads."""


class Fault(NamedTuple):
    """One fault and its expected outcome."""

    name: str
    what: str
    """Short description of the injection."""
    kind: TargetKind
    region: str
    """The affected region; empty if the fault affects the whole fleet."""
    inject: Callable[[Planet], Callable[[], Measured | None]]
    """Injects the fault, and returns a function that ends the fault and returns its measurement. Both block."""
    detected_within_s: float | None = None
    """Maximum time (s) until detection; None if no detection is expected."""
    clients_within_s: float | None = None
    """Maximum time (s) until the last attempt of a client at the region; None without a limit."""
    may_break: bool = False
    """Whether requests that entered through the region or reached its engines may fail."""
    endpoint: str = ""
    """The affected endpoint; empty if the fault is not limited to an endpoint."""
    other: str = ""
    """The region from which `region` is partitioned; empty without a partition of two regions."""
    model: str = ""
    """The model without available engines, whose requests may be refused during the fault."""
    endpoints: frozenset[str] = frozenset()
    """Names of the endpoints of `model`."""
    prepare: Callable[[Planet], float] | None = None
    """Called before the day; returns the time (s) until the fault begins. Blocks."""
    conclude: Callable[[], Measured] | None = None
    """Called after the load; returns the measurement of a fault whose end returns none. Blocks."""
    clocks: tuple[str, ...] = ()
    """The processes whose clocks the fault changes, which requires libfaketime."""

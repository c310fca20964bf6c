"""Kinds of policy documents: overflow of healthy regions, and the loss and return of regions."""

from __future__ import annotations

from penstock.policy.fields import PolicyStruct


class Spillover(PolicyStruct, frozen=True):
    """Conditions for overflow of a healthy region."""

    target_utilisation: float = 0.8
    """Share of a pool's slots (0-1] that the plan fills before it sends more demand elsewhere."""
    margin_s: float = 0.25
    """Minimum gain (s), after the round trip, of a request's start time in another region for spillover."""
    credit_ttl_s: float = 0.75
    """Lifetime (s) of a spill credit."""
    step_per_s: float = 0.25
    """Maximum share (0-1] of an origin's demand for a model that plans move per second, except after failures."""


class SpilloverLimit(PolicyStruct, frozen=True):
    """Limits the cost and the share of spillover while the origin can serve; an empty matcher matches all demand."""

    name: str
    origins: frozenset[str] = frozenset()
    """Names of origin regions."""
    models: frozenset[str] = frozenset()
    max_cost_per_gpu_hour: float | None = None
    """Regions with a higher price are used only if no other region can serve; None for no limit."""
    max_share: float | None = None
    """Maximum share (0-1) of a class's demand that other regions serve; None for no limit."""
    source: str = ""
    """File and line of the limit."""


class Failover(PolicyStruct, frozen=True):
    """Failure detection of regions, and their return."""

    probe_interval_s: float = 0.25
    """Time (s) between two probes of a peer region."""
    probe_timeout_s: float = 0.4
    """Timeout (s) of a probe, in addition to the usual round trip between the two regions."""
    unhealthy_threshold: int = 2
    """Consecutive misses after which a region is failed."""
    healthy_threshold: int = 3
    """Consecutive good probes after which a failed region may return."""
    hold_down_s: float = 5.0
    """Minimum time (s) for which a region stays failed, so that a flapping region does not move traffic repeatedly."""
    failback_ramp_s: float = 60.0
    """Time (s) over which a recovered region's share grows from zero to its full value."""

"""Responses of POST /v1/explain, POST /v1/what-if and GET /v1/dns."""

from __future__ import annotations

import msgspec

from penstock.dns.record_sets import NameRecords
from penstock.overrides.override_check import OverrideRejection
from penstock.policy.provenance import Provenance
from penstock.routing.explain import Explanation
from penstock.what_if.demand_outcomes import Totals
from penstock.what_if.moved_demand import Move


class ExplainResponse(msgspec.Struct, frozen=True):
    """An explanation of one request, from the state that one control plane has."""

    explanation: Explanation
    seen_by: str
    """Name of the control plane whose snapshot was used. An agent's /explain has newer waits, credits and endpoints."""
    leading: bool
    """Whether that control plane leads. False during a store outage, when agents still report to the last leader."""
    at: float
    """Unix time (s)."""
    provenance: Provenance | None
    """The policy's commit; null where the policy is from a folder."""
    present: Explanation | None = None
    """With `then`: the explanation as of now; null if the policy in force lacks the origin."""
    notes: tuple[str, ...] = ()
    """With `then`: what of that moment is kept and used."""


class WhatIfResponse(msgspec.Struct, frozen=True):
    """The same demand, but for growth, under the current and the proposed conditions."""

    before: Totals
    """Under the policy of the side before, with the fleet as it is."""
    after: Totals
    """Under the proposed policy, with the proposed overrides and losses."""
    moves: tuple[Move, ...]
    """Demand that another region serves, or that is refused, after the change; largest first, at most 500."""
    moved_per_s: float
    """Sum of all moves, in requests per second."""
    policy_before: str
    """Digest of the policy of `before`."""
    policy_after: str
    """Digest of the policy of `after`."""
    demand: str
    """Source of the demand: the request; the rates that regions report by model and residency class, spread over the
    tenants and countries of each class; or generated because none is reported."""
    fleet: str
    """Source of the capacity: the request, the reports of regions, or generated because no region reports a pool."""
    conditions_before: tuple[str, ...] = ()
    """Lost regions, overrides and maintenance windows in force on the side before."""
    conditions_after: tuple[str, ...] = ()
    """Lost regions, overrides and maintenance windows in force on the side after."""
    rejections: tuple[OverrideRejection, ...] = ()
    """Reasons for which proposed overrides would not be set now; the side after has them nevertheless."""


class DnsResponse(msgspec.Struct, frozen=True):
    """The names of the policy in force."""

    names: tuple[NameRecords, ...]
    policy_digest: str

"""A small fleet for tests of the core: three regions, two of them in the EU, one model, one governed tenant."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.operations import RolloutRules
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.routing.reasons import Refusal
from penstock.routing.region_selection import Closures, RegionChoice, RegionRequest, RegionView, draw, region_options

MODEL = "llama-3.1-8b"

FRANKFURT = Region("eu-de", "DE", 50.11, 8.68, frozenset({"DE", "EU"}))
MADRID = Region("eu-es", "ES", 40.42, -3.70, frozenset({"ES", "EU"}))
WASHINGTON = Region("us-east", "US", 38.90, -77.04, frozenset({"US"}))

EU_ONLY = ResidencyRule(
    "personal-data-stays-in-the-eu",
    data_classes=frozenset({"personal"}),
    allow=frozenset({"eu-de", "eu-es"}),
    source="residency.yaml:3",
)


AT_ONCE = RolloutRules(
    shadow_s=0.0, max_moved_share=1.0, canary_s=0.0, min_requests=0, max_failure_increase=1.0, watch_s=0.0
)
"""Rollout rules with which every change of policy is in force immediately."""


def policy(*rules: ResidencyRule) -> Policy:
    """The fleet's policy with `rules`, or with EU_ONLY."""
    return Policy(
        regions={region.name: region for region in (FRANKFURT, MADRID, WASHINGTON)},
        models={MODEL: Model(MODEL)},
        tenants={
            "personal": Tenant("personal", "personal"),
            "open": Tenant("open", "open"),
        },
        residency=rules or (EU_ONLY,),
    )


def with_bias(policy: Policy, bias_ms: dict[str, float]) -> Policy:
    """The policy with other biases (ms) of regions."""
    return _with_fields(policy, {name: {"bias_ms": ms} for name, ms in bias_ms.items()})


def with_spillover_orders(policy: Policy, orders: dict[str, tuple[str, ...]]) -> Policy:
    """The policy with other spillover orders, by origin."""
    return _with_fields(policy, {name: {"spillover_order": order} for name, order in orders.items()})


def _with_fields(policy: Policy, fields: dict[str, dict[str, Any]]) -> Policy:
    changed = {name: msgspec.structs.replace(policy.regions[name], **fields[name]) for name in fields}
    return msgspec.structs.replace(policy, regions=policy.regions | changed)


def healthy(*regions: str, **fields: object) -> dict[str, RegionView]:
    """Views of regions that are healthy and ready."""
    return {name: RegionView(RegionState.HEALTHY, ready=True, **fields) for name in regions}  # type: ignore[arg-type]


def plan(origin: str, residency: str, **shares: float) -> RegionPlan:
    """A plan for one class; names of regions have _ instead of -."""
    arcs = tuple(
        Arc(name.replace("_", "-"), share, ArcReason.HOME if name.replace("_", "-") == origin else ArcReason.SPILLOVER)
        for name, share in shares.items()
    )
    return RegionPlan(origin, 1, 1, "digest", 0.0, (ClassPlan(MODEL, residency, arcs, ()),))


def choose_region(
    policy: Policy, origin: str, permitted: Any, plan: Any, views: Any, *, rng: Random, **more: Any
) -> RegionChoice | Refusal:
    """Draw one region from `region_options`; further arguments are fields of the request and the closures."""
    session, tried, overflow = more.pop("session", None), more.pop("tried", {}), more.pop("overflow", False)
    request = RegionRequest(origin, MODEL, permitted, tried, overflow, session, more.pop("may_spill", True))
    request = msgspec.structs.replace(request, spared_s=more.pop("spared_s", {}))
    options = region_options(policy, plan, request, views, Closures(**more))
    return options if isinstance(options, Refusal) else draw(options, rng, session)

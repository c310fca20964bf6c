"""Checks the possible results of each stage of a live decision, with the functions that the agents call.

Forbidden regions are made as attractive as possible: healthy, idle, near, with spill credits, with nearly all of the
plan's shares and first among its fallbacks. Random draws are replaced by an enumeration of all outcomes (`EveryDraw`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, product
from random import Random
from typing import Any

import msgspec
from msgspec import UNSET

from penstock.health.region_health import RegionState
from penstock.jobs.store_selection import select_store
from penstock.planning.plan import Arc, ArcReason, ClassPlan, Closed, RegionPlan
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, residency_class
from penstock.routing.decision import Decision, authorize_at_origin, decide, within_mask
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionChoice, RegionRequest, RegionView
from penstock.routing.steering import Client, SteeringAdvisor
from penstock.tenancy.permissions import permits_model, permits_name, restrictions_of
from penstock.verification.breach import Breach, breach, permitted
from penstock.verification.situations import Situation
from penstock.wire.identity import ProcessRole, SpiffeId
from penstock.wire.route_context import RouteContext, check

MAX_REGIONS = 6
"""Maximum size of a residency class of which every set of losses is enumerated."""

MAX_DECISIONS = 20_000
"""Approximate maximum number of decisions for a larger class: small losses and remainders are enumerated first."""

_SIGNER = SpiffeId("verification", ProcessRole.AGENT, "agent", "elsewhere")
"""The signer of the route contexts with which servers are checked; the check computes no signature."""


class EveryDraw(Random):
    """A random source whose outcome is set, so that all outcomes of a draw can be enumerated."""

    def __init__(self) -> None:
        super().__init__(0)
        self.take = 0
        """Index of the outcome to return."""
        self.outcomes = 1
        """Number of possible outcomes of the last draw."""

    def choices(self, population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
        """The element at index `take` of those with a positive weight."""
        possible = [value for value, weight in zip(population, weights, strict=True) if weight > 0.0]
        self.outcomes = len(possible)
        return [possible[min(self.take, len(possible) - 1)]]


def at_origins(policy: Policy, situation: Situation) -> Iterator[Breach]:
    """Check that the residency masks agree with the rules at every origin."""
    expected = permitted(policy, situation)
    model = next(iter(policy.models))
    for origin in policy.regions:
        answer = authorize_at_origin(policy, origin, model, situation.facts)
        if isinstance(answer, Mask):
            for region in sorted(answer.permitted.regions - expected):
                yield breach(policy, "residency", situation, region, f"permitted at {origin} against the rules")
            if origin not in expected or answer.permitted != residency_class(expected):
                yield breach(policy, "residency", situation, origin, f"handled there as class {answer.permitted.name}")
        elif wrong := sorted(set(answer.try_regions) - expected):
            yield breach(policy, "residency", situation, wrong[0], f"suggested to clients that came to {origin}")
        elif wrong_urls := sorted(set(answer.try_urls) - _urls(policy, expected)):
            yield breach(policy, "residency", situation, origin, f"names the URL {wrong_urls[0]} of a forbidden region")
        elif answer.reason is not _reason_to_refuse(situation, expected, origin):
            yield breach(policy, "residency", situation, origin, f"refused there as {answer.reason}")


def _urls(policy: Policy, regions: frozenset[str]) -> set[str]:
    entries = [policy.regions[region].entry for region in regions]
    return {entry.url for entry in entries if isinstance(entry, RegionEntry)}


def at_steering(policy: Policy, situation: Situation) -> Iterator[Breach]:
    """Check the entries that steering recommends while all regions are healthy and while all permitted ones failed.

    The same check applies to clients without a known tenant, whose entries must be permitted for every tenant.
    """
    expected = permitted(policy, situation)
    steer = SteeringAdvisor(policy)
    facts = situation.facts
    ready = {(name, model) for name in policy.regions for model in policy.models}
    for state in (RegionState.HEALTHY, RegionState.FAILED):
        states = {name: state if name in expected else RegionState.HEALTHY for name in policy.regions}
        for tenant in (facts.tenant, None):
            for entry in steer.advise(Client(facts.location, tenant), states, ready).entries:
                if entry.region not in expected:
                    yield breach(policy, "steer", situation, entry.region, "advised as an entry")


def at_pools(policy: Policy) -> Iterator[Breach]:
    """Check that no sender may use a model that is reserved for others, nor its adapters. All ways to a model end in
    these permissions: its name, a name that it serves, and fallbacks."""
    for sender in policy.senders.values():
        restrictions = restrictions_of(policy, sender)
        for model in policy.models.values():
            adapters = (pattern.replace("*", "x") for pattern in model.adapters)
            if not permits_model(policy, restrictions, model.name) and not any(
                permits_name(restrictions, adapter) for adapter in adapters
            ):
                continue
            own = {"tier": sender.tier, "data class": sender.data_class, "tenant": sender.name}
            for (kind, value), only in zip(own.items(), model.reserved_for, strict=True):
                if only is not UNSET and not any(value == each for each in only):
                    detail = f"is reserved for other values of {kind} than {value or 'none'}"
                    yield Breach("permissions", f"tenant {sender.name}", f"model {model.name}", (), detail, ())


def at_servers(policy: Policy, situation: Situation) -> Iterator[Breach]:
    """Check that a server rejects forbidden forwarded requests itself, even from an origin with another policy."""
    expected = permitted(policy, situation)
    for here in policy.regions:
        context = RouteContext(
            "verify",
            _SIGNER.region,
            here,
            situation.facts.tenant,
            situation.facts.data_class,
            situation.facts.location,
            "model",
            tuple(policy.regions),
            "",
            0.0,
            0.0,
        )
        taken = check(context, _SIGNER, policy, here, 0.0) is None
        if taken is not (here in expected):
            yield breach(policy, "server", situation, here, "accepts it" if taken else "refuses what it may serve")
        unasked = msgspec.structs.replace(context, residency=())
        if check(unasked, _SIGNER, policy, here, 0.0) is None:
            yield breach(policy, "server", situation, here, "accepts what its origin's policy forbids")


def at_job_stores(policy: Policy, situation: Situation) -> Iterator[Breach]:
    """Check that files and batches are kept only in stores that no agent of a forbidden region reads."""
    expected = permitted(policy, situation)
    for here in policy.regions:
        store = select_store(policy, here, expected)
        if isinstance(store, Refusal):
            continue
        for region in sorted(store.readers - expected):
            yield breach(policy, "job store", situation, region, f"reads the store {store.name} of {here}")


def at_within_mask(policy: Policy, situation: Situation) -> Iterator[Breach]:
    """Check that `within_mask`, the last check of every decision, accepts exactly the permitted regions."""
    regions = permitted(policy, situation)
    held = Mask(residency_class(regions))
    for region in policy.regions:
        passed = isinstance(within_mask(Decision(held, RegionChoice(region, ArcReason.HOME, False), ())), Decision)
        if passed is not (region in regions):
            yield breach(policy, "gate", situation, region, "passes" if passed else "is kept from its own class")


class Reached(msgspec.Struct, frozen=True):
    """The result of enumerating the decisions of one residency class."""

    decisions: int
    """Number of decisions enumerated."""
    whole: bool
    """Whether every set of lost regions was enumerated, not only the small ones."""
    breaches: tuple[Breach, ...]


def at_decisions(policy: Policy, situation: Situation) -> Reached:
    """Check the regions chosen for one class, for every origin, set of losses, plan and retry, of batch requests too.

    A retry excludes the regions already tried, as a loss does. Each set of losses is therefore enumerated both as
    failures and as earlier rejections.

    Args:
        policy: the policy to check.
        situation: any situation of the class.
    """
    regions = permitted(policy, situation)
    held = Mask(residency_class(regions))
    breaches: list[Breach] = []
    decisions = 0
    whole = True
    rng = EveryDraw()
    model = next(iter(policy.models))
    for lost in _losses(sorted(regions)):
        if decisions > MAX_DECISIONS and len(regions) > MAX_REGIONS:
            whole = False
            break
        for origin in sorted(regions):
            for views, tried, plan, overflow in _circumstances(policy, origin, model, held, lost):
                request = RegionRequest(origin, model, held.permitted, tried, overflow)
                for each in (request, msgspec.structs.replace(request, batch_at=0.0)):
                    for region in _answers(policy, plan, held, each, views, rng):
                        decisions += 1
                        if region is not None and (region not in regions or region in lost):
                            breaches.append(breach(policy, "decide", situation, region, f"chosen at {origin}", lost))
    return Reached(decisions, whole, tuple(breaches))


def _losses(regions: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every subset of the regions, small ones first, each followed by its complement."""
    for size in range(len(regions) // 2 + 1):
        for few in combinations(regions, size):
            yield few
            if 2 * size < len(regions):
                yield tuple(name for name in regions if name not in few)


_Circumstance = tuple[dict[str, RegionView], dict[str, Reason], RegionPlan | None, bool]


def _circumstances(
    policy: Policy, origin: str, model: str, held: Mask, lost: tuple[str, ...]
) -> Iterator[_Circumstance]:
    """All combinations of fleet state and plan for one set of losses.

    Losses are failures or rejections; regions are on a ramp or not, busy or idle, with spill credits or without; and
    there is no plan, a plan, or a plan whose permitted regions are all closed, completely or except as last resort.
    """
    tempting = RegionView(RegionState.HEALTHY, True, credits=100, batch_room=100)
    arcs = tuple(
        Arc(name, 0.001 if name in held.permitted.regions else 0.999, ArcReason.HOME) for name in policy.regions
    )
    entry = ClassPlan(model, held.permitted.name, arcs, tuple(policy.regions))
    planned = RegionPlan(origin, 1, 1, "", 0.0, (entry,))
    shut, emptied = (
        msgspec.structs.replace(
            planned, closed=tuple(Closed(name, model, last_resort) for name in sorted(held.permitted.regions))
        )
        for last_resort in (False, True)
    )
    plain = product((False, True), (1.0, 0.5), (0.0, 60.0), (0, 3), (planned,), (False, True))
    unplanned = product((False, True), (1.0, 0.5), (0.0, 60.0), (0, 3), (None,), (False,))
    closed = product((False, True), (1.0,), (0.0,), (3,), (shut, emptied), (False, True))
    for refused, weight, wait_s, granted, plan, overflow in chain(plain, unplanned, closed):
        views = {}
        for name in policy.regions:
            if name not in held.permitted.regions:
                views[name] = tempting
            elif name in lost and not refused:
                views[name] = RegionView(RegionState.FAILED, True, credits=granted, batch_room=granted)
            else:
                waits_s = wait_s if name == origin else 0.0
                views[name] = RegionView(RegionState.HEALTHY, True, weight, waits_s, granted, batch_room=granted)
        yield views, dict.fromkeys(lost, Reason.SATURATED) if refused else {}, plan, overflow


def _answers(
    policy: Policy,
    plan: RegionPlan | None,
    held: Mask,
    request: RegionRequest,
    views: dict[str, RegionView],
    rng: EveryDraw,
) -> Iterator[str | None]:
    """Every region that the decision may return; None for a rejection."""
    rng.take, rng.outcomes = 0, 1
    while rng.take < rng.outcomes:
        rng.outcomes = 1
        answer = decide(policy, plan, held, request, views, rng)
        rng.take += 1
        yield None if isinstance(answer, Refusal) else answer.choice.region


def _reason_to_refuse(situation: Situation, expected: frozenset[str], origin: str) -> Reason | None:
    if situation.governed_blindly:
        return Reason.LOCATION_UNKNOWN
    if not expected:
        return Reason.NO_PERMITTED_REGION
    return Reason.MISDIRECTED if origin not in expected else None

"""Warnings: rules, pools, patterns and prices without effect, past events, maintenance windows that together empty a
residency class or a DNS name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from penstock.dns.permitted_regions import permitted_regions
from penstock.overrides.maintenance import Occurrence, occurrences
from penstock.policy.adapter_patterns import matches, overlap
from penstock.policy.kinds.models import UNSTATED_COST, CostUnit
from penstock.policy.kinds.operations import PERIOD_S, MaintenanceWindow, Recurrence
from penstock.policy.model_versions import reserved_model
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass, cite
from penstock.policy.time_zone import local_s
from penstock.tenancy.budget_lease import MONEY
from penstock.tenancy.permissions import is_open_to
from penstock.verification.situations import Situation

MOMENT = "%Y-%m-%d at %H:%M UTC"


def rule_warnings(policy: Policy, found: list[Situation], classes: list[ResidencyClass]) -> Iterator[str]:
    """Warnings about rules that match no request or forbid no region, and about accepted losses without a class."""
    for at, rule in enumerate(policy.residency):
        if not any(situation.applies[at] for situation in found):
            yield f"residency rule {cite(rule)} matches no tenant's requests"
        elif not rule.deny and (rule.allow is None or rule.allow >= policy.regions.keys()):
            yield f"residency rule {cite(rule)} keeps requests from no region"
    existing = {residency.regions for residency in classes}
    for accepted in policy.accepted_losses:
        if accepted.regions not in existing:
            yield f"accepted loss {accepted.name} is of no residency class: none permits exactly those regions"


def pool_warnings(policy: Policy) -> Iterator[str]:
    """Warnings about models that are reserved for tenants who are not in the bundle, and about tenants for whom a name
    is served by a model that they may not use."""
    for model in policy.models.values():
        for name in model.only_tenants or ():
            if name not in policy.tenants:
                yield f"model {model.name} is reserved for {name}, which must be a tenant that the API creates"
    for versions in policy.versions.values():
        for sender in policy.senders.values():
            served_by = reserved_model(versions, sender)
            if served_by is not None and not is_open_to(policy.models[served_by], sender):
                yield f"{versions.name} is served to {sender.name} by {served_by}, which {sender.name} may not use"


def pattern_warnings(policy: Policy) -> Iterator[str]:
    """Warnings about patterns that match no name of a model and no route. Those of tenants are not checked, since the
    API creates tenants."""
    names = (*policy.models, *policy.versions, *(each for model in policy.models.values() for each in model.adapters))
    routes = tuple(route.name for route in policy.routes if route.offered)
    found = [(f"tier {tier.name}", "models", tier.models, names) for tier in (policy.tiers or {}).values()]
    found += [(f"tier {tier.name}", "routes", tier.routes, routes) for tier in (policy.tiers or {}).values()]
    if policy.coalescing:
        found.append(("coalescing", "routes", policy.coalescing.routes, routes))
    found += [(f"result cache {each.name}", "routes", each.routes, routes) for each in policy.result_caches or ()]
    for which, field, patterns, known in found:
        for pattern in patterns or ():
            if not any(overlap(pattern, name) for name in known):
                yield f"{which}: {pattern} in `{field}` matches none of the bundle"


def price_warnings(policy: Policy) -> Iterator[str]:
    """Warnings about budgets of money without prices, about models that the newest list lacks, and about prices of
    units that requests do not have, since they cost tokens."""
    if not policy.prices:
        for sender in policy.senders.values():
            units = [budget.unit.value for budget in sender.budgets if budget.unit in MONEY]
            if units:
                yield f"{', '.join(units)} of {sender.name} limits nothing, since the policy has no prices"
    else:
        newest = max(policy.prices, key=lambda each: each.valid_from)
        free = [name for name in policy.models if not any(matches(each.model, name) for each in newest.models)]
        if free:
            yield f"prices {newest.name} do not name {', '.join(free)}: their requests cost nothing"
    for model in policy.models.values():
        costs_tokens = model.cost.unit is CostUnit.TOKEN or model.cost == UNSTATED_COST
        for prices in policy.prices or ():
            price = next((each for each in prices.models if matches(each.model, model.name)), None)
            if costs_tokens and price is not None and price.per_unit:
                yield (
                    f"prices {prices.name}: per_unit has no effect on texts of model {model.name}, which cost tokens;"
                    " use per_request, or state the cost of the model"
                )


def event_warnings(policy: Policy, now: float) -> Iterator[str]:
    """Warnings about announced events that ended before `now` (Unix time, in seconds)."""
    for event in policy.events or ():
        ends_at = event.starts_at + event.duration_s
        if ends_at <= now:
            ended = datetime.fromtimestamp(ends_at, UTC).strftime(MOMENT)
            where = f" ({event.source})" if event.source else ""
            yield f"event {event.name}{where} ended on {ended} and has no effect; remove it or correct starts_at"


def window_warnings(policy: Policy, classes: Iterable[ResidencyClass]) -> Iterator[str]:
    """One warning per residency class or DNS name and set of windows that empty it together, with the first occurrence.

    The set of open windows grows only when a window begins. Once all recurring windows have begun, every week is equal
    to the next until a clock change. It therefore suffices to check the beginnings around each non-recurring window,
    those of one week after the last recurring window has begun, and those of one week after each distinct kind of
    clock change.
    """
    known = [
        (f"residency class {residency.name}", residency.regions, "its requests stay in them as the last resort")
        for residency in sorted(classes, key=lambda residency: (len(residency.regions), residency.name))
    ]
    known += [
        (f"DNS name {name.name}", regions, "it resolves to none of them then")
        for name in (policy.dns_names or {}).values()
        if (regions := permitted_regions(policy, name))
    ]
    reported: set[tuple[str, frozenset[str]]] = set()
    for at in _beginnings(policy):
        open_now = [
            occurrence
            for window in policy.maintenance
            for occurrence in occurrences(policy, window, at, at)
            if at < occurrence.ends_at
        ]
        for what, regions, effect in known:
            emptying = [occurrence for occurrence in open_now if occurrence.window.regions & regions]
            covered = frozenset[str]().union(*(occurrence.window.regions for occurrence in emptying))
            names = frozenset(occurrence.window.name for occurrence in emptying)
            if regions <= covered and (what, names) not in reported:
                reported.add((what, names))
                yield f"{_message(what, emptying, at)}; {effect}"


def _beginnings(policy: Policy) -> list[float]:
    """The times to check (Unix time, in seconds): those at which another window may open."""
    recurring = [window for window in policy.maintenance if window.recurrence is not Recurrence.NEVER]
    spans = [
        (window.starts_at - window.lead_s, window.starts_at + window.duration_s)
        for window in policy.maintenance
        if window.recurrence is Recurrence.NEVER
    ]
    if recurring:
        settled_at = max(window.starts_at for window in recurring)
        spans += [(at, at + PERIOD_S[Recurrence.WEEKLY]) for at in (settled_at, *_clock_changes(policy, settled_at))]
    found = {
        occurrence.drains_at
        for since, until in spans
        for window in policy.maintenance
        for occurrence in occurrences(policy, window, since, until)
    }
    return sorted(found)


def _clock_changes(policy: Policy, since: float) -> Iterator[float]:
    """The times (Unix time, in seconds) of the first clock change of each kind in the zones that windows use.

    Two changes are of one kind if every zone changes between the same offsets.
    """
    zones = list(policy.time_zones.values())
    known: set[tuple[tuple[float, ...], tuple[float, ...]]] = set()
    for at in sorted({change.at for zone in zones for change in zone.changes if change.at > since}):
        before, after = (tuple(local_s(zone, now) - now for zone in zones) for now in (at - 1.0, float(at)))
        if (before, after) not in known:
            known.add((before, after))
            yield at


def _message(what: str, emptying: list[Occurrence], at: float) -> str:
    windows = " and ".join(_cite_window(occurrence.window) for occurrence in emptying)
    when = datetime.fromtimestamp(at, UTC).strftime(MOMENT)
    verb = "empties" if len(emptying) == 1 else "empty"
    return f"maintenance: {windows} {verb} all regions of {what}, such as on {when}"


def _cite_window(window: MaintenanceWindow) -> str:
    return f"window {window.name} ({window.source})" if window.source else f"window {window.name}"

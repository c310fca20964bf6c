"""Comparison of two policies under the same demand, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.output import table_of
from penstock.verification.situations import listed

if TYPE_CHECKING:
    # Imported for types only, so that commands without such values do not load the planner.
    from control_plane.status.query_responses import WhatIfResponse
    from penstock.what_if.demand_outcomes import Totals
    from penstock.what_if.moved_demand import Move

MAX_MOVES = 30
"""Maximum number of moves in the table; `-o json` has all of them."""


def simulated_json(before: Totals, after: Totals, moved: Sequence[Move]) -> dict[str, Any]:
    """Return both totals, and every move, for JSON."""
    return {
        "before": msgspec.to_builtins(before),
        "after": msgspec.to_builtins(after),
        "moved_per_s": sum(move.requests_per_s for move in moved),
        "moves": msgspec.to_builtins(moved),
    }


def simulated_view(before: Totals, after: Totals, moved: Sequence[Move]) -> RenderableType:
    """Return the totals in two columns, then the requests that move."""
    # The rates of moves are those after a growth of demand.
    part = sum(move.requests_per_s for move in moved) / after.requests_per_s if after.requests_per_s else 0.0
    summary = Text(f"{part:.1%} of requests get another region or another answer")
    more = len(moved) - MAX_MOVES
    rest = [Text(f"and {more} smaller moves; -o json has all of them", "dim")] if more > 0 else []
    return Group(_totals(before, after), summary, *([_moves(moved)] if moved else []), *rest)


def live_view(found: WhatIfResponse) -> RenderableType:
    """Return the comparison by a control plane, with the conditions of both sides and the rejected overrides."""
    rejected = [
        Text(f"would be rejected ({each.by.value.replace('_', ' ')}): {each.detail}", "bold red")
        for each in found.rejections
    ]
    notes = [Text(f"demand {found.demand}; fleet {found.fleet}", "dim")]
    both = [condition for condition in found.conditions_before if condition in found.conditions_after]
    for side, conditions in (("before", found.conditions_before), ("after", found.conditions_after)):
        notes += [Text(f"{side}: {each}", "dim") for each in conditions if each not in both]
    notes += [Text(f"in effect: {each}", "dim") for each in both]
    return Group(*rejected, simulated_view(found.before, found.after, found.moves), *notes)


def _totals(before: Totals, after: Totals) -> Table:
    numbers = ("before", "after", "change")
    table = table_of("", *numbers, title="Demand under both", right=numbers)
    for name, old, new, form in [
        ("requests /s", before.requests_per_s, after.requests_per_s, ".1f"),
        ("served /s", before.served_per_s, after.served_per_s, ".1f"),
        ("sent to another entry /s", before.sent_elsewhere_per_s, after.sent_elsewhere_per_s, ".1f"),
        ("round trip ms, mean", before.round_trip_ms, after.round_trip_ms, ".1f"),
        ("round trip ms, p95", before.p95_round_trip_ms, after.p95_round_trip_ms, ".1f"),
        ("expected wait ms", before.wait_ms, after.wait_ms, ".1f"),
        ("GPU cost /h", before.gpu_cost_per_hour, after.gpu_cost_per_hour, ".2f"),
        *_burst(before, after),
        ("egress cost /h", before.egress_cost_per_hour, after.egress_cost_per_hour, ".4f"),
        *(
            (
                f"refused /s: {reason}",
                before.refused_per_s.get(reason, 0.0),
                after.refused_per_s.get(reason, 0.0),
                ".1f",
            )
            for reason in sorted(before.refused_per_s.keys() | after.refused_per_s.keys())
        ),
        *(
            (f"load of {name}", before.load.get(name, 0.0), after.load.get(name, 0.0), ".0%")
            for name in sorted(before.load.keys() | after.load.keys())
        ),
        *_endpoints(before, after),
    ]:
        same = format(old, form) == format(new, form)
        table.add_row(name, format(old, form), format(new, form), "" if same else format(new - old, "+" + form))
    return table


def _burst(before: Totals, after: Totals) -> list[tuple[str, float, float, str]]:
    """Return what burst endpoints serve and cost; nothing where no side needs them."""
    if not before.burst_per_s and not after.burst_per_s:
        return []
    return [
        ("of it on burst endpoints /s", before.burst_per_s, after.burst_per_s, ".1f"),
        ("burst cost /h", before.burst_cost_per_hour, after.burst_cost_per_hour, ".2f"),
    ]


def _endpoints(before: Totals, after: Totals) -> list[tuple[str, float, float, str]]:
    """Return the numbers of needed endpoints that change, the largest changes first."""
    old, new = (
        {(region, model): count for region, counts in side.needed_endpoints.items() for model, count in counts.items()}
        for side in (before, after)
    )
    changed: list[tuple[str, float, float, str]] = [
        (f"endpoints needed: {model} in {region}", old.get((region, model), 0), new.get((region, model), 0), "d")
        for region, model in sorted(old.keys() | new.keys())
        if old.get((region, model), 0) != new.get((region, model), 0)
    ]
    return sorted(changed, key=lambda row: -abs(row[2] - row[1]))[:MAX_MOVES]


def _moves(moved: Sequence[Move]) -> Table:
    numbers = ("share", "requests /s")
    table = table_of(
        "origin", "tenant", "model", "clients in", "class", "from", "to", *numbers, title="Who moves", right=numbers
    )
    for move in moved[:MAX_MOVES]:
        changed = move.residency_before != move.residency_after
        residency = (
            f"{move.residency_before or '-'} -> {move.residency_after or '-'}" if changed else move.residency_after
        )
        table.add_row(
            move.origin or "(steered)",
            move.tenant,
            move.model,
            listed(move.countries),
            residency,
            move.source,
            move.target,
            f"{move.share:.1%}",
            f"{move.requests_per_s:.2f}",
        )
    return table

"""Tables of plans: the regions that serve each traffic class, the reasons, and changes between plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from control_plane.cli.output import table_of
from penstock.planning.plan import Arc, RegionPlan
from penstock.planning.plan_diff import ArcChange
from penstock.planning.plan_history import PlanDiff, PlanSummary


def plan_view(slices: Mapping[str, RegionPlan]) -> RenderableType:
    """Return a table of every class of every origin: its arcs with their reasons, and its fallbacks."""
    if not slices:
        return Text("no plan is in the store", "bold red")
    newest = max(slices.values(), key=lambda plan: (plan.epoch, plan.generation))
    heading = f"plan {newest.generation} (epoch {newest.epoch}), policy {newest.policy_digest[:12]}"
    if newest.provenance is not None:
        heading += f", commit {newest.provenance.commit[:12]} by {newest.provenance.author}"
    table = table_of("origin", "model", "may be in", "served by", "why", "fallbacks")
    for origin, plan in sorted(slices.items()):
        for entry in plan.classes:
            for number, arc in enumerate(sorted(entry.arcs, key=lambda arc: (-arc.share, arc.server))):
                first = number == 0
                table.add_row(
                    origin if first else "",
                    entry.model if first else "",
                    entry.residency if first else "",
                    f"{arc.server} {arc.share:.0%}",
                    _why(arc),
                    ", ".join(entry.fallbacks) if first else "",
                )
    parts: list[RenderableType] = [Text(heading), table]
    closed = sorted({(pool.region, pool.model) for plan in slices.values() for pool in plan.closed})
    parts += [Text(f"closed by an operator: {region} for {model}", "magenta") for region, model in closed]
    if not any(plan.classes for plan in slices.values()):
        parts.append(Text("no demand is reported yet: the nearest region serves every request", "dim"))
    return Group(*parts)


def plans_view(summaries: Iterable[PlanSummary]) -> RenderableType:
    """Return a table of the stored plans."""
    table = table_of("generation", "made", "by", "policy", "arcs changed", "circumstances", title="Plans, newest first")
    for summary in summaries:
        made = f"{datetime.fromtimestamp(summary.made_at, UTC):%Y-%m-%d %H:%M:%S}Z"
        circumstances = "; ".join(summary.circumstances)
        table.add_row(
            str(summary.generation),
            made,
            summary.leader,
            summary.policy_digest[:12],
            str(summary.changes),
            circumstances,
        )
    return table


def plan_diff_view(diff: PlanDiff) -> RenderableType:
    """Return a table of the arcs whose share changed."""
    heading = Text(f"plan {diff.before.generation} → plan {diff.after.generation}")
    if diff.before.policy_digest != diff.after.policy_digest:
        heading.append(f", policy {diff.before.policy_digest[:12]} → {diff.after.policy_digest[:12]}")
    if not diff.changes:
        return Group(heading, Text("no share differs", "dim"))
    table = table_of("origin", "model", "may be in", "served by", "share", "why")
    for change in diff.changes:
        share = Text(f"{change.before:.0%} → {change.after:.0%}", "green" if change.after > change.before else "yellow")
        table.add_row(change.origin, change.model, change.residency, change.server, share, _why_changed(change))
    return Group(heading, table)


def _why(arc: Arc) -> str:
    return f"{arc.why.value}: {arc.detail}" if arc.detail else arc.why.value


def _why_changed(change: ArcChange) -> str:
    if change.why is None and change.detail:
        return change.detail
    if change.why is None:
        return f"gone; it was {change.why_before.value}" if change.why_before is not None else "gone"
    return f"{change.why.value}: {change.detail}" if change.detail else change.why.value

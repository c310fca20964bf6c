"""Plans as a person reads them in a terminal: who serves whom and why, and what changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from control_plane.cli.output import table_of
from control_plane.planning.plan_history import PlanDiff, PlanSummary
from penstock.planning.plan import Arc, RegionPlan
from penstock.planning.plan_diff import ArcChange


def plan_view(slices: Mapping[str, RegionPlan]) -> RenderableType:
    """Every class of every origin: its arcs with their reasons, and its fallbacks."""
    if not slices:
        return Text("no plan is in the store", "bold red")
    newest = max(slices.values(), key=lambda one: (one.epoch, one.generation))
    heading = f"plan {newest.generation} (epoch {newest.epoch}), policy {newest.policy_digest[:12]}"
    if newest.provenance is not None:
        heading += f", commit {newest.provenance.commit[:12]} by {newest.provenance.author}"
    table = table_of("origin", "model", "may be in", "served by", "why", "fallbacks")
    for origin, one in sorted(slices.items()):
        for entry in one.classes:
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
    closed = sorted({(one.region, one.model) for slice_ in slices.values() for one in slice_.closed})
    parts += [Text(f"closed by an operator: {region} for {model}", "magenta") for region, model in closed]
    if not any(one.classes for one in slices.values()):
        parts.append(Text("nobody has asked for anything yet: whatever comes is served by the nearest region", "dim"))
    return Group(*parts)


def plans_view(summaries: Iterable[PlanSummary]) -> RenderableType:
    """The plans that are kept."""
    table = table_of("generation", "made", "by", "policy", "arcs changed", "circumstances", title="Plans, newest first")
    for one in summaries:
        made = f"{datetime.fromtimestamp(one.made_at, UTC):%Y-%m-%d %H:%M:%S}Z"
        circumstances = "; ".join(one.circumstances)
        table.add_row(str(one.generation), made, one.leader, one.policy_digest[:12], str(one.changes), circumstances)
    return table


def plan_diff_view(diff: PlanDiff) -> RenderableType:
    """Whose share moved where."""
    heading = Text(f"plan {diff.before.generation} → plan {diff.after.generation}")
    if diff.before.policy_digest != diff.after.policy_digest:
        heading.append(f", policy {diff.before.policy_digest[:12]} → {diff.after.policy_digest[:12]}")
    if not diff.changes:
        return Group(heading, Text("no share differs", "dim"))
    table = table_of("origin", "model", "may be in", "served by", "share", "why")
    for one in diff.changes:
        share = Text(f"{one.before:.0%} → {one.after:.0%}", "green" if one.after > one.before else "yellow")
        table.add_row(one.origin, one.model, one.residency, one.server, share, _why_changed(one))
    return Group(heading, table)


def _why(arc: Arc) -> str:
    return f"{arc.why.value}: {arc.detail}" if arc.detail else arc.why.value


def _why_changed(change: ArcChange) -> str:
    if change.why is None:
        return f"gone; it was {change.why_before.value}" if change.why_before is not None else "gone"
    return f"{change.why.value}: {change.detail}" if change.detail else change.why.value

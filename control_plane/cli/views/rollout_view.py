"""Tables of rollouts and policy revisions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.output import table_of
from control_plane.policy.source.revision import Revision
from control_plane.rollout.model_rollout_resource import ModelRolloutStatus, ModelRolloutSummary
from control_plane.rollout.rollout_resource import AgentPolicyState, RolloutStatus, RolloutSummary
from penstock.policy.provenance import Provenance
from penstock.rollout.region_evidence import RegionEvidence, RequestResults
from penstock.rollout.rollout_progress import RolloutOutlook

MAX_SHOWN = 30
"""Maximum number of changes, and of moves, that are listed."""


def rollout_view(status: RolloutStatus) -> RenderableType:
    """Return the progress of a rollout, its changes, and the policy of each agent."""
    parts: list[RenderableType] = [_heading(status.rollout), *map(Text, outlook_lines(status.outlook))]
    if status.evidence:
        parts.append(_evidence(status.evidence))
    if status.changes:
        parts.append(_listing("What it says otherwise", [str(change) for change in status.changes]))
    if status.moves:
        moves = [
            f"{move.origin} -> {move.server} ({move.model}): {move.before:.0%} -> {move.after:.0%}"
            for move in status.moves
        ]
        parts.append(_listing("What its plan would move", moves))
    parts += [model_rollout_view(each) for each in status.models]
    return Group(*parts, _agents(status.agents))


def model_rollout_line(rollout: ModelRolloutSummary) -> Text:
    """Return the state of the rollout of a version in one line."""
    text = Text()
    text.append(f"{rollout.name} to {rollout.to}: {rollout.phase.value.replace('_', ' ')}", "bold")
    by = f", by {rollout.by}" if rollout.by else ""
    text.append(f", {rollout.percent:g} % since {_at(rollout.since)}{by}: {rollout.why}")
    return text


def model_rollout_view(status: ModelRolloutStatus) -> RenderableType:
    """Return the rollout of a version: what it waits for, and the results of both versions."""
    table = table_of("version", "when", "requests", "failed", "first byte", "per token", "tokens")
    for version, when, results in (
        (status.rollout.to, "in this phase", status.new),
        (status.rollout.old, "in this phase", status.old),
        (status.rollout.old, "in the phase before", status.before),
    ):
        table.add_row(
            version,
            when,
            str(results.requests),
            f"{results.failed_share:.1%}" if results.requests else "-",
            "-" if results.first_byte_s is None else f"{results.first_byte_s:.3f} s",
            "-" if results.token_s is None else f"{results.token_s * 1000.0:.1f} ms",
            "-" if results.answer_tokens is None else f"{results.answer_tokens:.0f}",
        )
    met = [Text(f"  {'met' if each.is_met else 'waits'}: {each.text}") for each in status.conditions]
    if status.new.score is not None:
        new = status.new
        met.append(
            Text(f"  mean score of {new.scored} pairs of answers: {new.score:+.2f}, above 0 for the new version")
        )
    return Group(model_rollout_line(status.rollout), *met, table)


def rollouts_view(rollouts: Iterable[RolloutSummary]) -> RenderableType:
    """Return a table with a line for each rollout."""
    table = table_of("number", "candidate", "phase", "since", "by", "why")
    for rollout in rollouts:
        number, candidate = str(rollout.number), rollout.candidate[:12]
        table.add_row(number, candidate, rollout.phase.value, _at(rollout.since), rollout.by or "-", rollout.why)
    return table


def revisions_view(revisions: Iterable[Revision]) -> RenderableType:
    """Return a table with a line for each revision; the line of a rejected revision has its first error."""
    table = table_of("number", "judged", "policy", "commit", "author", "subject")
    for revision in revisions:
        source = revision.provenance
        commit, author, subject = (source.commit[:12], source.author, source.subject) if source else ("-", "-", "-")
        result = Text(revision.digest[:12]) if revision.digest else Text(f"refused: {revision.errors[0]}", "red")
        table.add_row(str(revision.number), _at(revision.at), result, commit, author, subject)
    return table


def _heading(rollout: RolloutSummary) -> Text:
    text = Text()
    text.append(f"rollout {rollout.number}: {rollout.phase.value.replace('_', ' ')}", "bold")
    text.append(f" since {_at(rollout.since)}{f', by {rollout.by}' if rollout.by else ''}: {rollout.why}")
    text.append(f"\nin force {_version(rollout.in_force, rollout.provenance_in_force)}")
    if rollout.candidate != rollout.in_force:
        text.append(f"\ncandidate {_version(rollout.candidate, rollout.provenance)}")
    elif rollout.candidate != rollout.stable:
        text.append(f"\na rollback restores {_version(rollout.stable, rollout.stable_provenance)}")
    if rollout.candidate != rollout.stable and rollout.canary:
        text.append(f"\ntried first in {', '.join(rollout.canary)}")
    if rollout.moved_share is not None:
        text.append(f"\nit moves {rollout.moved_share:.1%} of demand")
    return text


def _version(digest: str, provenance: Provenance | None) -> str:
    return f"policy {digest[:12]}{f', commit {provenance}' if provenance else ''}"


def outlook_lines(outlook: RolloutOutlook | None) -> list[str]:
    """Return what the rollout waits for, the time that remains, and the policy that waits for its own rollout."""
    if outlook is None:
        return []
    unmet = [condition.text for condition in outlook.conditions if not condition.is_met]
    lines = []
    if unmet:
        least = "" if outlook.ends_in_s is None else f" ({outlook.ends_in_s:.0f} s remain)"
        lines.append(f"waits for: {'; '.join(unmet)}{least}")
    if (waiting := outlook.waiting) is not None:
        place = "" if waiting.place is None else f", number {waiting.place} in the queue"
        least = "" if waiting.begins_in_s is None else f"; it begins in {waiting.begins_in_s:.0f} s at the earliest"
        lines.append(f"policy {waiting.digest[:12]} of the source is not rolled out{place}: {waiting.why}{least}")
    return lines


def _evidence(evidence: Iterable[RegionEvidence]) -> Table:
    numbers = ("requests", "failed", "first byte", "requests before", "failed before", "first byte before")
    table = table_of("region", "policy", *numbers, title="Evidence of this phase", right=numbers)
    for each in evidence:
        results = [cell for part in (each.now, each.before) for cell in _results(part)]
        table.add_row(each.region, "candidate" if each.runs_candidate else "stable", *results)
    return table


def _results(results: RequestResults) -> tuple[str, str, str]:
    first_byte = "-" if results.first_byte_s is None else f"{1000 * results.first_byte_s:.0f} ms"
    return str(results.requests), f"{results.failed_share:.1%}", first_byte


def _listing(title: str, lines: list[str]) -> Text:
    more = [f"... and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
    return Text("\n".join([f"\n{title}", *(f"  {line}" for line in [*lines[:MAX_SHOWN], *more])]))


def _agents(agents: Iterable[AgentPolicyState]) -> Table:
    table = table_of("region", "agent", "assigned", "in force", "rejection", title="Policy of each agent")
    for agent in agents:
        in_force = Text(agent.in_force[:12] or "-", "" if agent.assigned == agent.in_force else "yellow")
        table.add_row(agent.region, agent.agent, agent.assigned[:12], in_force, agent.rejection or "-")
    return table


def _at(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S}Z"

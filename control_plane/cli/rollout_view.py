"""Tables of rollouts and policy revisions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.output import table_of
from control_plane.policy.source.revision import Revision
from control_plane.rollout.rollout_resource import AgentPolicyState, RolloutStatus, RolloutSummary

MAX_SHOWN = 30
"""Maximum number of changes, and of moves, that are listed."""


def rollout_view(status: RolloutStatus) -> RenderableType:
    """Return the progress of a rollout, its changes, and the policy of each agent."""
    parts: list[RenderableType] = [_heading(status.rollout)]
    if status.changes:
        parts.append(_listing("What it says otherwise", [str(change) for change in status.changes]))
    if status.moves:
        moves = [
            f"{move.origin} -> {move.server} ({move.model}): {move.before:.0%} -> {move.after:.0%}"
            for move in status.moves
        ]
        parts.append(_listing("What its plan would move", moves))
    return Group(*parts, _agents(status.agents))


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
    text.append(f"\npolicy {rollout.candidate[:12]}{f', commit {rollout.provenance}' if rollout.provenance else ''}")
    if rollout.candidate != rollout.stable:
        text.append(f"\nback to {rollout.stable[:12]}")
        if rollout.canary:
            text.append(f", tried first in {', '.join(rollout.canary)}")
    if rollout.moved_share is not None:
        text.append(f"\nit moves {rollout.moved_share:.1%} of demand")
    return text


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

"""Rollouts as the API and commands show them: the fact, and who runs what at this moment."""

from __future__ import annotations

import msgspec

from penstock.fleet.snapshot import Snapshot
from penstock.planning.plan_diff import ArcChange
from penstock.policy.policy_diff import Change
from penstock.policy.provenance import Provenance
from penstock.rollout.state_machine import Phase, Rollout


class RolloutSummary(msgspec.Struct, frozen=True):
    """One rollout."""

    number: int
    candidate: str
    """Digest of the policy that is rolled out."""
    stable: str
    """Digest of the one that every region goes back to."""
    phase: Phase
    since: float
    """Unix time (s) when the phase was entered."""
    began_at: float
    why: str
    """What made the phase so."""
    by: str
    """Who did, where a person did."""
    provenance: Provenance | None
    """Of the candidate."""
    stable_provenance: Provenance | None
    canary: tuple[str, ...]
    """Regions that try it before the others."""
    moved_share: float | None
    """How much (0-1) of all demand the candidate's plan serves elsewhere, as the shadow showed last."""


class AgentPolicyState(msgspec.Struct, frozen=True):
    """What one agent runs, as it said last."""

    region: str
    agent: str
    told: str
    """Digest of the policy that its region is to obey."""
    runs: str
    """Digest of the one that it obeys; empty before the first."""
    generation: int
    """Of the plan that it obeys."""
    refuses: str
    """Why it did not take what was published last; empty where it did."""
    report_age_s: float


class RolloutStatus(msgspec.Struct, frozen=True):
    """The newest rollout, and what there is to know of it now."""

    rollout: RolloutSummary
    agents: tuple[AgentPolicyState, ...]
    """Agents that are heard where this was answered: all of them, unless the leader could not be asked."""
    changes: tuple[Change, ...]
    """What the candidate says differently; empty where the rollout is over or a policy is kept no more."""
    moves: tuple[ArcChange, ...] | None
    """Arcs that differ between both plans while in shadow; null where nobody compares them."""


class RolloutPage(msgspec.Struct, frozen=True):
    """Some rollouts, newest first."""

    items: tuple[RolloutSummary, ...]
    next_cursor: str | None
    """Give it as `cursor` to have those before these; null: there are none."""


def summary(rollout: Rollout, moved_share: float | None = None) -> RolloutSummary:
    """What people want to know of a rollout; `moved_share` is what the shadow shows meanwhile."""
    return RolloutSummary(
        number=rollout.number,
        candidate=rollout.candidate,
        stable=rollout.stable,
        phase=rollout.phase,
        since=rollout.since,
        began_at=rollout.began_at,
        why=rollout.why,
        by=rollout.by,
        provenance=rollout.provenance,
        stable_provenance=rollout.stable_provenance,
        canary=rollout.canary,
        moved_share=rollout.moved_share if rollout.moved_share is not None else moved_share,
    )


def agent_policy_states(rollout: Rollout, snapshot: Snapshot, now: float) -> tuple[AgentPolicyState, ...]:
    """Who runs what; `now` is the clock that reports were received by, in seconds."""
    return tuple(
        AgentPolicyState(
            region=region,
            agent=name,
            told=rollout.digest_for(region),
            runs=held.report.policy_digest,
            generation=held.report.plan_generation,
            refuses=held.report.refused_plan,
            report_age_s=max(0.0, now - held.received_at),
        )
        for (region, name), held in sorted(snapshot.agents.items())
    )

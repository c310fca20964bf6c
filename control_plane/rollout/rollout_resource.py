"""Rollouts as the API and the CLI show them: the stored state, and the policy that each agent runs now."""

from __future__ import annotations

import msgspec

from control_plane.rollout.model_rollout_resource import ModelRolloutStatus
from penstock.fleet.snapshot import Snapshot
from penstock.planning.plan_diff import ArcChange
from penstock.policy.kinds.operations import RolloutRules
from penstock.policy.policy_diff import Change
from penstock.policy.provenance import Provenance
from penstock.rollout.policy_rollout import Phase, Rollout, RolloutEvent
from penstock.rollout.region_evidence import RegionEvidence
from penstock.rollout.rollout_progress import RolloutOutlook


class RolloutSummary(msgspec.Struct, frozen=True):
    """The state of one rollout."""

    number: int
    candidate: str
    """Digest of the policy that is rolled out."""
    stable: str
    """Digest of the policy that a rollback restores."""
    phase: Phase
    since: float
    """Unix time (s) when the phase was entered."""
    began_at: float
    """Unix time (s) when the rollout began."""
    why: str
    """Reason of the last change of phase."""
    by: str
    """Operator who caused the last change of phase; empty if no operator did."""
    provenance: Provenance | None
    """The candidate's commit; null where it is from a folder."""
    stable_provenance: Provenance | None
    """The stable policy's commit; null where it is from a folder."""
    canary: tuple[str, ...]
    """Regions that apply the candidate before all others."""
    moved_share: float | None
    """Share (0-1) of all demand that the candidate's plan moves, by the last shadow comparison."""
    in_force: str = ""
    """Digest of the policy that every region outside the canary is to apply: the stable one, or from `watch` on the
    candidate."""
    provenance_in_force: Provenance | None = None
    """Commit of the policy in force; null where it is from a folder."""
    actions: tuple[RolloutEvent, ...] = ()
    """The actions that are possible in this phase."""


class AgentPolicyState(msgspec.Struct, frozen=True):
    """The policy that one agent runs, by its last report."""

    region: str
    agent: str
    assigned: str
    """Digest of the policy assigned to its region."""
    in_force: str
    """Digest of the policy that the agent runs; empty before its first policy."""
    plan_generation: int
    """Generation of the plan that the agent runs."""
    rejection: str
    """Reason for which the agent rejected the newest plan or policy; empty if the agent accepted both."""
    report_age_s: float
    """Age (s) of the agent's last report."""


class RolloutStatus(msgspec.Struct, frozen=True):
    """The newest rollout, and its progress now."""

    rollout: RolloutSummary
    agents: tuple[AgentPolicyState, ...]
    """Agents that report to the responding control plane; all agents report to the leader."""
    changes: tuple[Change, ...]
    """Differences of the candidate from the stable policy; empty if the rollout is over or the store no longer has both
    policies."""
    moves: tuple[ArcChange, ...] | None
    """Arcs that differ between both plans in the shadow phase; null where no comparison is available."""
    limits: RolloutRules | None = None
    """Stages and limits of the stable policy, which judge the candidate; null if the store no longer has it."""
    evidence: tuple[RegionEvidence, ...] = ()
    """Results of requests since the phase began, by which the candidate is judged; empty if the rollout is over."""
    outlook: RolloutOutlook | None = None
    """What the rollout waits for, and the policy that waits for its own; null where no control plane leads."""
    models: tuple[ModelRolloutStatus, ...] = ()
    """The rollouts of versions of models."""


def summary(rollout: Rollout, moved_share: float | None = None) -> RolloutSummary:
    """Return a rollout for the API; `moved_share` is from the current shadow comparison, if any."""
    found = msgspec.convert(rollout, RolloutSummary, from_attributes=True)
    share = rollout.moved_share if rollout.moved_share is not None else moved_share
    return msgspec.structs.replace(found, moved_share=share, actions=rollout.permitted)


def agent_policy_states(rollout: Rollout, snapshot: Snapshot, now: float) -> tuple[AgentPolicyState, ...]:
    """Return each agent's policy state; `now` is the time (s) by the clock that stamped the reports."""
    return tuple(
        AgentPolicyState(
            region=region,
            agent=name,
            assigned=rollout.digest_for(region),
            in_force=held.report.policy_digest,
            plan_generation=held.report.plan_generation,
            rejection=held.report.refused_plan,
            report_age_s=max(0.0, now - held.received_at),
        )
        for (region, name), held in sorted(snapshot.agents.items())
    )

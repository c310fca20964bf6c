"""The status that a control plane reports: `GET /v1/status`, readiness, and the state that events are derived from.

All values are read from memory, so the status is available while the store is unavailable. The copies of store keys
that it shows are not used for planning.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from adapters.release import release
from adapters.store import keys
from adapters.store.config_store import ConfigStore
from adapters.store.informer import Informer, Mirror
from adapters.store.members import AgentMember, Member
from control_plane.events.change_detector import StateSnapshot
from control_plane.leadership.leader_elector import LeaderElector
from control_plane.overrides.override_resource import OverrideStatus, override_status
from control_plane.overrides.override_store import OverrideStore
from control_plane.planning.planning_loop import PlanningLoop
from control_plane.policy.source.policy_source import PolicySource
from control_plane.rollout.rollout_resource import summary
from control_plane.status.fleet_view import FleetView
from control_plane.status.status import MAX_SHORTFALLS, LeaderStatus, PolicyStatus, SeenBy, Status, StoreStatus
from control_plane.status.status_builder import (
    agent_statuses,
    arc_statuses,
    plan_status,
    policy_status,
    region_statuses,
)
from penstock.log_chains.audit_log_chain import AuditEntry
from penstock.overrides.maintenance import windows
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.rollout.policy_rollout import Rollout

BACKOFF_CAP_S = 3.0
"""Maximum time (s) between two attempts to read the store after it failed."""


class StoreMirrors:
    """Mirrors of registered agents and control planes, plan slices, the newest rollout and the audit head.

    Args:
        store: the fleet's configuration store.
        rng: source of the backoff's jitter.
        on_audit: called after each new audit entry; must not block.
    """

    def __init__(self, store: ConfigStore, rng: Random, on_audit: Callable[[], None]) -> None:
        self.agents = Mirror(store, keys.AGENTS, AgentMember, rng=rng, backoff_cap_s=BACKOFF_CAP_S)
        self.members = Mirror(store, keys.CONTROL_PLANES, Member, rng=rng, backoff_cap_s=BACKOFF_CAP_S)
        self.plans = Mirror(store, keys.PLANS, RegionPlan, rng=rng, backoff_cap_s=BACKOFF_CAP_S)
        self.rollout = Mirror(store, keys.ROLLOUT, Rollout, rng=rng, backoff_cap_s=BACKOFF_CAP_S)
        self.audit_head = Mirror(
            store, keys.AUDIT_HEAD, AuditEntry, rng=rng, on_change=on_audit, backoff_cap_s=BACKOFF_CAP_S
        )

    @property
    def informers(self) -> tuple[Informer, ...]:
        """The informers to start and stop."""
        mirrors = (self.agents, self.members, self.plans, self.rollout, self.audit_head)
        return tuple(mirror.informer for mirror in mirrors)


class StatusReporter:
    """Assembles the status of one control plane.

    Args:
        view: policy, snapshot and plan.
        elector: leadership of this control plane.
        policies: the policy source.
        overrides: the overrides.
        planning: shortfalls, and the slices that the leader published.
        mirrors: registered agents and control planes, rollout and audit head.
    """

    def __init__(
        self,
        view: FleetView,
        elector: LeaderElector,
        policies: PolicySource,
        overrides: OverrideStore,
        planning: PlanningLoop,
        mirrors: StoreMirrors,
    ) -> None:
        self._view = view
        self._elector = elector
        self._policies = policies
        self._overrides = overrides
        self._planning = planning
        self._mirrors = mirrors

    def not_ready(self) -> list[str]:
        """Return the reasons for which this control plane cannot lead now; empty if it can."""
        reasons = []
        if self._policies.current is None:
            reasons.append("no policy is in force: neither the policy source nor the store has a valid one")
        if self._overrides.unreadable:
            reasons.append(
                "planning is paused: the overrides in the store cannot be decoded, possibly written by a newer release"
            )
        if not self._elector.mirror.store_is_up:
            reasons.append("the store does not answer: planning is paused, and agents keep their last plan")
        return reasons

    def status(self, *, agents: bool = True) -> Status:
        """Return the status for operators; `agents`: whether the agents are listed."""
        return self.prepared(agents=agents)()

    def prepared(self, *, agents: bool = True) -> Callable[[], Status]:
        """Return a function that returns the status as of now, in any thread.

        For a large fleet, the function takes too long for the event loop.
        """
        now = self._view.now()
        member, leadership = self._elector.member, self._elector.leadership
        rollout, outlook = self._mirrors.rollout.seen(""), self._view.outlook
        policy, snapshot, plans = self._view.policy, self._view.snapshot, self._view.plans
        leader, epoch, role_age_s = self._elector.leader, self._elector.epoch, self._elector.role_age_s
        store, source = StoreStatus(up=self._elector.mirror.store_is_up), policy_status(self._policies)
        registered = self._mirrors.agents.values if agents else {}
        control_planes = tuple(self._mirrors.members.values.values())
        overrides, shortfalls = self._override_statuses(policy, now), self._planning.shortfalls[:MAX_SHORTFALLS]

        def status() -> Status:
            return Status(
                at=now,
                name=member.name,
                url=member.url,
                leading=epoch is not None,
                role=leadership.role.value,
                role_age_s=role_age_s,
                why=leadership.why,
                epoch=epoch or 0,
                leader=LeaderStatus(leader.value.name, leader.value.url, leader.create_revision) if leader else None,
                store=store,
                policy=source,
                plan=plan_status(plans, now),
                regions=region_statuses(policy, snapshot, now),
                agents=agent_statuses(registered, snapshot, now) if agents else (),
                control_planes=control_planes,
                arcs=arc_statuses(plans),
                rollout=summary(rollout.value) if rollout is not None else None,
                outlook=outlook,
                overrides=overrides,
                shortfalls=shortfalls,
                fleet_seen_by=member.name,
                release=release(),
            )

        return status

    def policy(self) -> PolicyStatus:
        """Return the policy in force, and the errors of its source."""
        return policy_status(self._policies)

    def seen_by(self) -> SeenBy:
        """Return this control plane, and the leader that it knows."""
        leader = self._elector.leader
        url = leader.value.url if leader is not None else None
        return SeenBy(self._elector.member.name, self._elector.epoch is not None, url)

    def state_snapshot(self) -> StateSnapshot:
        """Return the state that events are derived from."""
        now, policy = self._view.now(), self._view.staged_policy
        rollout, audited = self._mirrors.rollout.seen(""), self._mirrors.audit_head.seen("")
        return StateSnapshot(
            at=now,
            epoch=self._elector.epoch,
            member=self._elector.member,
            why=self._elector.leadership.why,
            policy=policy_status(self._policies),
            in_force=policy.digest() if policy is not None else None,
            rollout=rollout.value if rollout is not None else None,
            regions=self._view.region_states(),
            overrides=tuple(override for override in self._overrides.seen.overrides if override.holds(now)),
            plans=self._planning.in_force,
            audited=audited.value if audited is not None else None,
        )

    def _override_statuses(self, policy: Policy | None, now: float) -> tuple[OverrideStatus, ...]:
        if policy is None:
            return ()
        ramp_s = policy.failover.failback_ramp_s
        own = self._overrides.seen.without_ended(now, ramp_s).overrides
        return (
            *(override_status(override, now, ramp_s) for override in own),
            *(override_status(window, now, ramp_s, by_policy=True) for window in windows(policy, now)),
        )

"""One control plane put together: what it watches, what runs when, and the order in which it starts and stops."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from random import Random

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore, StoreError
from adapters.store.informer import Informer
from adapters.store.lease import Registration
from adapters.store.members import AgentMember, Member
from adapters.store.mirror import Mirror
from control_plane.api.idempotency_store import KeptAnswers
from control_plane.audit.audit_chain import AuditEntry
from control_plane.audit.audit_log import AuditLog
from control_plane.events.change_detector import LOOK_S, Glimpse, Noticing
from control_plane.events.event_log import EventLog
from control_plane.events.journal import Journal
from control_plane.leadership.campaign import Campaign
from control_plane.leadership.leader_client import LeaderLink
from control_plane.metrics import ControlPlaneMetrics
from control_plane.overrides.override_resource import OverrideStatus, shown
from control_plane.overrides.override_store import Ledger
from control_plane.planning.fleet_snapshot import Fleet
from control_plane.planning.periodic_job import Rounds
from control_plane.planning.plan_history import PlanHistory
from control_plane.planning.planning_loop import TICK_S, Planning
from control_plane.planning.publishing import Publisher
from control_plane.planning.report_intake import Intake, Receipt
from control_plane.policy.source.policy_polling import PolicyPolling
from control_plane.policy.source.policy_revisions import Revisions
from control_plane.policy.source.policy_source import PolicySource
from control_plane.policy.source.policy_webhook import PolicyWebhook
from control_plane.policy.source.webhook_secret import WebhookSecret
from control_plane.rollout.rollout_actions import Orders
from control_plane.rollout.rollout_resource import summary
from control_plane.rollout.rollout_runner import Staging
from control_plane.status.status import MAX_SHORTFALLS, LeaderStatus, Status, StoreStatus
from control_plane.status.status_builder import (
    agent_statuses,
    arc_statuses,
    plan_status,
    policy_status,
    region_statuses,
)
from penstock.fleet.capacity import supply
from penstock.fleet.snapshot import Snapshot
from penstock.health.region_health import RegionState
from penstock.overrides.maintenance import windows
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.rollout.state_machine import Rollout
from penstock.wire.signing import FleetKey

SHOWN_BACKOFF_CAP_S = 3.0
"""Longest wait (s) before what is only shown to people is read again from a store that was away."""

REGISTRATION_TTL_S = 5
"""How long (s) after its death a control plane is still listed."""

_log = structlog.get_logger(__name__)


def steady_unix_clock() -> Callable[[], float]:
    """A clock of Unix time (s) that never jumps: ages and ramps are measured with it, and people can read it."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


class ControlPlane:
    """Everything but the HTTP server.

    Args:
        store: the fleet's configuration store.
        member: our name and base URL.
        key: the fleet's secret.
        policies: what to plan by.
        rng: source of jitter.
        webhook_secret: what the host of the policy repository signs deliveries with; None takes none.
        trust: whose certificates of other control planes are believed; None: those that the system trusts.
    """

    def __init__(
        self,
        store: ConfigStore,
        member: Member,
        *,
        key: FleetKey,
        policies: PolicySource,
        rng: Random,
        webhook_secret: WebhookSecret | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.member = member
        self.link = LeaderLink(member, key, trust=trust)
        self.metrics = ControlPlaneMetrics()
        self.policies = policies
        self.audit = AuditLog(store)
        self._store = store
        self._clock = steady_unix_clock()
        self.history = PlanHistory()
        self.events = EventLog(self._clock)
        self._noticing = Noticing(self.events, self.history, self.audit, self._glimpse)
        self.journal = Journal(
            store,
            rng=rng,
            on_entry=self._noticing.take_in,
            on_gone=self.history.forget,
            backoff_cap_s=SHOWN_BACKOFF_CAP_S,
        )
        self._fleet = Fleet()
        self._campaign = Campaign(
            store,
            member,
            eligible=lambda: policies.current is not None,
            rng=rng,
            clock=self._clock,
            # An office is taken and left at once, and not a round later.
            on_change=lambda _: self._rounds.wake(),
        )
        self._agents = Mirror(store, keys.AGENTS, AgentMember, rng=rng, backoff_cap_s=SHOWN_BACKOFF_CAP_S)
        self._members = Mirror(store, keys.CONTROL_PLANES, Member, rng=rng, backoff_cap_s=SHOWN_BACKOFF_CAP_S)
        self._plans = Mirror(store, keys.PLANS, RegionPlan, rng=rng, backoff_cap_s=SHOWN_BACKOFF_CAP_S)
        self._audited = Mirror(
            store,
            keys.AUDIT_HEAD,
            AuditEntry,
            rng=rng,
            on_change=lambda: self._looks.wake(),
            backoff_cap_s=SHOWN_BACKOFF_CAP_S,
        )
        self._rollout = Mirror(store, keys.ROLLOUT, Rollout, rng=rng, backoff_cap_s=SHOWN_BACKOFF_CAP_S)
        self._registration = Registration(
            store, keys.control_plane(member.name), encode(member), ttl_s=REGISTRATION_TTL_S, rng=rng
        )
        self.overrides = Ledger(store, self.audit, member.name, rng=rng, clock=self._clock)
        publisher = Publisher(store)
        self.staging = Staging(store, policies, publisher)
        self.orders = Orders(store, self.audit, policies, self._clock)
        self.revisions = Revisions(store)
        self.kept_answers = KeptAnswers(store, member.name, self._clock)
        self._planning = Planning(
            self._campaign,
            policies,
            self._fleet,
            self.overrides,
            self.staging,
            publisher,
            self.metrics,
            self._clock,
        )
        self.intake = Intake(
            key,
            self._fleet,
            policy=lambda: self.policy,
            leading=self._receipt,
            metrics=self.metrics,
            clock=self._clock,
        )
        self._polling = PolicyPolling(self._poll_policy, policies.poll_s)
        policies.on_doubt = self._polling.wake
        self.webhook = PolicyWebhook(webhook_secret, self._polling.wake, self.metrics)
        self._rounds = Rounds(self._planning.tick, TICK_S)
        self._looks = Rounds(self._look, LOOK_S)
        self._scheduler = AsyncIOScheduler(
            timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        )

    async def start(self) -> asyncio.Task[None]:
        """Begin; the task returned runs until `stop`, and ends before only by a defect."""
        await self.policies.load()
        await self._adopt_policy()
        for informer in self._shown:
            informer.start()
        self._registration.start()
        task = self._campaign.start()
        self._rounds.start(self._scheduler)
        self._polling.start(self._scheduler)
        self._looks.start(self._scheduler)
        self._scheduler.start()
        return task

    async def stop(self) -> None:
        """End: resign first, so that another takes over at once."""
        self.events.close()
        await self.link.close()
        for rounds in (self._rounds, self._looks):
            rounds.stop()
        self._scheduler.shutdown(wait=False)
        await self._campaign.stop()
        await self._registration.stop()
        for informer in self._shown:
            await informer.stop()
        await self.policies.close()

    @property
    def _shown(self) -> tuple[Informer, ...]:
        """Copies of the store for people and for whoever listens."""
        mirrors = (self._agents, self._members, self._plans, self._rollout, self._audited, self.overrides.mirror)
        return (*(mirror.informer for mirror in mirrors), self.journal.informer)

    @property
    def plans(self) -> dict[str, RegionPlan]:
        """The plan in the store, by region, as last seen."""
        return self._plans.values

    @property
    def policy(self) -> Policy | None:
        """The policy in force: what most regions obey, as far as this control plane knows."""
        return self.staging.policy or self.policies.current

    @property
    def snapshot(self) -> Snapshot:
        """The fleet as last reported."""
        return self._fleet.snapshot

    @property
    def leading(self) -> bool:
        """Whether this control plane leads."""
        return self._campaign.epoch is not None

    @property
    def authority(self) -> Member | None:
        """Whose view of the fleet counts, as agents report there; None while nobody is known to lead.

        With the store away it is whoever led last, who leads no longer and still hears the agents.
        """
        if self.leading or self._campaign.was_leader_last:
            return self.member
        leader = self._campaign.leader
        # A key with our address that this process did not make is that of the process before it.
        return leader.value if leader is not None and leader.value.url != self.member.url else None

    def now(self) -> float:
        """Unix time (s) by the clock that ages are measured with."""
        return self._clock()

    def capacity(self) -> dict[tuple[str, str], float] | None:
        """Slots by (region, model) of what stands now; None where that is not known, as to one that does not lead."""
        policy = self.policy
        if policy is None or not self._planning.informed:
            return None
        return {key: one.slots for key, one in supply(policy, self._fleet.snapshot, self._clock()).items()}

    def not_ready(self) -> list[str]:
        """Why this control plane could not do a leader's work now; empty when it could."""
        reasons = []
        if self.policies.current is None:
            reasons.append("no policy is in force: its source has no good one, and neither has the store")
        if self.overrides.unreadable:
            reasons.append("overrides in the store cannot be read, so nothing is planned; is another version writing?")
        if not self._campaign.mirror.store_is_up:
            reasons.append("the store does not answer: nothing is planned, agents go on with what they have")
        return reasons

    def status(self) -> Status:
        """Everything for operators, from memory: it can be had with the store away."""
        now = self._clock()
        belief = self._campaign.belief
        rollout = self._rollout.seen("")
        policy = self.policy
        leader = self._campaign.leader
        epoch = self._campaign.epoch
        return Status(
            at=now,
            name=self.member.name,
            url=self.member.url,
            leading=epoch is not None,
            role=belief.role.value,
            role_age_s=now - belief.since,
            why=belief.why,
            epoch=epoch or 0,
            leader=LeaderStatus(leader.value.name, leader.value.url, leader.create_revision) if leader else None,
            store=StoreStatus(up=self._campaign.mirror.store_is_up),
            policy=policy_status(self.policies),
            plan=plan_status(self.plans, now),
            regions=region_statuses(policy, self._fleet.snapshot, now),
            agents=agent_statuses(self._agents.values, self._fleet.snapshot, now),
            control_planes=tuple(self._members.values.values()),
            arcs=arc_statuses(self.plans),
            rollout=summary(rollout.value) if rollout is not None else None,
            overrides=self._override_statuses(policy, now),
            shortfalls=self._planning.shortfalls[:MAX_SHORTFALLS],
            fleet_seen_by=self.member.name,
        )

    async def _look(self) -> None:
        if self.journal.informer.synced and self._plans.informer.synced:
            self.history.begin(self.plans)
        await self._noticing.look(self.journal)

    def _glimpse(self) -> Glimpse:
        now, policy = self._clock(), self.staging.policy
        rollout, audited = self._rollout.seen(""), self._audited.seen("")
        return Glimpse(
            at=now,
            epoch=self._campaign.epoch,
            member=self.member,
            why=self._campaign.belief.why,
            policy=policy_status(self.policies),
            in_force=policy.digest() if policy is not None else None,
            rollout=rollout.value if rollout is not None else None,
            regions=self._states(policy),
            overrides=tuple(one for one in self.overrides.seen.overrides if one.holds(now)),
            plans=self._planning.in_force,
            audited=audited.value if audited is not None else None,
        )

    def _states(self, policy: Policy | None) -> dict[str, RegionState]:
        """The state of each region, once it is for this control plane to tell."""
        if policy is None or not self._planning.informed:
            return {}
        return {name: self._fleet.snapshot.state(name) for name in policy.regions}

    def _override_statuses(self, policy: Policy | None, now: float) -> tuple[OverrideStatus, ...]:
        if policy is None:
            return ()
        ramp_s = policy.failover.failback_ramp_s
        own = self.overrides.seen.without_ended(now, ramp_s).overrides
        by_policy = windows(policy, now)
        return (
            *(shown(one, now, ramp_s) for one in own),
            *(shown(one, now, ramp_s, by_policy=True) for one in by_policy),
        )

    def _receipt(self) -> Receipt:
        leader = self._campaign.leader
        return Receipt(self._campaign.epoch is not None, leader.value.url if leader is not None else None)

    async def _poll_policy(self) -> bool:
        before = self.policies.current
        await self.policies.poll()
        if self.policies.current is not before:
            # A new policy need not wait for the next round.
            self._rounds.wake()
        await self._adopt_policy()
        return not self.policies.unreadable and self.policies.current is not None

    async def _adopt_policy(self) -> None:
        """Without a good policy from the source, take what the fleet obeys."""
        if self.policies.current is None:
            try:
                await self.policies.adopt(self._store)
            except StoreError as error:
                _log.warning("no policy from the store", reason=str(error))

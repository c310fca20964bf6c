"""A control plane as one unit: builds its parts, starts and stops them, and wires the API routes to them."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from functools import partial
from random import Random

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from fastapi import FastAPI
from starlette.middleware import Middleware

from adapters.access.callers import Caller, Role
from adapters.geoip_lookup import GeoIpLookup
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore, StoreError
from adapters.store.informer import Informer
from adapters.store.lease import Registration
from adapters.store.members import Member
from control_plane.api.app import OtherProcesses, create_app
from control_plane.api.leader_forwarding import ControlPlanePeers
from control_plane.api.routes import (
    audit_routes,
    capacity_routes,
    dns_routes,
    drills_routes,
    events_routes,
    explain_routes,
    fleet_routes,
    health_routes,
    overrides_routes,
    plans_routes,
    policies_routes,
    reports_routes,
    status_routes,
    steer_routes,
    usage_routes,
    webhook_routes,
    what_if_routes,
)
from control_plane.api.routes.explain_routes import TenantKeys
from control_plane.api.routes.rollouts import model_rollouts_routes, rollouts_routes
from control_plane.api.routes.tenants import (
    budget_leases_routes,
    budgets_routes,
    refusals_routes,
    revoked_keys_routes,
    tenant_keys_routes,
    tenants_routes,
)
from control_plane.api.serving.api_threads import in_api_thread
from control_plane.audit.audit_log import AuditLog
from control_plane.audit.audit_retention import AuditRetention, RemovalRefused
from control_plane.auth.authentication import Access
from control_plane.auth.code_flow import CodeFlow
from control_plane.drills import drill_runner
from control_plane.drills.drill_runner import DrillRunner
from control_plane.evaluation.evaluator import Evaluator
from control_plane.events.change_detector import DETECTION_INTERVAL_S, ChangeDetector
from control_plane.events.event_log import EventLog
from control_plane.events.journal import Journal
from control_plane.leadership import giving_way
from control_plane.leadership.clock_check import ClockCheck
from control_plane.leadership.forwarded_caller import ForwardedCallers
from control_plane.leadership.giving_way import GivingWay
from control_plane.leadership.leader_client import LeaderClient
from control_plane.leadership.leader_elector import Candidate, LeaderElector
from control_plane.measured_store import MeasuredStore
from control_plane.metrics import ControlPlaneMetrics
from control_plane.overrides.override_store import OverrideStore
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.planning.past_moment import KeptPast
from control_plane.planning.periodic_job import PeriodicJob, stop_scheduler
from control_plane.planning.plan_publisher import PlanPublisher
from control_plane.planning.planning_loop import TICK_S, PlanningLoop
from control_plane.planning.report_intake import ReportIntake, ReportReceipt
from control_plane.planning.signal_poller import TICK_S as SIGNAL_TICK_S
from control_plane.policy.source.policy_source import MIN_POLL_INTERVAL_S, RETRY_INTERVAL_S, PolicySource
from control_plane.policy.source.policy_webhook import PolicyWebhook
from control_plane.policy.source.readers import BundleReader
from control_plane.policy.source.revision_store import RevisionStore
from control_plane.policy.source.webhook_secret import WebhookSecret
from control_plane.result_cache import purge_routes
from control_plane.result_cache.purge_store import PurgeStore
from control_plane.rollout.model_rollouts import ModelRollouts
from control_plane.rollout.rollout_actions import RolloutActions
from control_plane.rollout.rollout_runner import RolloutRunner
from control_plane.status import status_history
from control_plane.status.fleet_status import FleetStatus
from control_plane.status.fleet_view import FleetView
from control_plane.status.status_feed import StatusFeed
from control_plane.status.status_history import StatusHistory
from control_plane.status.status_reporter import BACKOFF_CAP_S, StatusReporter, StoreMirrors
from control_plane.steady_clock import SteadyClock
from control_plane.tenants import budget_leader
from control_plane.tenants.budget_leader import BudgetLeader
from control_plane.tenants.issuer_key_publisher import APART_S as ISSUER_APART_S
from control_plane.tenants.issuer_key_publisher import TICK_S as ISSUER_TICK_S
from control_plane.tenants.issuer_key_publisher import IssuerKeyPublisher
from control_plane.tenants.key_revocation_store import KeyRevocationStore
from control_plane.tenants.money_checkpoint import MoneyCheckpoint
from control_plane.tenants.tenant_store import TenantStore
from control_plane.ui import sign_in_routes, ui_routes
from control_plane.ui.browser_sessions import BrowserSessions, SessionCookies
from control_plane.ui.session_revocations import SessionRevocations
from control_plane.usage.store_upkeep import UpkeepRequest, stores_to_keep
from control_plane.usage.usage_runner import UsageRunner
from penstock.leadership.leadership_states import MIN_LEASE_TTL_S
from penstock.planning.plan_history import PlanHistory
from penstock.policy.kinds.budgets import Budget
from penstock.tenancy.budget_lease import BudgetKey
from penstock.tenancy.budget_limits import budget_of
from penstock.wire.peer_keys import Keyring

REGISTRATION_TTL_S = 5
"""Time (s) after which a control plane that stopped without notice leaves the list of members."""

UPKEEP_S = 3600.0
"""Interval (s) at which the leader removes and compacts segments of usage stores, and removes audit entries."""

REPAIR_S = 5.0
"""Interval (s) at which the leader writes revoked keys, tenants and overrides again that the store has lost."""

_log = structlog.get_logger(__name__)


class ControlPlane:
    """One control plane without its HTTP server. Each part receives the parts that it uses, and not this object.

    Args:
        store: the fleet's configuration store.
        member: name and base URL of this control plane.
        keyring: the identity of this control plane, and the keys that it shares with other processes.
        policy_reader: reads the policy bundle.
        leader_lease_s: time to live (s) of the leader's lease.
        tls: returns the context for a new connection to another control plane; None: the system's trust store.
    """

    def __init__(
        self,
        store: ConfigStore,
        member: Member,
        *,
        keyring: Keyring,
        policy_reader: BundleReader,
        leader_lease_s: int = MIN_LEASE_TTL_S,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        # Times everything except leases.
        clock, rng = SteadyClock(), Random()
        self.metrics = ControlPlaneMetrics()
        self._store = store = MeasuredStore(store, self.metrics.internal)
        self._keyring = keyring
        self.audit = AuditLog(store)
        self.policies = PolicySource(policy_reader, on_stale=lambda: self._polling.wake())
        self._polling = PeriodicJob(
            self._poll_policy, self.policies.poll_s, apart_s=MIN_POLL_INTERVAL_S, retry_s=RETRY_INTERVAL_S
        )
        self._registration = Registration(
            store, keys.control_plane(member.name), encode(member), ttl_s=REGISTRATION_TTL_S, rng=rng
        )
        self._link = LeaderClient(member, keyring, tls=tls)
        self._callers = ForwardedCallers(keyring, clock)
        self.elector = LeaderElector(
            store,
            Candidate(member, lambda: self.policies.current is not None and clock() < keyring.identity.peer.not_after),
            rng=rng,
            lease_ttl_s=leader_lease_s,
            # Wakes the planning loop, so that a change of leadership takes effect at once and not at the next tick.
            on_change=lambda _: self._leadership_changed(),
        )
        self._mirrors = StoreMirrors(store, rng, on_audit=lambda: self._event_rounds.wake())
        self.overrides = OverrideStore(store, self.audit, member.name, rng=rng, clock=clock)
        self._key_revocations = KeyRevocationStore(store, self.audit, member.name, rng=rng, clock=clock)
        self._purges = PurgeStore(store, self.audit, rng=rng, clock=clock)
        self._tenants = TenantStore(store, self.audit, member.name, rng=rng, clock=clock)
        self.rollouts = RolloutRunner(
            store, self.policies, PlanPublisher(store), ModelRollouts(store, self.audit, member.name)
        )
        self._rollout_actions = RolloutActions(store, self.audit, self.policies, clock)
        self._revisions = RevisionStore(store)
        fleet = FleetSnapshot()
        self._planning = planning = PlanningLoop(
            self.elector, fleet, self.overrides, self.rollouts, self.metrics, clock
        )
        self.view = FleetView(self.rollouts, fleet, planning, self._mirrors.plans, clock)
        self.reporter = StatusReporter(self.view, self.elector, self.policies, self.overrides, planning, self._mirrors)
        self._drills = DrillRunner(
            store,
            self.audit,
            elector=self.elector,
            overrides=self.overrides,
            view=self.view,
            members=self._mirrors.members,
        )
        self._intake = ReportIntake(
            keyring, fleet, policy=lambda: self.view.policy, leading=self._receipt, metrics=self.metrics, clock=clock
        )
        self._budgets = BudgetLeader(
            lambda: self.elector.epoch,
            lambda: {name: member.region for name, member in self._mirrors.agents.values.items()},
            self._budget_of,
            MoneyCheckpoint(store),
            self.metrics.budgets,
            clock,
        )
        self._revocations = SessionRevocations(store, self.audit, rng=rng)
        self._evaluator = Evaluator()
        self._usage = UsageRunner()
        self._upkeep_rounds = PeriodicJob(self._keep_usage_stores, UPKEEP_S)
        self.audit_retention: AuditRetention | None = None
        """Removes old audit entries; None: they are never removed."""
        self._audit_rounds = PeriodicJob(self._remove_audit_entries, UPKEEP_S)
        self.events = EventLog(clock)
        self._history = PlanHistory()
        self._change_detector = ChangeDetector(self.events, self._history, self.audit, self.reporter.state_snapshot)
        self._journal = Journal(
            store,
            rng=rng,
            on_entry=self._change_detector.apply,
            on_removed=self._history.forget,
            backoff_cap_s=BACKOFF_CAP_S,
        )
        self._planning_rounds = PeriodicJob(planning.tick, TICK_S)
        self._event_rounds = PeriodicJob(self._detect_changes, DETECTION_INTERVAL_S)
        self._drill_rounds = PeriodicJob(self._drills.tick, drill_runner.TICK_S)
        self._repair_rounds = PeriodicJob(self._repair_values, REPAIR_S)
        self._budget_rounds = PeriodicJob(self._budgets.tick, budget_leader.TICK_S)
        self._issuer_keys = IssuerKeyPublisher(
            store,
            lambda: (self.view.policy, self.view.staged_policy),
            lambda: self.elector.epoch,
            rng,
            on_ages=self.metrics.show_issuers,
        )
        self._recent = StatusHistory()
        self._sample_rounds = PeriodicJob(self._sample_status, status_history.INTERVAL_S)
        self._issuer_rounds = PeriodicJob(self._issuer_keys.tick, ISSUER_TICK_S, apart_s=ISSUER_APART_S)
        self._intake.on_issuers_asked = self._ask_issuers
        self._signal_rounds = PeriodicJob(planning.signals.tick, SIGNAL_TICK_S)
        self._clocks = ClockCheck(self.elector, fleet, clock, self._link)
        gives_way = GivingWay(self.elector, clock, fleet, self._clocks, self._has_others, self._read_again)
        self._leader_rounds = PeriodicJob(gives_way.tick, giving_way.CHECK_S)
        self._scheduler = AsyncIOScheduler(
            timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        )

    async def start(self) -> asyncio.Task[None]:
        """Start all parts. The returned task runs until `stop`; if it ends before, that is a defect."""
        await self.policies.load()
        await self.policies.adopt(self._store)
        for informer in self._informers:
            informer.start()
        self._registration.start()
        task = self.elector.start()
        for rounds in self._rounds:
            rounds.start(self._scheduler)
        self._scheduler.start()
        return task

    async def stop(self) -> None:
        """Stop all parts. A leader resigns, so that another control plane takes over at once."""
        self.events.close()
        await self._evaluator.close()
        await self._link.close()
        for rounds in self._rounds:
            await rounds.stop()
        await stop_scheduler(self._scheduler)
        await self._issuer_keys.close()
        await self._planning.signals.close()
        await self.elector.stop()
        self._budgets.close()
        await self._registration.stop()
        for informer in self._informers:
            await informer.stop()
        await self.policies.close()

    def create_api(
        self,
        access: Access,
        geoip: GeoIpLookup | None = None,
        *,
        webhook_secret: WebhookSecret | None = None,
        browser_secret: bytes | None = None,
        sign_in: CodeFlow | None = None,
    ) -> FastAPI:
        """Return the HTTP API and the page for operators.

        Args:
            access: authenticates callers.
            geoip: locates client addresses; None leaves every address without a location.
            webhook_secret: verifies webhook deliveries of the policy repository; None rejects all deliveries.
            browser_secret: the key of browser sessions is derived from this secret; None: from a random
                secret, so that sessions end with this process.
            sign_in: sign-in at the identity provider; None: callers sign in with credentials only.
        """
        identity = self._keyring.identity
        fleet = f"{identity.id.trust_domain}{identity.prefix}"
        browsers = BrowserSessions(browser_secret or os.urandom(32), fleet=fleet)
        geoip = geoip or GeoIpLookup(None)
        view, reporter, actions = self.view, self.reporter, self._rollout_actions
        fleet_status = FleetStatus(reporter, self.elector, self._link)
        past = KeptPast(self._history, self.events)
        read_status = partial(fleet_status.read, Caller(self.elector.member.name, Role.VIEWER), "", agents=False)
        return create_app(
            # These routers require no caller: their responses hold no fleet data, or their requests are signed.
            open_routers=(
                health_routes.routes(reporter, self.policies),
                reports_routes.routes(self._intake, self._keyring, self.metrics.internal),
                budget_leases_routes.routes(self._budgets, self._intake),
                webhook_routes.routes(PolicyWebhook(webhook_secret, self._polling.wake, self.metrics)),
                *((sign_in_routes.routes(sign_in, browsers),) if sign_in is not None else ()),
                ui_routes.public_routes(sign_in.name if sign_in is not None else ""),
            ),
            guarded_routers=(
                health_routes.metrics_routes(self.metrics),
                status_routes.routes(fleet_status, self._recent),
                plans_routes.routes(self._history, view),
                explain_routes.routes(
                    view, reporter, actions, TenantKeys(self._tenants, self._key_revocations), geoip, past
                ),
                steer_routes.routes(view, self._tenants, geoip),
                dns_routes.routes(view, geoip),
                what_if_routes.routes(view, self.overrides, self._evaluator),
                fleet_routes.routes(reporter, view),
                tenants_routes.routes(self._tenants, view),
                budgets_routes.routes(self._budgets, view, self._tenants.find),
                refusals_routes.routes(view),
                tenant_keys_routes.routes(self._tenants, view),
                revoked_keys_routes.routes(self._key_revocations, self._tenants, view),
                purge_routes.routes(self._purges, view),
                capacity_routes.routes(self._planning, view),
                usage_routes.routes(view, self._usage),
                audit_routes.routes(self.audit),
                events_routes.routes(self.events, StatusFeed(read_status, self.events.wake)),
                overrides_routes.routes(self.overrides, view),
                drills_routes.routes(self._drills, view),
                policies_routes.routes(actions, self._revisions, view, self._evaluator),
                rollouts_routes.routes(actions, self.rollouts, view),
                model_rollouts_routes.routes(self.rollouts.models, view),
                ui_routes.session_routes(browsers, self._revocations),
            ),
            access=access,
            others=OtherProcesses(
                ControlPlanePeers(self.elector, self._link, self._callers), self._clocks, self._intake
            ),
            cookies=Middleware(SessionCookies, sessions=browsers, is_revoked=self._revocations.is_revoked),
        )

    @property
    def _informers(self) -> tuple[Informer, ...]:
        revocations = (self._revocations.informer, self._key_revocations.informer)
        tenants, journal = self._tenants.informer, self._journal.informer
        issuers = self._issuer_keys.informer
        return (*self._mirrors.informers, self.overrides.mirror.informer, journal, *revocations, tenants, issuers)

    @property
    def _rounds(self) -> tuple[PeriodicJob, ...]:
        of_leader = (
            self._planning_rounds,
            self._drill_rounds,
            self._repair_rounds,
            self._budget_rounds,
            self._upkeep_rounds,
            self._audit_rounds,
            self._sample_rounds,
        )
        of_all = (self._issuer_rounds, self._signal_rounds, self._polling, self._event_rounds, self._leader_rounds)
        return (*of_leader, *of_all)

    def _has_others(self) -> bool:
        """Whether agents, and another control plane, are registered; their values may not be readable here."""
        return bool(self._mirrors.agents.has_key) and len(self._mirrors.members.informer.items) > 1

    def _read_again(self) -> None:
        """Read every value again: some were signed in the future of a clock that was behind."""
        for informer in (self.elector.mirror.informer, *self._informers):
            informer.relist()

    def _leadership_changed(self) -> None:
        self._planning_rounds.wake()
        self._budget_rounds.wake()

    def _ask_issuers(self, names: tuple[str, ...]) -> None:
        self._issuer_keys.ask(names)
        self._issuer_rounds.wake()

    def _budget_of(self, key: BudgetKey, tier: str) -> Budget | None:
        policy = self.view.policy
        return None if policy is None else budget_of(key, policy, self._tenants.find(key.tenant), tier)

    async def _repair_values(self) -> None:
        epoch = self.elector.epoch
        if epoch is not None:
            await self._key_revocations.repair(epoch)
            await self._tenants.repair(epoch)
            await self.overrides.repair(epoch)

    async def _keep_usage_stores(self) -> None:
        policy = self.view.policy
        if self.elector.epoch is None or policy is None or not policy.usage_stores:
            return
        await self._usage.keep(UpkeepRequest(stores_to_keep(policy), int(time.time() * 1000)))

    async def _remove_audit_entries(self) -> None:
        if self.elector.epoch is None or self.audit_retention is None:
            return
        try:
            await self.audit_retention.remove_expired()
        except (RemovalRefused, StoreError) as error:
            _log.warning("audit entries were not removed", problem=str(error))

    async def _sample_status(self) -> None:
        if self.elector.epoch is None:
            self._recent.clear()
            return
        status = await in_api_thread(self.reporter.prepared(agents=False))
        self._recent.add(status.at, status.regions)

    async def _detect_changes(self) -> None:
        if self._journal.informer.synced and self._mirrors.plans.informer.synced:
            self._history.begin(self.view.plans)
        await self._change_detector.detect(self._journal)
        rollout = self._mirrors.rollout.seen("")
        if rollout is not None and self.elector.epoch is None:
            # The source may offer another policy than the leader rolls out.
            self.metrics.set_policy(rollout.value.in_force)

    def _receipt(self) -> ReportReceipt:
        leader = self.elector.leader
        return ReportReceipt(self.elector.epoch is not None, leader.value.url if leader is not None else None)

    async def _poll_policy(self) -> bool:
        before = self.policies.current
        await self.policies.poll()
        if self.policies.current is not before:
            # Wakes the planning loop, so that a new policy takes effect at once and not at the next tick.
            self._planning_rounds.wake()
        await self.policies.adopt(self._store)
        return not self.policies.unreadable and self.policies.current is not None

"""The leader's tick: advances region health, steps the rollout, makes the plan and publishes it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import structlog

from adapters.store.config_store import StoreError
from control_plane.leadership.leader_elector import LeaderElector
from control_plane.metrics import ControlPlaneMetrics, PoolGauges, PublishOutcome, RegionGauges
from control_plane.overrides.override_store import OverrideStore
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.planning.forecast_checkpoint import ForecastCheckpoint
from control_plane.planning.plan_publisher import Fenced
from control_plane.planning.planner_runner import PlannerRunner
from control_plane.planning.signal_poller import SignalPoller
from control_plane.rollout.rollout_runner import ActivePolicies, PolicyVersion, RolloutRunner
from penstock.fleet.capacity import Shortfall
from penstock.fleet.leader_handover import health_to_hand_over, inherited_health
from penstock.fleet.region_skew import region_skews
from penstock.fleet.reported_endpoints import endpoints
from penstock.fleet.snapshot import Snapshot, demand, pools, settled
from penstock.planning.measurements import measured_bytes
from penstock.planning.plan import RegionPlan
from penstock.planning.planner import PlanResult
from penstock.planning.tick_input import TickInput
from penstock.policy.policy import Policy
from penstock.rollout.canary_analysis import observations
from penstock.rollout.shadow import shadow
from penstock.scaling.cost_rates import egress_hourly_cost, gpu_hourly_cost
from penstock.scaling.recommender import Recommendation, Recommender
from penstock.scaling.standby import Takeover

TICK_S = 0.5
"""Time (s) between two plans."""

MAX_STEP_S = 1.0
"""Maximum time (s) since the last plan that counts for the rate limit of share changes."""

RECOMMEND_EVERY_S = 5.0
"""Time (s) between two recommendations of capacity."""

RECOMMEND_SOON_S = 1.0
"""The same when an active region was lost or is back, beside which standby regions wait for their order."""

SHADOW_EVERY_S = 2.0
"""Time (s) between two comparisons of plans while a policy is in shadow."""

_log = structlog.get_logger(__name__)


class PlanningLoop:
    """Plans while its control plane leads.

    Args:
        elector: leadership of this control plane, and its epoch.
        fleet: the snapshot of agents' reports.
        overrides: the overrides, which intervene in plans.
        rollouts: the policies to plan by, and the canary regions.
        metrics: the control plane's metrics.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        elector: LeaderElector,
        fleet: FleetSnapshot,
        overrides: OverrideStore,
        rollouts: RolloutRunner,
        metrics: ControlPlaneMetrics,
        clock: Callable[[], float],
    ) -> None:
        """Create the loop of one control plane; it saves the forecast in the store of `rollouts`."""
        self._elector = elector
        self._fleet = fleet
        self._overrides = overrides
        self._rollouts = rollouts
        self._compared_at = float("-inf")
        self._publisher = rollouts.publisher
        self._forecasts = ForecastCheckpoint(rollouts.publisher.store)
        self._metrics = metrics
        self._clock = clock
        self._epoch: int | None = None
        self._inherited = False
        self.signals = SignalPoller(
            lambda: rollouts.newest_policy, lambda: elector.epoch is not None, clock, metrics.capacity.show_signals
        )
        self._runner = PlannerRunner(signals=self.signals.points)
        self._candidate_runner = PlannerRunner(signals=self.signals.points)
        """Plans by the candidate policy of a rollout."""
        self.shortfalls: tuple[Shortfall, ...] = ()
        """Capacity shortfalls of the last plan; empty while another control plane leads."""
        self.recommendations: tuple[Recommendation, ...] = ()
        """The newest recommendations of capacity; empty while another control plane leads."""
        self._recommender = Recommender()
        self._recommended_at = float("-inf")
        self._leading_since = 0.0
        self._planned_at = 0.0
        self._last: PublishOutcome | None = None

    @property
    def has_full_snapshot(self) -> bool:
        """Whether this control plane leads and every live agent has had time to report to it."""
        policy, now = self._rollouts.newest_policy, self._clock()
        leads = self._elector.epoch is not None and self._elector.epoch == self._epoch
        return leads and policy is not None and settled(self._fleet.snapshot, now, policy, self._leading_since)

    @property
    def takeover(self) -> Takeover | None:
        """The current takeover by standby regions, or the last one since this control plane leads."""
        return self._recommender.standby.takeover

    @property
    def in_force(self) -> dict[str, RegionPlan]:
        """The slices in the store; empty while they are being written, or another control plane leads."""
        return self._publisher.in_force if self._epoch is not None and not self._publisher.uncertain else {}

    async def tick(self) -> None:
        """Run one tick. Errors of the store are logged and counted; the next tick retries."""
        now = self._clock()
        epoch = self._elector.epoch
        self._begin_leadership(epoch, now)
        if epoch is not None and self._publisher.uncertain:
            await self._adopt(epoch, now)
        policy = self._rollouts.newest_policy
        if policy is None:
            return
        if self._rollouts.policy is not None:
            self._metrics.set_policy(policy.digest())
        interventions = self._overrides.interventions(policy, now)
        self._fleet.tick(now, policy, interventions.drained)
        newest = [self._fleet.snapshot.newest(region) for region in policy.regions]
        ages_s = [now - held.received_at if held is not None else float("inf") for held in newest]
        self._metrics.internal.snapshot_age.set(max(ages_s, default=float("inf")))
        if epoch is None:
            return
        show = partial(_show_fleet, self._metrics, policy, self._fleet.snapshot, self.in_force, now)
        self._metrics.updates.put("fleet", show)
        active = [
            override for override in (*interventions.overrides, *interventions.of_endpoints) if override.holds(now)
        ]
        shown = [(override.kind.value, override.region or "") for override in active]
        self._metrics.updates.put("overrides", partial(self._metrics.show_overrides, shown))
        if self._publisher.uncertain:
            return
        try:
            if self._may_plan(policy, now):
                snapshot = self._fleet.snapshot
                active_policies = await self._rollouts.step(epoch, now, snapshot, receiving_since=self._leading_since)
                show_rollout = partial(self._metrics.show_rollout, active_policies.rollout.phase)
                self._metrics.updates.put("rollout", show_rollout)
                show_versions = partial(self._metrics.show_model_rollouts, self._rollouts.models.waits_s)
                self._metrics.updates.put("model rollouts", show_versions)
                await self._publisher.plan_epoch.raise_above(snapshot.agents.values(), self._publisher.generation)
                self._record_outcome(await self._publish(active_policies, self._publisher.plan_epoch.value, now))
                await self._overrides.sweep(epoch, active_policies.main.policy)
                await self._forecasts.save(self._runner.forecaster, epoch, now)
        except Fenced as error:
            _log.warning("fenced", reason=str(error))
            self._elector.fenced(epoch)
            self._record_outcome(PublishOutcome.FENCED)
        except StoreError as error:
            self._record_outcome(PublishOutcome.STORE_UNAVAILABLE, reason=str(error))

    async def _adopt(self, epoch: int, now: float) -> None:
        """Load the slices in the store and, once per leadership, the region health that the slices contain."""
        try:
            await self._publisher.adopt(epoch)
        except StoreError as error:
            self._record_outcome(PublishOutcome.STORE_UNAVAILABLE, reason=str(error))
            return
        if self._inherited:
            return
        await self._rollouts.adopt()
        try:
            await self._forecasts.load(self._runner.forecaster, now)
        except StoreError as error:
            self._record_outcome(PublishOutcome.STORE_UNAVAILABLE, reason=str(error))
            return
        policy = self._rollouts.newest_policy
        if policy is not None:
            self._fleet.inherit(inherited_health(self._publisher.in_force, now, policy.failover))
            self._inherited = True

    async def _publish(self, policies: ActivePolicies, epoch: int, now: float) -> PublishOutcome:
        elapsed_s = min(MAX_STEP_S, now - self._planned_at)
        began = time.perf_counter()
        result = await self._plan(self._runner, policies.main, epoch, now, elapsed_s)
        self._metrics.planned(time.perf_counter() - began, result.fallbacks)
        self._metrics.updates.put("shortfalls", partial(self._metrics.show_shortfalls, result.shortfalls))
        self.shortfalls = result.shortfalls
        plans = result.plans
        if policies.candidate is not None:
            if policies.in_shadow:
                await self._compare(policies, policies.candidate, epoch, now)
            else:
                candidate_plans = (
                    await self._plan(self._candidate_runner, policies.candidate, epoch, now, elapsed_s)
                ).plans
                plans |= {
                    region: candidate_plans[region] for region in policies.canary_regions if region in candidate_plans
                }
        self._planned_at = now
        outcome = await self._publisher.publish(plans, policies.main.policy, now)
        self._metrics.updates.put("plan", partial(self._metrics.show_plan, list(self._publisher.in_force.values())))
        waits_s = now - self._recommended_at
        is_lost = self._recommender.standby.is_due(policies.main.policy, self._fleet.snapshot)
        if waits_s >= (RECOMMEND_SOON_S if is_lost else RECOMMEND_EVERY_S):
            await self._recommend(policies.main.policy, now)
        return outcome

    async def _recommend(self, policy: Policy, now: float) -> None:
        """Update the recommendations of capacity; called after `_plan`, which updates the forecast."""
        self._recommended_at = now
        recommender, forecast = self._recommender, partial(self._runner.forecast, policy, now)
        # In a thread: the recommendations for a large fleet take some hundred milliseconds.
        shares = self._rollouts.models.shares(policy)
        found = await asyncio.to_thread(recommender.recommend, policy, self._fleet.snapshot, forecast, now, shares)
        if recommender is self._recommender:
            self.recommendations = found
            self._metrics.updates.put("recommendations", partial(self._metrics.capacity.show, found))
            self._metrics.capacity.show_takeover(self.takeover)

    async def _plan(
        self, runner: PlannerRunner, by: PolicyVersion, epoch: int, now: float, elapsed_s: float
    ) -> PlanResult:
        """Return the plan by one policy, with the policy's commit and the region health in its slices."""
        snapshot = self._fleet.snapshot
        result = await runner.plan(
            TickInput(
                policy=by.policy,
                snapshot=snapshot,
                previous=self._publisher.in_force,
                now=now,
                epoch=epoch,
                generation=self._publisher.generation + 1,
                elapsed_s=elapsed_s,
                interventions=self._overrides.interventions(by.policy, now),
            )
        )
        health, shares = snapshot.health, self._rollouts.models.shares(by.policy)
        plans = {
            name: msgspec.structs.replace(
                plan,
                provenance=by.provenance,
                health=health_to_hand_over(health[name]) if name in health else None,
                version_shares=shares,
            )
            for name, plan in result.plans.items()
        }
        return msgspec.structs.replace(result, plans=plans)

    async def _compare(self, policies: ActivePolicies, candidate: PolicyVersion, epoch: int, now: float) -> None:
        """Compare the plans of both policies after all shares have moved."""
        known = self._rollouts.shadow
        if known is not None and known.number == policies.rollout.number and now - self._compared_at < SHADOW_EVERY_S:
            return
        self._compared_at = now
        # New runners are used, because the state of existing ones would add differences that no policy causes.
        before = await self._plan(PlannerRunner(), policies.main, epoch, now, _whole_step_s(policies.main.policy))
        after = await self._plan(PlannerRunner(), candidate, epoch, now, _whole_step_s(candidate.policy))
        demands = demand(self._fleet.snapshot, now)
        self._rollouts.shadow = shadow(policies.rollout.number, before.plans, after.plans, demands)

    def _may_plan(self, policy: Policy, now: float) -> bool:
        """Whether the overrides are known, and reports are complete enough to replace the plan in force."""
        if not self._overrides.known:
            return False
        return not self._publisher.in_force or settled(self._fleet.snapshot, now, policy, self._leading_since)

    def _begin_leadership(self, epoch: int | None, now: float) -> None:
        """Discard the state of the previous epoch when leadership changes."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._rollouts.reset()
        self._runner = PlannerRunner(signals=self.signals.points)
        self._candidate_runner, self.shortfalls = PlannerRunner(signals=self.signals.points), ()
        self._recommender, self.recommendations, self._recommended_at = Recommender(), (), float("-inf")
        self._metrics.set_leadership(epoch)
        if epoch is not None:
            self._fleet.resume(now)
            self._publisher.uncertain = True
            self._inherited = False
            self._leading_since = now
            self._planned_at = now - TICK_S

    def _record_outcome(self, outcome: PublishOutcome, **context: str) -> None:
        self._metrics.published(outcome)
        # Only a change between success and failure is logged.
        success = (PublishOutcome.PUBLISHED, PublishOutcome.UNCHANGED)
        if (outcome in success) != (self._last in success):
            log = _log.info if outcome in success else _log.warning
            log("publish outcome changed", outcome=outcome.value, **context)
        self._last = outcome


def _show_fleet(
    metrics: ControlPlaneMetrics, policy: Policy, snapshot: Snapshot, in_force: Mapping[str, RegionPlan], now: float
) -> None:
    """Set the gauges of regions, pools, demand and cost."""
    seen_pools, demands = pools(snapshot, now), demand(snapshot, now)
    newest = {region: snapshot.newest(region) for region in policy.regions}
    rejecting = Counter(seen.region for seen in observations(snapshot, now).values() if seen.refused)
    metrics.show_regions(
        {
            region: RegionGauges(
                snapshot.state(region), now - held.received_at if held else float("inf"), rejecting[region]
            )
            for region, held in newest.items()
        }
    )
    metrics.show_pools(
        {
            (region, model): PoolGauges(seen.report.slots, seen.report.in_flight)
            for (region, model), seen in seen_pools.items()
            if region in policy.regions and model in policy.models
        }
    )
    rates: dict[tuple[str, str], float] = {}
    for row in demands:
        if row.model in policy.models:
            rates[row.origin, row.model] = rates.get((row.origin, row.model), 0.0) + row.requests_per_s
    metrics.show_demand(rates)
    metrics.show_skews(region_skews(endpoints(snapshot, now), policy.models))
    egress = egress_hourly_cost(policy, demands, in_force, measured_bytes(policy, snapshot, now))
    metrics.cost.show(gpu_hourly_cost(policy, seen_pools, now), egress)


def _whole_step_s(policy: Policy) -> float:
    """Time (s) in which a share may move from 0 to 1."""
    return 1.0 / policy.spillover.step_per_s

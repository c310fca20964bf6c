"""The leader's tick: let the snapshot age, plan from it, publish the plan."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import msgspec
import structlog

from adapters.store.config_store import StoreError
from control_plane.leadership.leader_elector import LeaderElector
from control_plane.metrics import ControlPlaneMetrics, PoolGauges, PublishOutcome, RegionGauges
from control_plane.overrides.override_store import OverrideStore
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.planning.plan_publisher import Fenced, PlanPublisher
from control_plane.planning.planner_runner import PlannerRunner
from control_plane.policy.source.policy_source import PolicySource
from control_plane.rollout.rollout_runner import ActivePolicies, PolicyVersion, RolloutRunner
from penstock.fleet.capacity import Shortfall
from penstock.fleet.leader_handover import health_to_hand_over, inherited_health
from penstock.fleet.snapshot import demand, pools, settled
from penstock.planning.plan import RegionPlan
from penstock.planning.planner import PlanResult
from penstock.planning.tick_input import TickInput
from penstock.policy.policy import Policy
from penstock.rollout.evidence import observations
from penstock.rollout.shadow import shadow

TICK_S = 0.5
"""Time (s) between two plans."""

MAX_STEP_S = 1.0
"""However long (s) the last plan is ago, shares move no further than this much time allows."""

SHADOW_EVERY_S = 2.0
"""Time (s) between two comparisons of plans while a policy is in shadow."""

_log = structlog.get_logger(__name__)


class PlanningLoop:
    """Plans while its control plane leads.

    Args:
        campaign: says whether, and under which epoch.
        policies: what to plan by.
        fleet: what to plan from.
        overrides: what operators want meanwhile.
        staging: says which policy to plan by, and where another one is tried.
        publisher: where plans go.
        metrics: shows what was done.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        campaign: LeaderElector,
        policies: PolicySource,
        fleet: FleetSnapshot,
        overrides: OverrideStore,
        staging: RolloutRunner,
        publisher: PlanPublisher,
        metrics: ControlPlaneMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._campaign = campaign
        self._policies = policies
        self._fleet = fleet
        self._overrides = overrides
        self.staging = staging
        self._compared_at = float("-inf")
        self._publisher = publisher
        self._metrics = metrics
        self._clock = clock
        self._epoch: int | None = None
        self._inherited = False
        self._runner = PlannerRunner()
        self._trying = PlannerRunner()
        """Plans by the candidate of a rollout."""
        self.shortfalls: tuple[Shortfall, ...] = ()
        """What capacity is missing where, by the last plan; none while another leads."""
        self._leading_since = 0.0
        self._planned_at = 0.0
        self._last: PublishOutcome | None = None
        self._shown_policy: Policy | None = None

    @property
    def informed(self) -> bool:
        """Whether the fleet's reports come here and have had time to: what is not heard of then is not there."""
        policy, now = self.staging.policy or self._policies.current, self._clock()
        leads = self._campaign.epoch is not None and self._campaign.epoch == self._epoch
        return leads and policy is not None and settled(self._fleet.snapshot, now, policy, self._leading_since)

    @property
    def in_force(self) -> dict[str, RegionPlan]:
        """The slices that this leader has published or found; none while they are being written, or another leads."""
        return self._publisher.in_force if self._epoch is not None and not self._publisher.uncertain else {}

    async def tick(self) -> None:
        """Do one round; what goes wrong with the store is told and tried again in the next one."""
        now = self._clock()
        epoch = self._campaign.epoch
        self._take_office(epoch, now)
        if epoch is not None and self._publisher.uncertain:
            await self._adopt(epoch, now)
        policy = self.staging.policy or self._policies.current
        if policy is None:
            return
        if policy is not self._shown_policy:
            self._metrics.set_policy(policy.digest())
            self._shown_policy = policy
        meant = self._overrides.interventions(policy, now)
        self._fleet.tick(now, policy, meant.drained)
        if epoch is None:
            return
        self._show_fleet(policy, now)
        holding = [one for one in meant.overrides if one.holds(now)]
        self._metrics.show_overrides((one.kind.value, one.region or "") for one in holding)
        if self._publisher.uncertain:
            return
        try:
            if self._may_plan(policy, now):
                snapshot = self._fleet.snapshot
                staged = await self.staging.step(epoch, now, snapshot, receiving_since=self._leading_since)
                self._metrics.show_rollout(staged.rollout.phase)
                await self._publisher.plan_epoch.overtake(snapshot.agents.values(), self._publisher.generation)
                self._conclude(await self._publish(staged, self._publisher.plan_epoch.value, now))
                await self._overrides.sweep(epoch, staged.main.policy)
        except Fenced as error:
            _log.warning("fenced", reason=str(error))
            self._campaign.fenced(epoch)
            self._conclude(PublishOutcome.FENCED)
        except StoreError as error:
            self._conclude(PublishOutcome.STORE_UNAVAILABLE, reason=str(error))

    async def _adopt(self, epoch: int, now: float) -> None:
        """Begin with what is in the store; once in an office, also with what is held against regions there."""
        try:
            await self._publisher.adopt(epoch)
        except StoreError as error:
            self._conclude(PublishOutcome.STORE_UNAVAILABLE, reason=str(error))
            return
        if self._inherited:
            return
        await self.staging.adopt()
        policy = self.staging.policy or self._policies.current
        if policy is not None:
            self._fleet.inherit(inherited_health(self._publisher.in_force, now, policy.failover))
            self._inherited = True

    async def _publish(self, staged: ActivePolicies, epoch: int, now: float) -> PublishOutcome:
        elapsed_s = min(MAX_STEP_S, now - self._planned_at)
        began = time.perf_counter()
        result = await self._plan(self._runner, staged.main, epoch, now, elapsed_s)
        self._metrics.planned(time.perf_counter() - began, result.fallbacks)
        self._metrics.show_shortfalls(result.shortfalls)
        self.shortfalls = result.shortfalls
        plans = result.plans
        if staged.candidate is not None:
            if staged.in_shadow:
                await self._compare(staged, staged.candidate, epoch, now)
            else:
                tried = (await self._plan(self._trying, staged.candidate, epoch, now, elapsed_s)).plans
                plans |= {region: tried[region] for region in staged.tried_in if region in tried}
        self._planned_at = now
        outcome = await self._publisher.publish(plans, staged.main.policy, now)
        self._metrics.show_plan(list(self._publisher.in_force.values()))
        return outcome

    async def _plan(
        self, runner: PlannerRunner, by: PolicyVersion, epoch: int, now: float, elapsed_s: float
    ) -> PlanResult:
        """The plan under one policy, with the policy's commit and the regions' health in its slices."""
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
        health = snapshot.health
        plans = {
            name: msgspec.structs.replace(
                plan, provenance=by.provenance, health=health_to_hand_over(health[name]) if name in health else None
            )
            for name, plan in result.plans.items()
        }
        return msgspec.structs.replace(result, plans=plans)

    async def _compare(self, staged: ActivePolicies, candidate: PolicyVersion, epoch: int, now: float) -> None:
        """Where the candidate's plan would be, and the main one, once shares have had all the time they need."""
        known = self.staging.shadow
        if known is not None and known.number == staged.rollout.number and now - self._compared_at < SHADOW_EVERY_S:
            return
        self._compared_at = now
        # With planners that remember nothing, so that what differs is the policy's doing alone.
        before = await self._plan(PlannerRunner(), staged.main, epoch, now, _whole_step_s(staged.main.policy))
        after = await self._plan(PlannerRunner(), candidate, epoch, now, _whole_step_s(candidate.policy))
        demands = demand(self._fleet.snapshot, now)
        self.staging.shadow = shadow(staged.rollout.number, before.plans, after.plans, demands)

    def _may_plan(self, policy: Policy, now: float) -> bool:
        """A plan in force is not replaced by one that was made before the regions had time to speak.

        None at all is made as if nothing were overridden, before it is known what is.
        """
        if not self._overrides.known:
            return False
        return not self._publisher.in_force or settled(self._fleet.snapshot, now, policy, self._leading_since)

    def _take_office(self, epoch: int | None, now: float) -> None:
        """Begin anew with every epoch: nothing that an earlier one knew of the store or the fleet is taken on trust."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self.staging.leave()
        self._runner, self._trying, self.shortfalls = PlannerRunner(), PlannerRunner(), ()
        self._metrics.set_leadership(epoch)
        if epoch is not None:
            self._fleet.resume(now)
            self._publisher.uncertain = True
            self._inherited = False
            self._leading_since = now
            self._planned_at = now - TICK_S

    def _conclude(self, outcome: PublishOutcome, **why: str) -> None:
        self._metrics.published(outcome)
        # Unchanged follows published all day long; only a change between well and ill is news.
        well = (PublishOutcome.PUBLISHED, PublishOutcome.UNCHANGED)
        if (outcome in well) != (self._last in well):
            _log.info("publishing", outcome=outcome.value, **why)
        self._last = outcome

    def _show_fleet(self, policy: Policy, now: float) -> None:
        snapshot = self._fleet.snapshot
        newest = {region: snapshot.newest(region) for region in policy.regions}
        refusing = Counter(word.region for word in observations(snapshot, now).values() if word.refused)
        self._metrics.show_regions(
            {
                region: RegionGauges(
                    snapshot.state(region), now - held.received_at if held else float("inf"), refusing[region]
                )
                for region, held in newest.items()
            }
        )
        self._metrics.show_pools(
            {
                (region, model): PoolGauges(seen.report.slots, seen.report.in_flight)
                for (region, model), seen in pools(snapshot, now).items()
                if region in policy.regions and model in policy.models
            }
        )
        rates: dict[tuple[str, str], float] = {}
        for one in demand(snapshot, now):
            if one.model in policy.models:
                rates[one.origin, one.model] = rates.get((one.origin, one.model), 0.0) + one.requests_per_s
        self._metrics.show_demand(rates)


def _whole_step_s(policy: Policy) -> float:
    """Time (s) in which shares may move all the way."""
    return 1.0 / policy.spillover.step_per_s

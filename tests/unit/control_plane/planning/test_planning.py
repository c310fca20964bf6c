"""The leader's tick: it plans once it has enough reports, moves from the plan in force, and only while it leads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from random import Random

import msgspec
import pytest

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import decode, encode
from adapters.store.config_store import Delete, Put
from adapters.store.members import Member
from control_plane.audit.audit_log import AuditLog
from control_plane.leadership.leader_elector import Candidate, LeaderElector
from control_plane.metrics import ControlPlaneMetrics
from control_plane.overrides.override_store import OverrideStore
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.planning.plan_publisher import PlanPublisher
from control_plane.planning.planning_loop import MAX_STEP_S, TICK_S, PlanningLoop
from control_plane.rollout.model_rollouts import ModelRollouts
from control_plane.rollout.rollout_runner import RolloutRunner
from lab.memory_store import MemoryStore
from penstock.fleet.report import AgentReport, PeerReport
from penstock.fleet.snapshot import SETTLE_S, ReportVerdict
from penstock.health.region_health import RegionHealth, RegionState
from penstock.leadership.leadership_states import Leadership, LeadershipRole
from penstock.overrides.overrides import Override, OverrideSet
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from tests.support import planet
from tests.support.fake_policy_source import OfferedPolicy
from tests.support.faulty_store import FaultyStore
from tests.support.override_builders import drain
from tests.support.reports import offered, report
from tests.support.running import running
from tests.support.wait import until

POLICY = msgspec.structs.replace(planet.policy(), rollout=planet.AT_ONCE)
EU = ("eu-de", "eu-es")
OPERATOR = Caller("duty", Role.OPERATOR)


class Office:
    """A planning with a clock and a leadership that a test sets."""

    def __init__(self, shared: MemoryStore) -> None:
        self.now = 1000.0
        self.shared = shared
        self.store = FaultyStore(shared)
        self.fleet = FleetSnapshot()
        self.metrics = ControlPlaneMetrics()
        self.elector = LeaderElector(
            self.store, Candidate(Member("a", "http://a")), rng=Random(1), clock=lambda: self.now
        )
        self.policies = OfferedPolicy(POLICY)
        self.overrides = OverrideStore(
            self.store, AuditLog(self.store, lambda: self.now), "a", rng=Random(1), clock=lambda: self.now
        )
        models = ModelRollouts(self.store, AuditLog(self.store), "cp-1")
        self.rollouts = RolloutRunner(self.store, self.policies, PlanPublisher(self.store), models)
        self.planning = PlanningLoop(
            self.elector,
            self.fleet,
            self.overrides,
            self.rollouts,
            self.metrics,
            lambda: self.now,
        )
        self._seq = 0

    async def elect(self) -> int:
        """Make this control plane the leader by a new leader key."""
        await self.shared.commit([], [Delete(keys.LEADER)])
        epoch = (await self.shared.commit([], [Put(keys.LEADER, encode(Member("a", "http://a")))])).revision
        self.elector.leadership = Leadership(LeadershipRole.LEADER, epoch, proven_until=self.now + 1e6)
        return epoch

    def receive(self, *reports: AgentReport) -> None:
        for unnumbered in reports:
            self._seq += 1
            numbered = msgspec.structs.replace(unnumbered, seq=self._seq)
            assert self.fleet.add_report(numbered, self.now, POLICY) is ReportVerdict.ACCEPTED

    async def tick(self, *reports: AgentReport) -> None:
        self.now += TICK_S
        self.receive(*reports)
        await self.planning.tick()

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"penstock_{name}", labels)

    async def plan(self, region: str) -> RegionPlan | None:
        item = await self.shared.get(keys.plan(region))
        return decode(item.value, RegionPlan) if item is not None else None

    async def shares(self, origin: str = "eu-de") -> dict[str, float]:
        plan = await self.plan(origin)
        assert plan is not None
        entry = plan.lookup(planet.MODEL, "+".join(EU))
        return {arc.server: arc.share for arc in entry.arcs} if entry is not None else {}


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    store = MemoryStore()
    office = Office(store)
    async with running(office.overrides.mirror.informer) as informer:
        await informer.wait_synced()
        yield office
    await store.close()


def whole_fleet(*, rate: float = 10.0) -> list[AgentReport]:
    return [report("eu-de", offered(rate, *EU)), report("eu-es"), report("us-east")]


async def in_force(store: MemoryStore, regions: Iterable[str] = POLICY.regions) -> None:
    """A plan of an earlier leader, which sends half of Frankfurt's demand to Madrid."""
    arcs = (Arc("eu-de", 0.5, ArcReason.HOME), Arc("eu-es", 0.5, ArcReason.SPILLOVER))
    classes = (ClassPlan(planet.MODEL, "+".join(EU), arcs, ()),)
    for region in regions:
        plan = RegionPlan(region, 41, 1, POLICY.digest(), 0.0, classes if region == "eu-de" else ())
        await store.commit([], [Put(keys.plan(region), encode(plan))])


async def test_a_leader_publishes_a_plan_from_its_reports(office: Office) -> None:
    epoch = await office.elect()
    for _ in range(2):
        await office.tick(*whole_fleet())
    plan = await office.plan("eu-de")
    assert plan is not None
    assert (plan.epoch, plan.policy_digest) == (epoch, POLICY.digest())
    assert await office.shares() == {"eu-de": 1.0}
    assert (office.metric("leader"), office.metric("fencing_epoch")) == (1, epoch)
    assert office.metric("region_state", region="eu-de", state="healthy") == 1
    assert office.metric("region_slots", region="eu-de", model=planet.MODEL) == 100
    assert office.metric("demand_requests_per_second", origin="eu-de", model=planet.MODEL) == 10
    assert office.metric("arc_share", origin="eu-de", server="eu-de", model=planet.MODEL, residency="eu-de+eu-es") == 1
    assert office.metric("policy_info", digest=POLICY.digest()) == 1


async def test_agents_that_reject_the_published_plan_are_counted(office: Office) -> None:
    await office.elect()
    refusing = msgspec.structs.replace(report("eu-es"), refused_plan="a test says so")
    await office.tick(report("eu-de"), refusing, msgspec.structs.replace(refusing, agent="two"))
    assert [office.metric("agents_rejecting_config", region=region) for region in ("eu-de", "eu-es", "us-east")] == [
        0,
        2,
        0,
    ]
    await office.tick(report("eu-es"), report("eu-es", agent="two"))
    assert office.metric("agents_rejecting_config", region="eu-es") == 0


async def test_the_policy_is_published_before_the_first_report(office: Office) -> None:
    await office.elect()
    await office.tick()
    plan = await office.plan("us-east")
    assert plan is not None
    assert await office.shared.get(keys.policy(plan.policy_digest)) is not None


async def test_a_follower_writes_nothing_and_shows_no_fleet(office: Office) -> None:
    for _ in range(3):
        await office.tick(*whole_fleet())
    assert (await office.shared.list(keys.ROOT)).items == ()
    assert office.metric("leader") == 0
    assert office.metric("region_state", region="eu-de", state="healthy") is None
    assert office.fleet.snapshot.state("eu-de") is RegionState.HEALTHY


async def test_a_new_leader_keeps_the_plan_until_it_has_reports_of_the_regions(office: Office) -> None:
    await in_force(office.shared)
    await office.elect()
    await office.tick(*whole_fleet()[:2])
    assert (await office.plan("eu-de")).epoch == 1  # type: ignore[union-attr]
    await office.tick(*whole_fleet())
    assert (await office.plan("eu-de")).epoch > 1  # type: ignore[union-attr]


async def test_a_new_leader_plans_without_a_region_that_stays_silent(office: Office) -> None:
    await in_force(office.shared)
    await office.elect()
    for _ in range(int(SETTLE_S / TICK_S)):
        await office.tick(*whole_fleet()[:2])
        assert (await office.plan("eu-de")).epoch == 1  # type: ignore[union-attr]
    await office.tick(*whole_fleet()[:2])
    assert (await office.plan("eu-de")).epoch > 1  # type: ignore[union-attr]


async def test_a_new_leader_without_reports_keeps_every_share(office: Office) -> None:
    await in_force(office.shared)
    await office.elect()
    for _ in range(20):
        await office.tick()
    assert await office.shares() == {"eu-de": 0.5, "eu-es": 0.5}


async def test_shares_move_from_the_plan_in_force_and_generations_continue(office: Office) -> None:
    await in_force(office.shared)
    await office.elect()
    await office.tick(*whole_fleet())
    step = POLICY.spillover.step_per_s * TICK_S
    assert (await office.shares())["eu-de"] == pytest.approx(0.5 + step)
    assert (await office.plan("eu-de")).generation > 41  # type: ignore[union-attr]


async def test_after_a_long_pause_shares_still_move_by_a_small_step(office: Office) -> None:
    await in_force(office.shared)
    await office.elect()
    await office.tick(*whole_fleet())
    before = (await office.shares())["eu-de"]
    office.now += 60.0
    await office.tick(*whole_fleet())
    assert (await office.shares())["eu-de"] == pytest.approx(before + POLICY.spillover.step_per_s * MAX_STEP_S)


async def test_a_failed_region_loses_its_share_at_once(office: Office) -> None:
    await office.elect()
    for _ in range(3):
        await office.tick(*whole_fleet())
    lost = (PeerReport("eu-de", RegionState.FAILED, 0.0),)
    others = [report("eu-es", peers=lost), report("us-east", peers=lost)]
    for _ in range(POLICY.failover.unhealthy_threshold + 1):
        await office.tick(report("eu-de", offered(10.0, *EU)), *others)
    assert await office.shares() == {"eu-es": 1.0}


async def test_a_fenced_leader_steps_down_without_having_written(office: Office) -> None:
    await office.elect()
    for _ in range(2):
        await office.tick(*whole_fleet())
    await office.shared.commit([], [Delete(keys.LEADER)])
    await office.shared.commit([], [Put(keys.LEADER, encode(Member("b", "http://b")))])
    before = (await office.shared.list(keys.PLANS)).items
    await office.tick(*whole_fleet(rate=500.0))
    assert (await office.shared.list(keys.PLANS)).items == before
    assert office.elector.leadership.role is LeadershipRole.FOLLOWER
    assert office.metric("plan_publishes_total", outcome="fenced") == 1
    await office.tick()
    assert office.metric("leader") == 0


async def test_without_the_store_nothing_is_written_until_it_returns(office: Office) -> None:
    await office.elect()
    for _ in range(2):
        await office.tick(*whole_fleet())
    office.store.away = True
    for _ in range(3):
        await office.tick(*whole_fleet(rate=500.0))
    assert office.metric("plan_publishes_total", outcome="store_unavailable") == 3
    office.store.away = False
    for _ in range(2):
        await office.tick(*whole_fleet(rate=500.0))
    assert (await office.shares())["eu-es"] > 0


async def test_a_new_policy_reaches_the_store(office: Office) -> None:
    await office.elect()
    await office.tick(*whole_fleet())
    office.policies.current = msgspec.structs.replace(POLICY, anonymous_tenant="open")
    await office.tick(*whole_fleet())
    plan = await office.plan("eu-de")
    assert plan is not None
    assert plan.policy_digest == office.policies.current.digest()
    assert await office.shared.get(keys.policy(plan.policy_digest)) is not None


async def test_without_a_policy_nothing_is_planned(office: Office) -> None:
    office.policies.current = None
    await office.elect()
    await office.tick()
    assert (await office.shared.list(keys.PLANS)).items == ()


async def test_a_leader_elected_again_writes_under_its_new_epoch(office: Office) -> None:
    await office.elect()
    await office.tick(*whole_fleet())
    epoch = await office.elect()
    await office.tick(*whole_fleet())
    assert (await office.plan("eu-de")).epoch == epoch  # type: ignore[union-attr]
    assert office.metric("plan_publishes_total", outcome="fenced") == 0


async def test_a_leader_elected_again_resets_its_view_of_silent_regions(office: Office) -> None:
    await office.elect()
    for _ in range(3):
        await office.tick(*whole_fleet())
    office.elector.leadership = Leadership()
    for _ in range(10):
        await office.tick(report("us-east"))
    assert office.fleet.snapshot.state("eu-de") is RegionState.FAILED
    await office.elect()
    await office.tick(*whole_fleet())
    assert office.fleet.snapshot.state("eu-de") is RegionState.HEALTHY


async def test_a_new_leader_continues_the_ramp_of_a_recovered_region(office: Office) -> None:
    await office.elect()
    for _ in range(3):
        await office.tick(*whole_fleet())
    lost = (PeerReport("eu-de", RegionState.FAILED, 0.0),)
    others = [report("eu-es", peers=lost), report("us-east", peers=lost)]
    for _ in range(POLICY.failover.unhealthy_threshold + 1):
        await office.tick(report("eu-de", offered(10.0, *EU)), *others)
    reported = (await office.plan("eu-de")).health  # type: ignore[union-attr]
    assert reported is not None
    assert (reported.state, (await office.plan("eu-es")).health) == (RegionState.FAILED, None)  # type: ignore[union-attr]
    next_one = Office(office.shared)
    next_one.now = office.now
    async with running(next_one.overrides.mirror.informer) as informer:
        await informer.wait_synced()
        await next_one.elect()
        await next_one.tick(*whole_fleet())
        assert next_one.fleet.snapshot.state("eu-de") is RegionState.FAILED
        assert await next_one.shares() == {"eu-es": 1.0}
        while next_one.fleet.snapshot.state("eu-de") is RegionState.FAILED:
            await next_one.tick(*whole_fleet())
        assert next_one.now - reported.since >= POLICY.failover.hold_down_s
        began = next_one.fleet.snapshot.health["eu-de"].since
        for _ in range(int(POLICY.failover.failback_ramp_s / 3 / TICK_S)):
            await next_one.tick(*whole_fleet())
        await next_one.elect()
        await next_one.tick(*whole_fleet())
        health = next_one.fleet.snapshot.health["eu-de"]
        assert (health.state, health.since) == (RegionState.RECOVERING, began)
        weight = health.weight(next_one.now, POLICY.failover)
        assert (await next_one.shares())["eu-de"] <= weight + 1e-9 < 0.5


async def test_a_new_leader_waits_for_regions_of_the_policy_in_force_only(
    office: Office,
) -> None:
    stable = msgspec.structs.replace(POLICY, rollout=msgspec.structs.replace(POLICY.rollout, shadow_s=1e6))
    office.policies.offer(stable)
    await office.elect()
    for _ in range(2):
        await office.tick(*whole_fleet())
    regions = {name: region for name, region in POLICY.regions.items() if name != "us-east"}
    candidate = msgspec.structs.replace(stable, regions=regions)
    office.policies.offer(candidate)
    await office.tick(*whole_fleet())
    assert office.rollouts.active is not None
    assert office.rollouts.active.candidate is not None
    next_one = Office(office.shared)
    next_one.now = office.now
    next_one.policies.offer(candidate)
    async with running(next_one.overrides.mirror.informer) as informer:
        await informer.wait_synced()
        epoch = await next_one.elect()
        await next_one.tick(report("eu-de", offered(10.0, *EU)), report("eu-es"))
        assert next_one.rollouts.policy == stable, "whose reports are taken in goes by it"
        assert (await next_one.plan("us-east")).epoch < epoch  # type: ignore[union-attr]
        await next_one.tick(*whole_fleet())
        assert (await next_one.plan("us-east")).epoch == epoch  # type: ignore[union-attr]


async def test_a_leader_that_cannot_read_the_store_at_first_inherits_as_soon_as_it_can(office: Office) -> None:
    await in_force(office.shared)
    lost = RegionHealth(RegionState.FAILED, office.now)
    plan = msgspec.structs.replace(await office.plan("eu-es"), health=lost, made_at=office.now)
    await office.shared.commit([], [Put(keys.plan("eu-es"), encode(plan))])
    await office.elect()
    office.store.away = True
    await office.tick(*whole_fleet())
    assert office.fleet.snapshot.state("eu-es") is RegionState.HEALTHY
    office.store.away = False
    await office.tick(*whole_fleet())
    assert office.fleet.snapshot.state("eu-es") is RegionState.FAILED


async def set_override(office: Office, wanted: Override) -> Override:
    override = await office.overrides.begin(OPERATOR, msgspec.structs.replace(wanted, begins_at=office.now), POLICY, {})
    await until(lambda: office.overrides.seen.find(override.id) is not None)
    return override


async def test_a_drain_shows_in_the_plan_and_in_the_regions_state(office: Office) -> None:
    await office.elect()
    for _ in range(3):
        await office.tick(*whole_fleet())
    await set_override(office, drain("eu-de"))
    for _ in range(10):
        await office.tick(*whole_fleet())
    assert await office.shares() == {"eu-es": 1.0}
    assert office.metric("region_state", region="eu-de", state="draining") == 1
    assert office.metric("overrides", kind="drain", region="eu-de") == 1


async def test_nothing_is_planned_before_overrides_were_read(office: Office) -> None:
    await office.elect()
    office.planning._overrides = OverrideStore(
        office.store, AuditLog(office.store), "a", rng=Random(1), clock=lambda: office.now
    )
    for _ in range(3):
        await office.tick(*whole_fleet())
    assert await office.plan("eu-de") is None


async def test_nothing_is_planned_with_unreadable_overrides(office: Office) -> None:
    await office.elect()
    await set_override(office, drain("eu-de"))
    for _ in range(3):
        await office.tick(*whole_fleet())
    before = await office.shares()
    await office.shared.commit([], [Put(keys.OVERRIDES, b"garbage")])
    await until(lambda: office.overrides.unreadable)
    for _ in range(3):
        await office.tick(*whole_fleet())
    assert await office.shares() == before


async def test_a_leader_removes_expired_overrides_and_audits_the_removal(office: Office) -> None:
    await office.elect()
    await office.tick(*whole_fleet())
    override = await set_override(office, drain("eu-de", expires_at=office.now + 2.0))
    for _ in range(4):
        await office.tick(*whole_fleet())
    assert (await office.overrides.read()).find(override.id) is not None
    office.now += POLICY.failover.failback_ramp_s
    for _ in range(2):
        await office.tick(*whole_fleet())
    assert await office.overrides.read() == OverrideSet()
    entries = [entry async for entry in AuditLog(office.store).entries()]
    assert [(entry.action, entry.caller) for entry in entries] == [("override.drain", "duty"), ("override.expire", "a")]


async def test_a_former_leader_removes_nothing(office: Office) -> None:
    epoch = await office.elect()
    override = await set_override(office, drain("eu-de", expires_at=office.now + 2.0))
    office.now += 100.0
    await office.elect()
    await office.overrides.sweep(epoch, POLICY)
    assert (await office.overrides.read()).find(override.id) is not None

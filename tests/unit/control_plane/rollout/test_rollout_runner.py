"""A leader's rollouts on a store: a revision reaches regions stage by stage, also across changes of the leader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from random import Random

import msgspec
import pytest
from structlog.testing import capture_logs

from adapters.access.callers import Caller
from adapters.access.callers import Role as CallerRole
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
from control_plane.planning.planning_loop import TICK_S, PlanningLoop
from control_plane.policy.source.policy_source import stored_policy
from control_plane.policy.source.revision_store import RevisionStore
from control_plane.rollout.model_rollouts import ModelRollouts
from control_plane.rollout.rollout_actions import ActionRefused, RolloutActions
from control_plane.rollout.rollout_runner import RolloutRunner
from control_plane.rollout.rollout_store import RolloutStore
from lab.memory_store import MemoryStore
from penstock.fleet.counts.request_counts import RequestCounts
from penstock.fleet.report import AgentReport
from penstock.fleet.snapshot import ReportVerdict
from penstock.leadership.leadership_states import Leadership, LeadershipRole
from penstock.planning.plan import RegionPlan
from penstock.policy.kinds.operations import RolloutRules
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.policy import Policy
from penstock.rollout.policy_rollout import Phase, Rollout, RolloutEvent, transition
from tests.support import planet
from tests.support.fake_policy_source import OfferedPolicy
from tests.support.policy_releases import before_logics_had_names, with_a_field_to_come, with_a_logic_to_come
from tests.support.reports import offered, report
from tests.support.wait import until

RULES = RolloutRules(
    shadow_s=2.0,
    max_moved_share=0.25,
    canary_regions=("eu-es",),
    canary_s=5.0,
    acknowledge_timeout_s=3.0,
    min_requests=0,
    max_failure_increase=0.05,
    max_latency_factor=2.0,
    watch_s=5.0,
)
OLD = msgspec.structs.replace(planet.policy(), rollout=RULES)
NEW = msgspec.structs.replace(OLD, spillover=msgspec.structs.replace(OLD.spillover, target_utilisation=0.7))
NEWER = msgspec.structs.replace(OLD, spillover=msgspec.structs.replace(OLD.spillover, target_utilisation=0.6))
REGIONS = ("eu-de", "eu-es", "us-east")


class World:
    """A store, agents that apply what they receive, and one leading control plane at a time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = MemoryStore()
        self.source = OfferedPolicy(OLD)
        self.seq = 0
        self.refuses: dict[str, str] = {}
        """Regions whose agent refuses a policy, and which."""
        self.fails: dict[str, str] = {}
        """Regions whose requests fail under a policy, and which."""
        self.applied: dict[str, str] = {}
        self.answers = dict.fromkeys(REGIONS, RequestCounts())
        self.silent: set[str] = set()
        self.take_over()

    def take_over(self) -> None:
        """Start another control plane, whose only state is the store, and elect it with `elect`."""
        self.fleet = FleetSnapshot()
        self.elector = LeaderElector(
            self.store, Candidate(Member("a", "http://a")), rng=Random(1), clock=lambda: self.now
        )
        models = ModelRollouts(self.store, AuditLog(self.store), "cp-1")
        self.rollouts = RolloutRunner(self.store, self.source, PlanPublisher(self.store), models)
        overrides = OverrideStore(
            self.store, AuditLog(self.store, lambda: self.now), "a", rng=Random(1), clock=lambda: self.now
        )
        self.overrides = overrides
        self.planning = PlanningLoop(
            self.elector,
            self.fleet,
            overrides,
            self.rollouts,
            ControlPlaneMetrics(),
            lambda: self.now,
        )

    async def elect(self) -> None:
        self.overrides.mirror.informer.start()
        await until(lambda: self.overrides.known)
        await self.store.commit([], [Delete(keys.LEADER)])
        made = await self.store.commit([], [Put(keys.LEADER, encode(Member("a", "http://a")))])
        self.elector.leadership = Leadership(LeadershipRole.LEADER, made.revision, proven_until=self.now + 1e6)

    async def pass_s(self, seconds: float) -> None:
        """Let time pass: reports and ticks."""
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.seq += 1
            await self.agents()
            await self.planning.tick()

    async def agents(self) -> None:
        for region in REGIONS:
            named = (await self.plan(region)).policy_digest if region in await self.plans() else ""
            refused = named if self.refuses.get(region) == named else ""
            if not refused:
                self.applied[region] = named
            failed = 10 if self.fails.get(region) == self.applied[region] != "" else 0
            self.answers[region] += RequestCounts(10, failed, 10 - failed, 1.0)
            report = self.report_of(region, refused)
            if region not in self.silent:
                assert self.fleet.add_report(report, self.now, OLD) is ReportVerdict.ACCEPTED

    def report_of(self, region: str, refused: str) -> AgentReport:
        return msgspec.structs.replace(
            report(region, offered(10.0, *REGIONS), seq=self.seq),
            policy_digest=self.applied[region],
            refused_digest=refused,
            refused_plan="it is not to my taste" if refused else "",
            request_counts=self.answers[region],
        )

    async def plans(self) -> dict[str, RegionPlan]:
        items = (await self.store.list(keys.PLANS)).items
        return {item.key.removeprefix(keys.PLANS): decode(item.value, RegionPlan) for item in items}

    async def plan(self, region: str) -> RegionPlan:
        return (await self.plans())[region]

    async def assigned(self) -> dict[str, Policy]:
        """The policy assigned to each region."""
        named = {policy.digest(): policy for policy in (OLD, NEW, NEWER)}
        return {region: named[plan.policy_digest] for region, plan in (await self.plans()).items()}

    async def rollout(self) -> Rollout:
        stored = (await RolloutStore(self.store).newest()).rollout
        assert stored is not None
        return stored

    async def is_in(self, phase: Phase) -> bool:
        return (await self.rollout()).phase is phase


@pytest.fixture
async def world() -> AsyncIterator[World]:
    elected = World()
    await elected.elect()
    await elected.pass_s(1.0)
    yield elected
    await elected.overrides.mirror.informer.stop()
    await elected.store.close()


def assigned_to_all(policy: Policy, but: dict[str, Policy] | None = None) -> dict[str, Policy]:
    return dict.fromkeys(REGIONS, policy) | (but or {})


async def test_the_first_policy_is_in_force_at_once(world: World) -> None:
    assert await world.assigned() == assigned_to_all(OLD)
    assert await world.is_in(Phase.DONE)


async def test_a_change_goes_from_shadow_over_the_canary_to_all(world: World) -> None:
    world.source.offer(NEW, "c0ffee")
    await world.pass_s(1.5)
    assert await world.assigned() == assigned_to_all(OLD)
    assert world.rollouts.shadow is not None
    assert world.rollouts.shadow.moved_share == 0.0
    await world.pass_s(2.0)
    assert await world.assigned() == assigned_to_all(OLD, {"eu-es": NEW})
    assert (await world.plan("eu-de")).provenance is None
    tried = (await world.plan("eu-es")).provenance
    assert tried is not None
    assert tried.commit == "c0ffee"
    await world.pass_s(5.5)
    assert await world.assigned() == assigned_to_all(NEW)
    assert await world.is_in(Phase.WATCH)
    await world.pass_s(5.5)
    assert await world.is_in(Phase.DONE)
    assert (await world.rollout()).stable == NEW.digest()
    assert [rollout.phase for rollout in await RolloutStore(world.store).ended()] == [Phase.DONE, Phase.DONE]


async def test_a_rejection_by_an_agent_rolls_back_for_good(world: World) -> None:
    world.refuses["eu-es"] = NEW.digest()
    world.source.offer(NEW)
    await world.pass_s(6.0)
    assert await world.is_in(Phase.ROLLED_BACK)
    assert "it is not to my taste" in (await world.rollout()).why
    await world.pass_s(20.0)
    assert await world.assigned() == assigned_to_all(OLD)
    assert (await world.rollout()).number == 2
    world.source.offer(NEWER)
    await world.pass_s(4.0)
    assert await world.assigned() == assigned_to_all(OLD, {"eu-es": NEWER})


async def test_failures_under_the_candidate_roll_it_back(world: World) -> None:
    world.fails["eu-es"] = NEW.digest()
    world.source.offer(NEW)
    await world.pass_s(8.0)
    assert await world.is_in(Phase.ROLLED_BACK)
    assert "of requests fail" in (await world.rollout()).why
    assert await world.assigned() == assigned_to_all(OLD)


async def test_failures_in_other_regions_roll_back_in_the_watch_phase(world: World) -> None:
    world.fails["us-east"] = NEW.digest()
    world.source.offer(NEW)
    await world.pass_s(16.0)
    assert await world.is_in(Phase.ROLLED_BACK)
    assert await world.assigned() == assigned_to_all(OLD)


async def test_a_silent_canary_holds_the_rollout_until_an_operator_continues_it(world: World) -> None:
    world.silent = {"eu-es"}
    await world.pass_s(16.0)
    world.source.offer(NEW)
    await world.pass_s(8.0)
    assert await world.is_in(Phase.CANARY_HELD)
    stored = await RolloutStore(world.store).newest()
    assert stored.rollout is not None
    promoted = transition(stored.rollout, RolloutEvent.PROMOTE, world.now, why="it is urgent", by="ann")
    await world.store.commit([], [Put(keys.ROLLOUT, encode(promoted))])
    await world.pass_s(1.0)
    assert await world.assigned() == assigned_to_all(NEW)


async def test_a_newer_revision_replaces_one_in_progress(world: World) -> None:
    world.source.offer(NEW)
    await world.pass_s(4.0)
    assert await world.assigned() == assigned_to_all(OLD, {"eu-es": NEW})
    world.source.offer(NEWER)
    await world.pass_s(0.5)
    assert await world.assigned() == assigned_to_all(OLD)
    ended = await RolloutStore(world.store).ended()
    assert (ended[0].candidate, ended[0].phase) == (NEW.digest(), Phase.SUPERSEDED)
    await world.pass_s(3.0)
    assert await world.assigned() == assigned_to_all(OLD, {"eu-es": NEWER})


async def test_a_revision_waits_for_the_watch_of_the_last_one_and_a_rolled_back_one_for_an_operator(
    world: World,
) -> None:
    world.source.offer(NEW)
    await world.pass_s(9.5)
    assert await world.is_in(Phase.WATCH)
    world.source.offer(NEWER)
    await world.pass_s(1.0)
    assert world.rollouts.outlook is not None
    assert [condition.is_met for condition in world.rollouts.outlook.conditions] == [False]
    waiting = world.rollouts.outlook.waiting
    assert waiting is not None
    assert (waiting.digest, waiting.place) == (NEWER.digest(), 1)
    assert waiting.begins_in_s == world.rollouts.outlook.ends_in_s
    await world.pass_s(6.0)
    assert (await world.rollout()).candidate == NEWER.digest()
    assert world.rollouts.outlook.waiting is None
    world.refuses = dict.fromkeys(REGIONS, NEWER.digest())
    await world.pass_s(8.0)
    assert await world.is_in(Phase.ROLLED_BACK)
    assert (await world.rollout()).in_force == NEW.digest()
    waiting = world.rollouts.outlook.waiting
    assert waiting is not None
    assert (waiting.digest, waiting.place) == (NEWER.digest(), None)


async def test_a_source_that_reverts_ends_the_rollout(world: World) -> None:
    world.source.offer(NEW)
    await world.pass_s(4.0)
    world.source.offer(OLD)
    await world.pass_s(1.0)
    assert await world.assigned() == assigned_to_all(OLD)
    await world.pass_s(5.0)
    assert (await world.rollout()).number == 2


@pytest.mark.parametrize("after_s", [1.0, 4.0, 10.0])
async def test_the_next_leader_continues_where_the_last_one_stopped(world: World, after_s: float) -> None:
    world.source.offer(NEW)
    await world.pass_s(after_s)
    before = await world.rollout()
    applied = await world.assigned()
    await world.overrides.mirror.informer.stop()
    world.take_over()
    await world.elect()
    await world.pass_s(0.5)
    after = await world.rollout()
    assert (after.number, after.phase, after.began_at) == (before.number, before.phase, before.began_at)
    assert await world.assigned() == applied
    await world.pass_s(15.0)
    assert await world.is_in(Phase.DONE)
    assert await world.assigned() == assigned_to_all(NEW)


async def test_a_leader_that_receives_no_report_for_seconds_keeps_the_baseline(world: World) -> None:
    world.source.offer(NEW)
    await world.pass_s(1.0)
    promoted = transition(await world.rollout(), RolloutEvent.PROMOTE, world.now, why="it is urgent", by="ann")
    await world.store.commit([], [Put(keys.ROLLOUT, encode(promoted))])
    await world.overrides.mirror.informer.stop()
    world.take_over()
    await world.elect()
    world.silent = set(REGIONS)
    await world.pass_s(4.0)
    assert await world.assigned() == assigned_to_all(NEW), "it plans without reports"
    world.silent = set()
    await world.pass_s(1.0)
    assert (await world.rollout()).counts_before.keys() == set(REGIONS)


async def test_a_new_leader_with_a_bad_canary_rolls_it_back(world: World) -> None:
    world.source.offer(NEW)
    await world.pass_s(4.0)
    await world.overrides.mirror.informer.stop()
    world.take_over()
    world.fails["eu-es"] = NEW.digest()
    await world.elect()
    await world.pass_s(4.0)
    assert await world.is_in(Phase.ROLLED_BACK)
    assert await world.assigned() == assigned_to_all(OLD)


async def test_a_source_read_before_the_election_begins_no_rollout(world: World) -> None:
    world.source.offer(NEW)
    await world.pass_s(16.0)
    assert await world.is_in(Phase.DONE)
    await world.overrides.mirror.informer.stop()
    world.take_over()
    world.source.offer(OLD)
    world.source.is_fresh = False
    await world.elect()
    await world.pass_s(5.0)
    assert await world.assigned() == assigned_to_all(NEW)
    world.source.is_fresh = True
    await world.pass_s(0.5)
    assert (await world.rollout()).candidate == OLD.digest()


async def test_a_former_leader_writes_no_rollout(world: World) -> None:
    world.source.offer(NEW)
    await world.store.commit([], [Delete(keys.LEADER)])
    await world.store.commit([], [Put(keys.LEADER, encode(Member("b", "http://b")))])
    before = await world.store.list(keys.ROOT)
    await world.pass_s(2.0)
    assert world.elector.epoch is None
    after = await world.store.list(keys.ROOT)
    assert [item for item in after.items if item not in before.items] == []


async def test_the_first_revision_is_compared_with_the_policy_in_force(world: World) -> None:
    await world.store.commit([], [Delete(keys.ROLLOUT)])
    world.source.offer(NEW)
    await world.pass_s(4.0)
    assert await world.assigned() == assigned_to_all(OLD, {"eu-es": NEW})


async def test_a_commit_without_changes_is_named_in_plans_and_rolls_out_nothing(world: World) -> None:
    world.source.offer(OLD, "beef")
    await world.pass_s(1.0)
    reported = (await world.plan("us-east")).provenance
    assert reported is not None
    assert reported.commit == "beef"
    assert (await world.rollout()).number == 1


async def test_an_unreadable_rollout_keeps_the_policies_in_force(world: World) -> None:
    await world.store.commit([], [Put(keys.ROLLOUT, b"torn")])
    await world.pass_s(1.0)
    assert await world.assigned() == assigned_to_all(OLD)
    assert await world.is_in(Phase.DONE)


@pytest.mark.parametrize("canary", [("eu-es",), ("eu-es", "us-east")])
@pytest.mark.parametrize("lose", [Delete(keys.ROLLOUT), Put(keys.ROLLOUT, b"torn")])
async def test_a_canary_whose_rollout_is_lost_returns_to_the_stable_policy(
    world: World, canary: tuple[str, ...], lose: Delete | Put
) -> None:
    world.source.offer(NEW)
    await world.pass_s(3.5)
    begun = msgspec.structs.replace(await world.rollout(), canary=canary)
    await world.store.commit([], [Put(keys.ROLLOUT, encode(begun))])
    await world.pass_s(0.5)
    assert await world.assigned() == assigned_to_all(OLD, dict.fromkeys(canary, NEW))
    plans = await world.plans()
    assert max(plans.values(), key=lambda plan: (plan.epoch, plan.generation)).region in canary
    await world.store.commit([], [lose])
    await world.pass_s(0.5)
    assert await world.assigned() == assigned_to_all(OLD)
    assert (await world.rollout()).number > 1, "numbers do not begin anew"
    await world.pass_s(16.0)
    assert await world.assigned() == assigned_to_all(NEW)
    assert await world.is_in(Phase.DONE)


async def test_without_any_rollout_the_policy_of_most_regions_is_stable(world: World) -> None:
    world.source.offer(NEW)
    await world.pass_s(4.0)
    assert await world.assigned() == assigned_to_all(OLD, {"eu-es": NEW})
    await world.store.commit([], [Delete(keys.ROLLOUT), Delete(keys.ended_rollout(1))])
    await world.pass_s(0.5)
    assert await world.assigned() == assigned_to_all(OLD)


async def test_a_candidate_that_the_store_lost_is_rolled_back(world: World) -> None:
    world.source.offer(NEW)
    await world.pass_s(4.0)
    await world.store.commit([], [Delete(keys.policy(NEW.digest()))])
    await world.overrides.mirror.informer.stop()
    world.take_over()
    world.source.offer(OLD)
    await world.elect()
    await world.pass_s(1.0)
    assert await world.assigned() == assigned_to_all(OLD)


@pytest.mark.parametrize("write", [with_a_logic_to_come, with_a_field_to_come])
async def test_a_stable_policy_of_a_newer_release_stays_in_force(
    world: World, write: Callable[[Policy], tuple[bytes, str]]
) -> None:
    raw, digest = write(NEW)
    newest = msgspec.structs.replace(await world.rollout(), candidate=digest, stable=digest)
    await world.store.commit([], [Put(keys.policy(digest), raw), Put(keys.ROLLOUT, encode(newest))])
    before = await world.plans()
    await world.pass_s(5.0)
    assert await world.plans() == before
    assert await world.rollout() == newest


async def test_a_candidate_for_newer_releases_only_is_rolled_back_with_the_reason(world: World) -> None:
    raw, digest = with_a_logic_to_come(NEW)
    await world.store.commit([], [Put(keys.policy(digest), raw)])
    tried = msgspec.structs.replace(
        await world.rollout(), candidate=digest, phase=Phase.CANARY, canary=("eu-es",), number=2
    )
    await world.store.commit([], [Put(keys.ROLLOUT, encode(tried))])
    world.source.is_fresh = False
    await world.pass_s(1.0)
    after = await world.rollout()
    assert after.phase is Phase.ROLLED_BACK
    assert "cannot be decoded by this release: bad Policy: Invalid enum value 'crystal_ball'" in after.why
    assert await world.assigned() == assigned_to_all(OLD)


async def test_a_stable_policy_of_an_earlier_release_stays_and_the_next_one_is_staged(world: World) -> None:
    raw, digest = before_logics_had_names(OLD)
    done = msgspec.structs.replace(await world.rollout(), candidate=digest, stable=digest)
    await world.store.commit([], [Put(keys.policy(digest), raw), Put(keys.ROLLOUT, encode(done))])
    world.source.is_fresh = False
    await world.pass_s(5.0)
    assert {plan.policy_digest for plan in (await world.plans()).values()} == {digest}
    world.source.is_fresh = True
    await world.pass_s(1.0)
    begun = await world.rollout()
    assert (begun.phase, begun.stable, begun.candidate) == (Phase.SHADOW, digest, OLD.digest())
    assert {plan.policy_digest for plan in (await world.plans()).values()} == {digest}
    await world.pass_s(15.0)
    assert await world.assigned() == assigned_to_all(OLD)
    kept = await world.store.get(keys.policy(digest))
    assert kept is not None
    assert kept.value == raw


async def test_only_the_leader_writes_and_only_over_the_revision_it_read(world: World) -> None:
    records = RolloutStore(world.store)
    stored = await records.newest()
    assert stored.rollout is not None
    leader = await world.store.get(keys.LEADER)
    assert leader is not None
    epoch = leader.create_revision
    assert not await records.write([stored.rollout], stored.revision, epoch - 1)
    assert not await records.write([stored.rollout], stored.revision - 1, epoch)
    assert (await records.newest()).revision == stored.revision
    assert await records.write([stored.rollout], stored.revision, epoch)


def without_rules(policy: Policy) -> Policy:
    return msgspec.structs.replace(policy, residency=())


@pytest.mark.parametrize("rules", [RULES, planet.AT_ONCE], ids=["staged", "at once"])
async def test_a_policy_that_loses_residency_rules_is_not_rolled_out(world: World, rules: RolloutRules) -> None:
    stable = msgspec.structs.replace(OLD, rollout=rules)
    world.source.offer(stable)
    await world.pass_s(30.0)
    before = await world.rollout()
    assert before.stable == stable.digest()
    lost = without_rules(stable)
    world.source.offer(lost)
    with capture_logs() as logged:
        await world.pass_s(3.0)
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == ["policy not rolled out"]
    (error,) = world.source.errors
    assert error.startswith(
        f"would remove the ResidencyRule {planet.EU_ONLY.name}; restore the files, or list the names"
    )
    assert error.endswith(f"or use `penstock policy apply {lost.digest()[:12]} --allow-removal`")
    assert await world.rollout() == before
    assert {plan.policy_digest for plan in (await world.plans()).values()} == {stable.digest()}
    newest = (await RevisionStore(world.store).newest_first())[0]
    assert (newest.digest, newest.errors) == (lost.digest(), world.source.errors)
    assert await stored_policy(world.store, lost.digest()) is not None

    # The next leader finds it, too.
    await world.overrides.mirror.informer.stop()
    world.take_over()
    await world.elect()
    await world.pass_s(2.0)
    assert world.source.withheld
    assert await world.rollout() == before

    # With the word, it is rolled out.
    world.source.accepted_removals = {"ResidencyRule": {planet.EU_ONLY.name}}
    await world.pass_s(1.0)
    assert world.source.errors == ()
    assert (await world.rollout()).candidate == lost.digest()


async def test_a_running_rollout_goes_on_while_the_source_has_lost_its_rules(world: World) -> None:
    world.source.offer(NEW)
    await world.pass_s(1.0)
    assert await world.is_in(Phase.SHADOW)
    world.source.offer(without_rules(OLD))
    await world.pass_s(0.5)
    assert world.source.withheld
    current = await world.rollout()
    assert (current.number, current.candidate, current.is_over) == (2, NEW.digest(), False)
    world.source.offer(NEW)
    await world.pass_s(0.5)
    assert world.source.errors == ()


async def test_a_return_to_the_stable_policy_needs_no_word(world: World) -> None:
    """The rules that a candidate adds end with the candidate: that is a rollback, and not a loss."""
    more = msgspec.structs.replace(OLD, residency=(*OLD.residency, ResidencyRule("more", deny=frozenset({"us-east"}))))
    world.source.offer(more)
    await world.pass_s(1.0)
    assert await world.is_in(Phase.SHADOW)
    world.source.offer(OLD)
    await world.pass_s(1.0)
    assert world.source.errors == ()
    assert await world.is_in(Phase.SUPERSEDED)


async def test_an_operator_applies_what_removes_rules_with_a_word_only(world: World) -> None:
    lost = without_rules(OLD)
    world.source.offer(lost)
    await world.pass_s(1.0)
    audit = AuditLog(world.store, lambda: world.now)
    actions = RolloutActions(world.store, audit, world.source, lambda: world.now)
    admin = Caller("admin", CallerRole.ADMIN)
    seen = await actions.rollouts.newest()
    with pytest.raises(ActionRefused, match=f"would remove: ResidencyRule {planet.EU_ONLY.name}; confirm with --allow"):
        await actions.apply(admin, seen, lost.digest(), None, "because")
    assert await actions.rollouts.newest() == seen
    await actions.apply(admin, seen, lost.digest(), None, "because", allow_removal=True)
    await world.pass_s(30.0)
    assert (await world.rollout()).stable == lost.digest()
    assert world.source.errors == ()

    # A rollback returns to what the whole fleet has run, whatever that lacks.
    world.source.offer(OLD)
    await world.pass_s(30.0)
    assert (await world.rollout()).stable == OLD.digest()
    await actions.restore(admin, await actions.rollouts.newest(), lost.digest(), None, "because")
    assert (await world.rollout()).stable == lost.digest()

"""The phases of a candidate, advanced by evidence, by operators, and by the next version of the source."""

from __future__ import annotations

import msgspec
import pytest

from adapters.store.codec import encode
from penstock.fleet.counts.request_counts import RequestCounts
from penstock.fleet.snapshot import Demand
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.kinds.operations import RolloutRules
from penstock.policy.provenance import Provenance
from penstock.rollout.canary_analysis import MAX_MARKS, AgentObservation, Evidence, objectives_since, observe
from penstock.rollout.objective_analysis import ObjectiveCounts
from penstock.rollout.policy_rollout import (
    FINAL_PHASES,
    TRANSITIONS,
    Mark,
    OfferedPolicy,
    Phase,
    Rollout,
    RolloutEvent,
    begin,
    first_rollout,
    on_source_policy,
    restore,
    transition,
)
from penstock.rollout.region_evidence import by_region
from penstock.rollout.shadow import shadow
from tests.support.planet import AT_ONCE

RULES = RolloutRules(
    shadow_s=10.0,
    max_moved_share=0.25,
    canary_regions=("b",),
    canary_s=60.0,
    acknowledge_timeout_s=15.0,
    min_requests=50,
    max_failure_increase=0.02,
    max_latency_factor=1.5,
    watch_s=300.0,
)
OLD, NEW, NEXT = "old", "new", "next"
STABLE = first_rollout(OLD, None, 0.0)


def word(
    region: str,
    digest: str = OLD,
    ended: int = 0,
    failed: int = 0,
    first_byte_s: float = 0.1,
    epoch: int = 1,
    refused: str = "",
) -> AgentObservation:
    begun = ended - failed
    return AgentObservation(
        region,
        epoch,
        digest,
        NEW if refused else "",
        refused,
        RequestCounts(ended, failed, begun, begun * first_byte_s),
    )


def fleet(b: AgentObservation, others: AgentObservation | None = None, moved: float | None = 0.1) -> Evidence:
    elsewhere = others or word("a")
    return Evidence({"a/1": msgspec.structs.replace(elsewhere, region="a"), "b/1": b}, moved)


class Story:
    """A rollout that is observed repeatedly."""

    def __init__(self, rules: RolloutRules = RULES, now: float = 100.0) -> None:
        self.rules = rules
        self.now = now
        self.rollout = begin(STABLE, OfferedPolicy(NEW), ("b",), now)

    def see(self, evidence: Evidence, after_s: float = 0.0) -> Phase:
        self.now += after_s
        self.rollout = observe(self.rollout, self.rules, evidence, self.now)
        return self.rollout.phase

    def to_canary(self, before: AgentObservation | None = None) -> Story:
        assert self.see(fleet(word("b"))) is Phase.SHADOW
        assert self.see(fleet(before or word("b", ended=100)), 10.0) is Phase.CANARY
        return self

    def assigned(self) -> dict[str, str]:
        return {region: self.rollout.digest_for(region) for region in ("a", "b")}


def test_the_evidence_of_each_region_is_shown_until_the_rollout_is_over() -> None:
    story = Story().to_canary()
    seen = fleet(word("b", NEW, ended=120, failed=10), word("a", ended=7))
    a, b = by_region(story.rollout, seen.agents)
    assert (a.region, a.runs_candidate, a.now.requests) == ("a", False, 7)
    assert (b.region, b.runs_candidate, b.now.requests, b.now.failed_share) == ("b", True, 20, 0.5)
    assert (b.before.requests, b.before.failed_share) == (100, 0.0)
    assert (a.before.first_byte_s, b.before.first_byte_s) == (None, pytest.approx(0.1))
    assert by_region(STABLE, seen.agents) == ()


class TestTheGoodWay:
    def test_from_shadow_over_canary_and_watch_to_stable(self) -> None:
        story = Story()
        assert story.see(fleet(word("b"))) is Phase.SHADOW
        assert story.assigned() == {"a": OLD, "b": OLD}
        assert story.see(fleet(word("b", ended=100)), 10.0) is Phase.CANARY
        assert story.assigned() == {"a": OLD, "b": NEW}
        assert story.rollout.moved_share == 0.1
        assert story.see(fleet(word("b", NEW, ended=120)), 10.0) is Phase.CANARY
        assert story.see(fleet(word("b", NEW, ended=160)), 50.0) is Phase.WATCH
        assert story.assigned() == {"a": NEW, "b": NEW}
        assert story.rollout.stable == OLD
        assert story.see(fleet(word("b", NEW, ended=500), word("a", NEW)), 299.0) is Phase.WATCH
        assert story.see(fleet(word("b", NEW, ended=500), word("a", NEW)), 1.0) is Phase.DONE
        assert (story.assigned(), story.rollout.stable) == ({"a": NEW, "b": NEW}, NEW)

    def test_rules_without_conditions_pass_in_one_check(self) -> None:
        rollout = observe(begin(STABLE, OfferedPolicy(NEW), (), 5.0), AT_ONCE, Evidence({}), 5.0)
        assert (rollout.phase, rollout.stable) == (Phase.DONE, NEW)

    def test_the_first_policy_is_in_force_at_once(self) -> None:
        assert first_rollout(OLD, None, 1.0).is_over
        assert first_rollout(OLD, None, 1.0).digest_for("a") == OLD

    def test_a_quiet_canary_proves_nothing(self) -> None:
        story = Story().to_canary()
        assert story.see(fleet(word("b", NEW, ended=149)), 600.0) is Phase.CANARY
        assert story.see(fleet(word("b", NEW, ended=150)), 1.0) is Phase.WATCH

    def test_agents_with_a_new_name_are_judged_from_their_first_report(self) -> None:
        story = Story().to_canary()
        story.see(Evidence({"a/1": word("a"), "b/2": word("b", NEW, ended=70)}), 50.0)
        assert story.see(Evidence({"a/1": word("a"), "b/2": word("b", NEW, ended=119)}), 20.0) is Phase.CANARY
        assert story.see(Evidence({"a/1": word("a"), "b/2": word("b", NEW, ended=120)})) is Phase.WATCH

    def test_a_regression_at_agents_with_new_names_takes_it_back(self) -> None:
        story = Story().to_canary()
        story.see(Evidence({"a/1": word("a"), "b/2": word("b", NEW)}), 5.0)
        failing = Evidence({"a/1": word("a"), "b/2": word("b", NEW, ended=60, failed=30)})
        assert story.see(failing, 5.0) is Phase.ROLLED_BACK

    def test_an_agents_own_words_are_bounded(self) -> None:
        story = Story().to_canary()
        assert story.see(fleet(word("b", refused="x" * 100_000)), 1.0) is Phase.ROLLED_BACK
        assert len(story.rollout.why) < 600


class TestTheShadow:
    def test_it_waits_until_somebody_has_looked(self) -> None:
        assert Story().see(fleet(word("b"), moved=None), 100.0) is Phase.SHADOW

    def test_a_large_move_is_held_for_a_person(self) -> None:
        story = Story()
        story.see(fleet(word("b")))
        assert story.see(fleet(word("b"), moved=0.26), 10.0) is Phase.SHADOW_HELD
        assert story.assigned() == {"a": OLD, "b": OLD}
        assert "26.0%" in story.rollout.why
        assert story.see(fleet(word("b"), moved=0.1), 1000.0) is Phase.SHADOW_HELD
        story.rollout = transition(story.rollout, RolloutEvent.RESUME, story.now, why="looked at it", by="ann")
        assert story.see(fleet(word("b", ended=80))) is Phase.CANARY
        assert story.rollout.counts_before["b"].ended == 80, "what was before is known though a person went on"


class TestTheCanary:
    @pytest.mark.parametrize(
        ("evidence", "after_s", "phase", "why"),
        [
            (fleet(word("b", OLD, 100, refused="no such region")), 0.5, Phase.ROLLED_BACK, "b/1 rejects it: no such"),
            (fleet(word("b", OLD, 100)), 14.9, Phase.CANARY, ""),
            (fleet(word("b", OLD, 100)), 15.0, Phase.ROLLED_BACK, "b/1 did not accept it within 15 s"),
            (Evidence({"a/1": word("a")}, 0.1), 14.9, Phase.CANARY, ""),
            (Evidence({"a/1": word("a")}, 0.1), 15.0, Phase.CANARY_HELD, "no agent of b reports"),
            (fleet(word("b", NEW, 200, 20)), 60.0, Phase.ROLLED_BACK, "20.0% of requests fail, 0.0% before"),
            (fleet(word("b", NEW, 200, 3)), 60.0, Phase.CANARY, ""),
            (fleet(word("b", NEW, 200, 2)), 60.0, Phase.WATCH, ""),
            (fleet(word("b", NEW, 149, 49)), 5.0, Phase.ROLLED_BACK, "100.0% of requests fail, 0.0% before"),
            (fleet(word("b", NEW, 103, 3)), 5.0, Phase.CANARY, ""),
            (fleet(word("b", NEW, 149, first_byte_s=9.0)), 5.0, Phase.CANARY, ""),
            (
                fleet(word("b", NEW, 200, first_byte_s=0.2)),
                5.0,
                Phase.ROLLED_BACK,
                "mean time to first byte is 0.300 s",
            ),
        ],
    )
    def test_it_is_judged_by_the_agents_reports(
        self, evidence: Evidence, after_s: float, phase: Phase, why: str
    ) -> None:
        story = Story().to_canary()
        assert story.see(evidence, after_s) is phase
        assert why in story.rollout.why
        if phase is Phase.ROLLED_BACK:
            assert story.assigned() == {"a": OLD, "b": OLD}
            assert story.rollout.dismissed == (NEW,)

    def test_a_region_that_failed_as_much_before_is_no_regression(self) -> None:
        story = Story()
        story.see(fleet(word("b")))
        story.see(fleet(word("b", ended=100, failed=10)), 10.0)
        assert story.see(fleet(word("b", NEW, 200, 20)), 60.0) is Phase.WATCH

    def test_few_requests_are_not_judged_without_a_baseline(self) -> None:
        story = Story(msgspec.structs.replace(RULES, shadow_s=0.0))
        story.see(fleet(word("b")))
        assert story.see(fleet(word("b", NEW, 49, 49), word("a", OLD, 49)), 5.0) is Phase.CANARY
        assert story.see(fleet(word("b", NEW, 49, 49), word("a", OLD, 50)), 5.0) is Phase.ROLLED_BACK

    def test_without_a_before_the_others_are_the_measure(self) -> None:
        story = Story(msgspec.structs.replace(RULES, shadow_s=0.0))
        assert story.see(fleet(word("b"))) is Phase.CANARY
        sick = fleet(word("b", NEW, 100, 10), word("a", OLD, 100, 9))
        assert story.see(sick, 60.0) is Phase.WATCH
        story = Story(msgspec.structs.replace(RULES, shadow_s=0.0))
        story.see(fleet(word("b")))
        assert story.see(fleet(word("b", NEW, 100, 10), word("a", OLD, 100, 1)), 60.0) is Phase.CANARY
        assert story.see(fleet(word("b", NEW, 300, 30), word("a", OLD, 300, 3)), 60.0) is Phase.ROLLED_BACK
        assert "1.0% elsewhere" in story.rollout.why

    def test_a_leader_without_any_report_keeps_what_was_before(self) -> None:
        story = Story()
        story.see(fleet(word("b")))
        story.rollout = transition(story.rollout, RolloutEvent.PROMOTE, story.now, why="it is urgent", by="ann")
        promoted = story.rollout
        assert story.see(Evidence({})) is Phase.WATCH
        assert story.rollout == promoted
        assert story.see(fleet(word("b", NEW, ended=100, failed=10))) is Phase.WATCH
        before = story.rollout.counts_before["b"]
        assert (before.ended, before.failed) == (100, 10)

    def test_an_agent_that_restarts_counts_from_nothing(self) -> None:
        story = Story().to_canary()
        assert story.see(fleet(word("b", NEW, ended=60, failed=30, epoch=2)), 60.0) is Phase.ROLLED_BACK

    def test_an_agent_that_applied_it_has_not_rejected_it(self) -> None:
        story = Story().to_canary()
        stale = fleet(word("b", NEW, 100, refused="plan 3/4 does not supersede plan 3/5"))
        assert story.see(stale, 5.0) is Phase.CANARY

    def test_held_it_is_still_rolled_back_by_itself(self) -> None:
        story = Story().to_canary()
        story.rollout = transition(story.rollout, RolloutEvent.HALT, story.now, why="wait", by="ann")
        assert story.see(fleet(word("b", NEW, ended=500)), 1000.0) is Phase.CANARY_HELD
        assert story.assigned() == {"a": OLD, "b": NEW}
        assert story.see(fleet(word("b", NEW, ended=600, failed=100)), 1.0) is Phase.ROLLED_BACK


class TestServiceObjectives:
    """No request fails here and the mean is unchanged: only late responses with an objective count."""

    SLOW = RolloutRules(shadow_s=10.0, canary_regions=("b",), canary_s=60.0, min_requests=50, watch_s=300.0)
    SOON = ("m", 1.0, 0.99)

    def seen(
        self, b: tuple[int, int], a: tuple[int, int] = (0, 0), *, to: str = NEW, everywhere: str = OLD
    ) -> Evidence:
        """The responses and late responses that the canary and the other region have counted so far."""

        def reported(region: str, digest: str, answers: int, late: int) -> AgentObservation:
            kept = (ObjectiveCounts(*self.SOON, answers, answers - late),)
            return msgspec.structs.replace(word(region, digest, ended=answers), objectives=kept)

        return fleet(reported("b", to, *b), reported("a", everywhere, *a))

    def story(self, before: tuple[int, int], elsewhere: tuple[int, int] = (0, 0)) -> Story:
        story = Story(self.SLOW)
        assert story.see(self.seen((0, 0), to=OLD)) is Phase.SHADOW
        assert story.see(self.seen(before, elsewhere, to=OLD), 10.0) is Phase.CANARY
        return story

    def test_one_that_was_kept_before_and_is_broken_since_brings_it_back(self) -> None:
        story = self.story((1000, 5))
        assert story.see(self.seen((1049, 54)), 5.0) is Phase.CANARY, "too few to say"
        assert story.see(self.seen((1200, 25)), 5.0) is Phase.ROLLED_BACK
        reported = "in b, 90.00% of answers of m begin within 1 s; the objective is 99.00%, and 99.50% did before"
        assert story.rollout.why == reported
        assert story.rollout.dismissed == (NEW,)

    def test_so_does_one_that_others_keep_without_a_baseline(self) -> None:
        story = self.story((10, 0))
        assert story.see(self.seen((210, 20), (1000, 3)), 5.0) is Phase.ROLLED_BACK
        assert "99.70% did elsewhere" in story.rollout.why

    @pytest.mark.parametrize(
        ("before", "now", "elsewhere", "why"),
        [
            ((1000, 100), (1200, 130), (1000, 0), "it was broken already, whatever others do"),
            ((10, 0), (210, 20), (1000, 50), "it is broken elsewhere too"),
            ((10, 0), (210, 20), (10, 0), "nobody knows what is usual"),
            ((1000, 5), (1200, 7), (1000, 5), "it is kept"),
            ((1000, 5), (1200, 10), (1000, 5), "five of two hundred may be chance"),
            ((1000, 10), (101_000, 1210), (0, 0), "it was kept just so"),
        ],
    )
    def test_nothing_else_does(
        self, before: tuple[int, int], now: tuple[int, int], elsewhere: tuple[int, int], why: str
    ) -> None:
        story = self.story(before)
        assert story.see(self.seen(now, elsewhere), 60.0) is Phase.WATCH, why

    def test_an_objective_that_the_candidate_changes_is_not_judged_by_what_was(self) -> None:
        story = self.story((1000, 5))
        stricter = ObjectiveCounts("m", 0.1, 0.99, 500, 0)
        changed = msgspec.structs.replace(word("b", NEW, ended=1500), objectives=(stricter,))
        assert story.see(fleet(changed), 60.0) is Phase.WATCH

    def test_an_agent_that_restarts_counts_from_nothing(self) -> None:
        story = self.story((1000, 5))
        again = msgspec.structs.replace(
            word("b", NEW, ended=200, epoch=2), objectives=(ObjectiveCounts(*self.SOON, 200, 150),)
        )
        assert story.see(fleet(again), 5.0) is Phase.ROLLED_BACK

    def test_a_region_that_breaks_it_while_all_are_watched_brings_all_back(self) -> None:
        story = self.story((1000, 5), (9000, 10))
        assert story.see(self.seen((1100, 6), (9000, 10)), 60.0) is Phase.WATCH
        everywhere = self.seen((1200, 6), (9100, 30), everywhere=NEW)
        assert story.see(everywhere, 5.0) is Phase.ROLLED_BACK, "though the fleet as a whole keeps it"
        assert story.rollout.why.startswith("in a, 80.00% of answers of m")

    def test_marks_fit_into_the_store_however_many_objectives_there_are(self) -> None:
        kept = tuple(
            ObjectiveCounts(f"some/model-with-a-long-name-{at}", 1.125, 0.9995, 10**9, 10**9) for at in range(100)
        )
        observation = msgspec.structs.replace(
            word("b", NEW, 10**9, first_byte_s=0.123456789, epoch=10**9), objectives=kept
        )
        many = Evidence({f"some-region-{at}/agent-{at}": observation for at in range(MAX_MARKS)}, 0.1)
        rollout = observe(begin(STABLE, OfferedPolicy(NEW), ("b",), 0.0), RULES, many, 1.0)
        assert rollout.marks
        assert len(rollout.marks) == MAX_MARKS
        assert encode(rollout)


class TestTheWatch:
    def watched(self) -> Story:
        story = Story().to_canary()
        assert story.see(fleet(word("b", NEW, ended=200)), 60.0) is Phase.WATCH
        return story

    def test_a_refusal_anywhere_brings_all_back(self) -> None:
        story = self.watched()
        assert story.see(fleet(word("b", NEW, 200), word("a", OLD, refused="no")), 1.0) is Phase.ROLLED_BACK
        assert story.assigned() == {"a": OLD, "b": OLD}

    def test_so_does_a_regression_of_the_whole(self) -> None:
        story = self.watched()
        assert story.see(fleet(word("b", NEW, 250), word("a", NEW, 50, 20)), 1.0) is Phase.ROLLED_BACK


class TestTheSource:
    def at(self, phase: Phase) -> Rollout:
        return msgspec.structs.replace(begin(STABLE, OfferedPolicy(NEW), ("b",), 0.0), phase=phase)

    @pytest.mark.parametrize("phase", [Phase.SHADOW, Phase.SHADOW_HELD, Phase.CANARY, Phase.CANARY_HELD])
    def test_what_comes_next_supersedes_what_is_under_way(self, phase: Phase) -> None:
        after, may_begin = on_source_policy(self.at(phase), NEXT, 1.0)
        assert (after.phase, may_begin) == (Phase.SUPERSEDED, True)
        assert after.digest_for("b") == OLD

    def test_but_a_policy_in_force_everywhere_is_watched_to_the_end_first(self) -> None:
        assert on_source_policy(self.at(Phase.WATCH), NEXT, 1.0) == (self.at(Phase.WATCH), False)

    @pytest.mark.parametrize(("phase", "then"), [(Phase.CANARY, Phase.SUPERSEDED), (Phase.WATCH, Phase.ROLLED_BACK)])
    def test_a_source_that_goes_back_takes_the_candidate_back(self, phase: Phase, then: Phase) -> None:
        after, may_begin = on_source_policy(self.at(phase), OLD, 1.0)
        assert (after.phase, may_begin) == (then, False)
        assert on_source_policy(after, NEW, 2.0) == (after, True), "and may come with it again"

    def test_what_was_at_fault_does_not_begin_by_itself_again(self) -> None:
        bad = transition(self.at(Phase.CANARY), RolloutEvent.REGRESSED, 1.0, why="bad")
        assert on_source_policy(bad, NEW, 2.0) == (bad, False)
        assert on_source_policy(bad, NEXT, 2.0) == (bad, True)
        again = begin(bad, OfferedPolicy(NEW, by="ann"), (), 3.0)
        assert again.dismissed == (), "a person may begin it again"

    def test_nothing_new_begins_nothing(self) -> None:
        assert on_source_policy(STABLE, OLD, 1.0) == (STABLE, False)

    def test_a_person_restores_a_policy_and_the_source_does_not_undo_it(self) -> None:
        back = restore(self.at(Phase.WATCH), OfferedPolicy(OLD, None, "ann", "back", NEXT), 5.0)
        assert (back.phase, back.stable, back.number) == (Phase.DONE, OLD, 3)
        assert back.dismissed == (NEW,)
        for digest in (OLD, NEW, NEXT):
            assert on_source_policy(back, digest, 6.0) == (back, False)
        newer = begin(back, OfferedPolicy("newer"), (), 7.0)
        assert on_source_policy(msgspec.structs.replace(newer, phase=Phase.ROLLED_BACK), NEXT, 8.0)[1], (
            "it has had a new one"
        )

    def test_a_choice_stands_though_the_source_has_what_was_stable(self) -> None:
        chosen = begin(STABLE, OfferedPolicy(NEW, by="ann", instead_of=OLD), (), 5.0)
        for phase in (Phase.SHADOW, Phase.CANARY, Phase.WATCH):
            under_way = msgspec.structs.replace(chosen, phase=phase)
            assert on_source_policy(under_way, OLD, 6.0) == (under_way, False)


def test_the_table_leaves_no_phase_that_is_not_over_without_a_way_back() -> None:
    for phase in Phase:
        ways = {event for (at, event) in TRANSITIONS if at is phase}
        assert (not ways) == (phase in FINAL_PHASES)
        assert phase in FINAL_PHASES or RolloutEvent.ROLL_BACK in ways


def test_a_state_goes_through_the_store_unchanged() -> None:
    rollout = Story().to_canary().rollout
    assert msgspec.json.decode(msgspec.json.encode(rollout), type=Rollout) == rollout


def test_a_plans_difference_is_the_demand_that_is_served_elsewhere() -> None:
    def plans(**shares: float) -> dict[str, RegionPlan]:
        arcs = tuple(Arc(server, share, ArcReason.HOME) for server, share in shares.items())
        return {"a": RegionPlan("a", 1, 1, "d", 0.0, (ClassPlan("m", "c", arcs, ()),))}

    demands = [Demand("a", "m", "c", frozenset({"a", "b"}), 30.0), Demand("b", "m", "c", frozenset({"b"}), 10.0)]
    reported = shadow(7, plans(a=1.0), plans(a=0.6, b=0.4), demands)
    assert reported.moved_share == pytest.approx(0.3)
    assert [(change.server, change.after) for change in reported.changes] == [("a", 0.6), ("b", 0.4)]
    assert shadow(7, plans(a=1.0), plans(a=1.0), demands).changes == ()
    assert shadow(7, {}, {}, []).moved_share == 0.0


def test_the_objectives_of_a_restarted_agent_count_in_full() -> None:
    def counts(answers: int) -> ObjectiveCounts:
        return ObjectiveCounts("m", 1.0, 0.99, answers, answers)

    marks = {"a/1": Mark(1, RequestCounts(), (counts(100),))}
    for epoch, answers in ((1, 20), (2, 120)):
        agent = msgspec.structs.replace(word("a", epoch=epoch), objectives=(counts(120),))
        assert objectives_since(marks, {"a/1": agent, "a/2": agent}) == [counts(answers)]


COMMIT, EARLIER = (Provenance("repo", "main", commit * 20, "ann", 0.0, "subject") for commit in ("ab", "cd"))


def test_a_settled_policy_and_its_commit_are_the_stable_ones() -> None:
    before = msgspec.structs.replace(first_rollout(OLD, EARLIER, 0.0), dismissed=(NEXT, NEW))
    begun = begin(before, OfferedPolicy(NEW, COMMIT), (), 1.0)
    assert (begun.stable_provenance, begun.provenance_in_force, begun.dismissed) == (EARLIER, EARLIER, (NEXT,))
    marked = msgspec.structs.replace(begun, marks={"a/1": Mark(1, RequestCounts())})
    watched = transition(marked, RolloutEvent.PROMOTE, 2.0, why="urgent", by="ann")
    assert (watched.provenance_in_force, watched.marks, watched.shadow_marks) == (COMMIT, None, marked.marks)
    marked = msgspec.structs.replace(watched, marks=marked.marks)
    done = transition(marked, RolloutEvent.SETTLED, 3.0, why="good")
    assert (done.stable, done.stable_provenance, done.marks, done.shadow_marks) == (NEW, COMMIT, None, None)
    assert str(COMMIT) == "abababababab by ann: subject"

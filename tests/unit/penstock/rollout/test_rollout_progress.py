"""What a rollout waits for: the conditions that operators see are those that end the phase."""

from __future__ import annotations

import msgspec
import pytest

from penstock.rollout.canary_analysis import Evidence, phase_facts
from penstock.rollout.policy_rollout import (
    IN_CANARY,
    OfferedPolicy,
    Phase,
    Rollout,
    RolloutEvent,
    begin,
    first_rollout,
    transition,
)
from penstock.rollout.rollout_progress import RolloutOutlook, conditions, outlook
from tests.unit.penstock.rollout.test_rollout import NEW, NEXT, OLD, RULES, STABLE, Story, fleet, word


def seen(story: Story, evidence: Evidence, offered: str | None = NEW) -> RolloutOutlook:
    found = conditions(story.rollout, story.rules, phase_facts(story.rollout, story.rules, evidence), story.now)
    return outlook(found, story.rollout, offered)


def unmet(found: RolloutOutlook) -> list[str]:
    return [condition.text for condition in found.conditions if not condition.is_met]


def test_a_shadow_waits_for_time_and_a_comparison() -> None:
    story = Story()
    assert unmet(seen(story, fleet(word("b"), moved=None))) == [
        "0 of 10 s in shadow",
        "the plans of both policies are compared",
    ]
    story.now += 4.0
    compared = seen(story, fleet(word("b")))
    assert (unmet(compared), compared.ends_in_s) == (["4 of 10 s in shadow"], 6.0)


def test_a_canary_waits_for_agents_time_and_requests() -> None:
    story = Story().to_canary()
    assert unmet(seen(story, fleet(word("b", OLD, ended=100)))) == [
        "b/1 accepts it, within 15 s",
        "0 of 60 s of the canary",
        "0 of 50 requests ended in b",
    ]
    story.see(fleet(word("b", NEW, ended=130)), 20.0)
    found = seen(story, fleet(word("b", NEW, ended=130)))
    assert unmet(found) == ["20 of 60 s of the canary", "30 of 50 requests ended in b"]
    assert found.ends_in_s is None, "requests do not come by time alone"
    assert seen(story, fleet(word("b", NEW, ended=150))).ends_in_s == 40.0


def test_a_silent_canary_is_named() -> None:
    story = Story().to_canary()
    silent = Evidence({"a/1": word("a")}, 0.1)
    assert unmet(seen(story, silent))[0] == "any agent of b accepts it, within 15 s"


def test_a_held_rollout_waits_for_an_operator() -> None:
    story = Story()
    story.rollout = transition(story.rollout, RolloutEvent.HALT, story.now, why="wait", by="ann")
    found = seen(story, fleet(word("b")))
    assert (unmet(found), found.ends_in_s) == (["an operator resumes, promotes or rolls back"], None)


def test_the_conditions_are_those_that_end_each_phase() -> None:
    story = Story()
    counts = 0
    phases = []
    while not story.rollout.is_over:
        counts += 3
        in_force = NEW if story.rollout.phase in (*IN_CANARY, Phase.WATCH) else OLD
        evidence = fleet(word("b", in_force, ended=counts))
        before = story.rollout.phase
        found = conditions(
            story.rollout, story.rules, phase_facts(story.rollout, story.rules, evidence), story.now + 1.0
        )
        story.see(evidence, 1.0)
        assert (story.rollout.phase is not before) is all(condition.is_met for condition in found), found
        phases.append(before)
    assert set(phases) == {Phase.SHADOW, Phase.CANARY, Phase.WATCH}


WATCH = transition(begin(STABLE, OfferedPolicy(NEW), (), 0.0), RolloutEvent.PROMOTE, 0.0, why="urgent")
BACK = transition(WATCH, RolloutEvent.ROLL_BACK, 1.0, why="no", by="ann")


@pytest.mark.parametrize(
    ("rollout", "offered", "place", "why"),
    [
        (WATCH, NEXT, 1, "rollout 2 of new is watched in all regions, which completes first"),
        (BACK, NEW, None, "it was rolled back or regressed"),
        (msgspec.structs.replace(BACK, ignored=NEXT), NEXT, None, "an operator put another policy in force"),
    ],
)
def test_a_policy_that_is_not_rolled_out_is_named_with_its_place(
    rollout: Rollout, offered: str, place: int | None, why: str
) -> None:
    waiting = outlook((), rollout, offered).waiting
    assert waiting is not None
    assert (waiting.digest, waiting.place) == (offered, place)
    assert waiting.why.startswith(why)


@pytest.mark.parametrize(
    ("rollout", "offered"),
    [
        (STABLE, OLD),
        (STABLE, NEW),
        (WATCH, NEW),
        (BACK, OLD),
        (BACK, NEXT),
        (WATCH, None),
        (begin(STABLE, OfferedPolicy(NEW), ("b",), 0.0), NEXT),
        (first_rollout(NEW, None, 0.0), NEW),
    ],
)
def test_a_policy_that_runs_or_begins_now_does_not_wait(rollout: Rollout, offered: str | None) -> None:
    assert outlook((), rollout, offered).waiting is None


def test_a_policy_that_would_lose_documents_waits_for_a_decision() -> None:
    waiting = outlook((), STABLE, NEW, ("would remove the tenant acme",)).waiting
    assert waiting is not None
    assert (waiting.place, waiting.why) == (None, "would remove the tenant acme")


def test_the_waiting_policy_begins_when_the_watch_ends() -> None:
    rollout = msgspec.structs.replace(WATCH, since=0.0)
    found = conditions(rollout, RULES, phase_facts(rollout, RULES, fleet(word("b", NEW))), 100.0)
    waiting = outlook(found, rollout, NEXT).waiting
    assert waiting is not None
    assert waiting.begins_in_s == 200.0


@pytest.mark.parametrize(
    ("rollout", "permitted"),
    [
        (begin(STABLE, OfferedPolicy(NEW), ("b",), 0.0), {"halt", "promote", "roll_back"}),
        (WATCH, {"roll_back"}),
        (STABLE, set()),
        (BACK, set()),
    ],
)
def test_the_actions_of_a_phase_are_those_of_the_table(rollout: Rollout, permitted: set[str]) -> None:
    assert {event.value for event in rollout.permitted} == permitted

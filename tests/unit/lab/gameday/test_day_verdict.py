"""The verdict on a game day: a good day passes, and each missed expectation fails separately."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from lab.demo.findings import Measured
from lab.demo.records import Answer, Attempt, Outcome, Served, Sighting
from lab.gameday.day_verdict import Day, judge
from lab.gameday.fault import TargetKind
from lab.gameday.fault_catalogue import FAULTS
from lab.gameday.gameday_run import DayResult, write_report
from lab.planet.fleet_watch import Look

REGIONS = ("eu-de", "eu-es", "us-east")
AGENTS = tuple(f"{region}/a" for region in REGIONS)
FROM_S, TO_S, ENDED_S = 5.0, 15.0, 24.0
DETECTED_S = 0.5


def served(number: int) -> Served:
    """Four requests per second, served in turn by the small engines of the region."""
    due_s, region = number * 0.25, REGIONS[number % 3]
    attempts = (Attempt(due_s, region, Answer.SERVED),)
    times = {"ttft_s": 0.1, "e2e_s": 0.5, "tokens": 8}
    required = REGIONS if number % 2 else REGIONS[:2] if region in REGIONS[:2] else (region,)
    names = {"site": "s", "tenant": "t", "model": "m", "required": required, "home": region, "server": region}
    return Served(
        id=f"r{number}",
        due_s=due_s,
        attempts=attempts,
        outcome=Outcome.OK,
        status=200,
        detail="",
        endpoint="",
        **names,
        **times,
    )


def sighting(request: Served) -> Sighting:
    slow = request.due_s < FROM_S or request.due_s >= TO_S
    endpoint = f"{request.server}-small-{'a100' if slow else 'l40s'}"
    if slow and request.due_s >= TO_S and request.server == "eu-es":
        endpoint = "eu-es-large-h100"
    return Sighting(request.id, request.due_s, request.server, endpoint, request.required)


def look(name: str, at_s: float) -> Look:
    """The state of the fleet at one time of a good day."""
    fault = FAULTS[name]
    hurt = FROM_S + DETECTED_S <= at_s < TO_S + 1.0
    apart = {fault.region: fault.other, fault.other: fault.region} if fault.other and hurt else {}
    down = hurt and fault.kind in (TargetKind.REGION, TargetKind.ENDPOINTS)
    gone = down and fault.kind is TargetKind.REGION
    without = {"eu-es/a": tuple(fault.endpoints)} if hurt else {}
    agents = [agent for agent in AGENTS if not (gone and agent.startswith(fault.region))]
    others = [agent for agent in agents if not agent.startswith(fault.region or "none")]
    halved = fault.kind is TargetKind.AGENTS and hurt
    leader = "south" if fault.kind is TargetKind.LEADER and at_s >= FROM_S + DETECTED_S else "north"
    return Look(
        at_s=at_s,
        failed_peers={
            agent: (fault.region,) if gone and agent in others else _cut_off(apart, agent) for agent in agents
        },
        unready={agent: ("e1", "e2") if down and agent not in others else without.get(agent, ()) for agent in agents},
        endpoints=dict.fromkeys(agents, 2),
        held=3 if at_s < ENDED_S + 0.5 else 0,
        silent=tuple(agent for agent in AGENTS if agent not in agents),
        leaders=(leader,),
        refusing=("north", "south") if fault.kind is TargetKind.POLICY and hurt else (),
        policies=("d1",),
        reachable={agent: {fault.region: 1 if halved else 2} for agent in others},
        plans=dict.fromkeys(agents, (1, int(4 * at_s - 4))),
        newest_plan=(1, int(4 * at_s)),
        unconfirmed=tuple(agents) if fault.kind is TargetKind.CONFIG and hurt else (),
    )


def _cut_off(apart: Mapping[str, str], agent: str) -> tuple[str, ...]:
    region = agent.partition("/")[0]
    return (apart[region],) if region in apart else ()


def day(name: str) -> Day:
    requests = [served(number) for number in range(80)]
    return Day(
        from_s=FROM_S,
        to_s=TO_S,
        ended_s=ENDED_S,
        served=tuple(
            _elsewhere(request) if FROM_S <= request.due_s < TO_S and request.server == _gone(name) else request
            for request in requests
        ),
        sightings=tuple(sighting(request) for request in requests),
        started=frozenset(request.id for request in requests),
        looks=tuple(look(name, step / 10) for step in range(350)),
        died=(),
    )


def _elsewhere(request: Served) -> Served:
    attempts = (Attempt(request.due_s, "us-east", Answer.SERVED),)
    return msgspec.structs.replace(request, server="us-east", attempts=attempts)


def _gone(name: str) -> str:
    return FAULTS[name].region if FAULTS[name].clients_within_s is not None else ""


def missed(name: str, facts: Day) -> set[str]:
    return {finding.name for finding in judge(FAULTS[name], facts) if not finding.passed}


def changed(facts: Day, number: int, **fields: object) -> Day:
    requests: list[Served] = list(facts.served)
    requests[number] = msgspec.structs.replace(requests[number], **fields)
    return msgspec.structs.replace(facts, served=tuple(requests))


def looked(facts: Day, looks: Sequence[Look]) -> Day:
    return msgspec.structs.replace(facts, looks=tuple(looks))


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_good_day_passes(name: str, tmp_path: Path) -> None:
    assert missed(name, day(name)) == set()
    write_report([DayResult(name, "w", judge(FAULTS[name], day(name)), 80)], tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_bytes())["passed"] is True


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_day_on_which_nothing_happened_passes_no_expectation(name: str) -> None:
    empty = Day(FROM_S, TO_S, ENDED_S, (), (), frozenset(), (), ())
    assert missed(name, empty) == {finding.name for finding in judge(FAULTS[name], day(name))}
    assert all(finding.observed == 0 for finding in judge(FAULTS[name], empty))


def test_a_fault_that_had_no_effect_is_missed() -> None:
    facts = msgspec.structs.replace(day("client-flood"), measured=Measured(0, "no connection"))
    assert missed("client-flood", facts) == {"in effect"}


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.REFUSED])
def test_an_unanswered_request_is_lost(outcome: Outcome) -> None:
    assert missed("agent-frozen", changed(day("agent-frozen"), 40, outcome=outcome)) == {"no request lost"}


def test_only_what_a_killed_region_was_running_may_break_off() -> None:
    facts = day("region-killed")
    entered = next(
        n for n, request in enumerate(facts.served) if request.server == "eu-de" and 4.0 < request.due_s < FROM_S
    )
    broken = changed(facts, entered, outcome=Outcome.FAILED)
    assert missed("region-killed", broken) == set()
    unstarted = msgspec.structs.replace(broken, started=broken.started - {facts.served[entered].id})
    assert missed("region-killed", unstarted) == {"no request lost"}
    elsewhere = next(n for n, request in enumerate(facts.served) if request.server == "eu-es")
    assert missed("region-killed", changed(facts, elsewhere, outcome=Outcome.FAILED)) == {"no request lost"}


def test_a_request_outside_its_residency_is_missed() -> None:
    facts = day("etcd-frozen")
    stray = Sighting("r1", 3.0, "us-east", "gpu", ("eu-de",))
    assert missed("etcd-frozen", msgspec.structs.replace(facts, sightings=(*facts.sightings, stray))) == {"residency"}


@pytest.mark.parametrize(
    "name",
    [
        "region-killed",
        "agent-frozen",
        "engines-frozen",
        "leader-frozen",
        "regions-partitioned",
        "region-isolated",
        "policy-poisoned",
        "model-gone",
        "agents-halved",
        "etcd-compacted",
        "etcd-quorum-lost",
        "agent-clock-ahead",
        "agent-certificate-expired",
    ],
)
def test_a_fault_that_nothing_detects_is_missed(name: str) -> None:
    facts = day(name)
    unaware = [
        look("etcd-frozen", observed.at_s) if FROM_S <= observed.at_s <= TO_S else observed for observed in facts.looks
    ]
    assert missed(name, looked(facts, unaware)) == {"detected"}


@pytest.mark.parametrize(
    ("name", "agent", "region"),
    [
        pytest.param("regions-partitioned", "us-east/a", "eu-de", id="a third region sees the partition"),
        pytest.param("agents-halved", "eu-de/a", "us-east", id="one agent of two is not its region"),
    ],
)
def test_a_region_that_is_wrongly_seen_as_failed_is_missed(name: str, agent: str, region: str) -> None:
    facts = day(name)
    looks = [
        msgspec.structs.replace(observed, failed_peers={**observed.failed_peers, agent: (region,)})
        if FROM_S <= observed.at_s <= TO_S
        else observed
        for observed in facts.looks
    ]
    assert missed(name, looked(facts, looks)) == {"detected"}


@pytest.mark.parametrize(
    ("name", "field", "from_s", "checks"),
    [
        ("policy-poisoned", {"policies": ("d1", "d2")}, 0.0, {"policy kept"}),
        ("policy-poisoned", {"refusing": ("north",)}, TO_S, {"recovered"}),
        ("agents-halved", {"reachable": {"eu-de/a": {"us-east": 1}}}, TO_S, {"recovered"}),
        ("etcd-compacted", {"plans": {"eu-de/a": (1, 5)}}, TO_S, {"recovered"}),
        ("etcd-compacted", {"plans": {"eu-de/a": (0, 999)}}, TO_S, {"recovered"}),
        ("etcd-compacted", {"unconfirmed": ("eu-de/a",)}, TO_S, {"recovered"}),
        ("etcd-frozen", {"leaders": ()}, TO_S, {"recovered"}),
        ("etcd-frozen", {"leaders": ("north", "south")}, TO_S, {"recovered"}),
        ("agent-frozen", {"silent": ("eu-es/a",)}, 0.0, {"recovered", "counters at zero"}),
        ("redis-frozen", {"held": 1}, 0.0, {"counters at zero"}),
    ],
)
def test_a_state_that_does_not_end_is_missed(
    name: str, field: dict[str, object], from_s: float, checks: set[str]
) -> None:
    facts = day(name)
    looks = [
        msgspec.structs.replace(observed, **field) if observed.at_s >= from_s else observed for observed in facts.looks
    ]
    assert missed(name, looked(facts, looks)) == checks


def test_a_model_without_engines_may_refuse_its_own_requests_only() -> None:
    facts, model = day("model-gone"), FAULTS["model-gone"].model
    assert missed("model-gone", changed(facts, 40, outcome=Outcome.REFUSED, model=model)) == set()
    assert missed("model-gone", changed(facts, 40, outcome=Outcome.REFUSED)) == {"no request lost"}
    assert missed("model-gone", changed(facts, 40, outcome=Outcome.FAILED, model=model)) == {"no request lost"}
    assert missed("model-gone", changed(facts, 5, outcome=Outcome.REFUSED, model=model)) == {"no request lost"}


@pytest.mark.parametrize("fault", ["redis-frozen", "model-gone"])
def test_a_herd_after_a_fault_is_missed(fault: str) -> None:
    facts = day(fault)
    herd = [Sighting(f"r{n}", TO_S + 2.0, "eu-es", "eu-es-large-h100", REGIONS) for n in range(10)]
    rest = tuple(seen for seen in facts.sightings if seen.endpoint != "eu-es-large-h100")
    assert missed(fault, msgspec.structs.replace(facts, sightings=(*rest, *herd))) == {"no herd"}
    assert missed(fault, msgspec.structs.replace(facts, sightings=(*rest, *herd[:9]))) == set()


def test_what_a_fault_measured_is_reported() -> None:
    facts = msgspec.structs.replace(day("etcd-slow"), measured=Measured(9, "9 commits took 400 ms"))
    assert judge(FAULTS["etcd-slow"], facts)[-1].says == "9 commits took 400 ms"


def test_a_slow_engine_that_keeps_its_share_is_missed() -> None:
    facts = day("engine-slow")
    all_fast = [msgspec.structs.replace(seen, endpoint=f"{seen.region}-small-a100") for seen in facts.sightings]
    assert missed("engine-slow", msgspec.structs.replace(facts, sightings=tuple(all_fast))) == {"avoided"}


def test_clients_that_keep_going_to_a_dead_region_are_missed() -> None:
    facts = day("region-killed")
    late = Attempt(FROM_S + 1.5, "eu-de", Answer.BROKEN)
    attempts = (late, *facts.served[30].attempts)
    assert missed("region-killed", changed(facts, 30, attempts=attempts)) == {"clients rerouted"}


def test_a_crashed_process_is_missed() -> None:
    facts = msgspec.structs.replace(day("etcd-frozen"), died=("agent eu-de/a (code -6)",))
    assert missed("etcd-frozen", facts) == {"no process died"}

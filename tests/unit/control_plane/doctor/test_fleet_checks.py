"""What `penstock doctor` finds in the status of a fleet."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from adapters.store.members import Member
from control_plane.doctor.findings import Severity
from control_plane.doctor.fleet_checks import fleet_findings
from control_plane.rollout.rollout_resource import RolloutSummary
from control_plane.status.status import (
    AgentStatus,
    LeaderStatus,
    PlanStatus,
    PolicyStatus,
    PoolStatus,
    RegionStatus,
    Status,
    StoreStatus,
    UnreadyEndpoint,
)
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.fleet.report import PeerReport
from penstock.health.region_health import RegionState
from penstock.rollout.policy_rollout import Phase

NOW = 1_000_000.0
AGENT = AgentStatus("eu-de", "a", True, "https://a:1", None, 0.5, "d" * 64, 1, 7, certificate_expires_at=2 * NOW * 10)
REGION = RegionStatus(
    "eu-de", "", "DE", 50.0, 8.0, RegionState.HEALTHY, 60.0, 0.5, (PoolStatus("m", 2, 2, 8, 0, 1.0),), ()
)
HEALTHY = Status(
    at=NOW,
    name="cp-1",
    url="http://cp-1",
    leading=True,
    role="leader",
    role_age_s=60.0,
    why="",
    epoch=1,
    leader=LeaderStatus("cp-1", "http://cp-1", 1),
    store=StoreStatus(True),
    policy=PolicyStatus("d" * 64, None, ()),
    plan=PlanStatus(7, 1, "d" * 64, 0.5),
    regions=(REGION,),
    agents=(AGENT,),
    control_planes=(Member("cp-1", "http://cp-1"), Member("cp-2", "http://cp-2")),
    arcs=(),
    release="1.0",
)
PEER = PeerReport("us-east", RegionState.FAILED, 0.0)


def test_nothing_is_wrong_with_a_healthy_fleet() -> None:
    found = fleet_findings(HEALTHY, NOW)
    assert {finding.severity for finding in found} == {Severity.OK}
    assert [finding.subject for finding in found] == ["control planes", "policy", "region eu-de", "agent eu-de/a"]
    assert found[0].found.startswith("cp-1 at http://cp-1 leads"), "a context may select another fleet than the host's"


@pytest.mark.parametrize(
    ("changes", "severity", "subject", "text"),
    [
        ({"leader": None}, "problem", "control planes", "none leads"),
        ({"store": StoreStatus(False)}, "problem", "etcd", "cp-1 does not reach it"),
        ({"control_planes": HEALTHY.control_planes[:1]}, "warning", "control planes", "there is one"),
        ({"at": NOW - 60.0}, "problem", "clocks", "differ by 60 s"),
        ({"policy": PolicyStatus(None, None, ())}, "problem", "policy", "none is in force"),
        ({"policy": PolicyStatus("d", None, ("x.yaml:1: bad",))}, "problem", "policy source", "x.yaml:1: bad"),
        ({"plan": None}, "problem", "plan", "there is none"),
        ({"regions": (replace(REGION, state=RegionState.FAILED),)}, "problem", "region eu-de", "is failed"),
        (
            {"regions": (replace(REGION, pools=(PoolStatus("m", 2, 0, 8, 0, 1.0),)),)},
            "problem",
            "region eu-de",
            "no endpoint of m is ready, of 2",
        ),
        (
            {"regions": (replace(REGION, unready=(UnreadyEndpoint("gpu", EndpointCondition.DOWN, "refused"),)),)},
            "warning",
            "endpoint eu-de/gpu",
            "down: refused",
        ),
        ({"agents": (replace(AGENT, report_age_s=None),)}, "problem", "agent eu-de/a", "has not reported"),
        ({"agents": (replace(AGENT, report_age_s=60.0),)}, "problem", "agent eu-de/a", "last reported 60 s ago"),
        ({"agents": (replace(AGENT, registered=False),)}, "warning", "agent eu-de/a", "is not registered"),
        ({"agents": (replace(AGENT, refused_plan="older"),)}, "problem", "agent eu-de/a", "newest plan: older"),
        ({"agents": (replace(AGENT, rejected_files=("e.yaml: x",)),)}, "problem", "agent eu-de/a", "e.yaml: x"),
        ({"agents": (replace(AGENT, certificate_expires_at=NOW - 1),)}, "problem", "agent eu-de/a", "has expired"),
        ({"agents": (replace(AGENT, certificate_expires_at=NOW + 90_000),)}, "warning", "agent eu-de/a", "in 1 days"),
        ({"agents": (replace(AGENT, release="0.9"),)}, "warning", "releases", "several run: 0.9, 1.0"),
        (
            {"agents": (replace(AGENT, peers=(PEER,)),), "regions": (REGION, replace(REGION, name="us-east"))},
            "problem",
            "agent eu-de/a",
            "does not reach the healthy regions us-east",
        ),
    ],
    ids=lambda value: "",
)
def test_each_fault_is_found_with_a_remedy(changes: dict[str, Any], severity: str, subject: str, text: str) -> None:
    found = [each for each in fleet_findings(replace(HEALTHY, **changes), NOW) if each.severity is not Severity.OK]
    (finding,) = [each for each in found if text in each.found]
    assert (finding.severity, finding.subject) == (severity, subject)
    assert finding.remedy


def test_the_policy_in_force_is_not_the_one_that_was_rolled_back() -> None:
    before = "a" * 64
    rollout = RolloutSummary(
        1, "d" * 64, before, Phase.ROLLED_BACK, NOW, NOW, "", "", None, None, (), None, in_force=before
    )
    found = fleet_findings(replace(HEALTHY, rollout=rollout), NOW)
    assert [each.found for each in found if each.subject == "policy"] == [f"{before[:12]} is in force"]


def test_a_region_that_failed_is_not_reported_again_by_each_agent_that_does_not_reach_it() -> None:
    failed = replace(REGION, name="us-east", state=RegionState.FAILED)
    status = replace(HEALTHY, agents=(replace(AGENT, peers=(PEER,)),), regions=(REGION, failed))
    problems = [finding for finding in fleet_findings(status, NOW) if finding.severity is Severity.PROBLEM]
    assert [finding.subject for finding in problems] == ["region us-east"]


@pytest.mark.parametrize("state", [RegionState.DRAINING, RegionState.RECOVERING])
def test_what_operators_intend_is_no_problem(state: RegionState) -> None:
    asleep = UnreadyEndpoint("gpu", EndpointCondition.UNLOADED, "sleeps until requests need it")
    region = replace(REGION, state=state, pools=(PoolStatus("m", 1, 0, 8, 0, 1.0),), unready=(asleep,))
    found = fleet_findings(replace(HEALTHY, regions=(region,)), NOW)
    assert Severity.PROBLEM not in {finding.severity for finding in found}
    remedies = [finding.remedy for finding in found if finding.severity is Severity.WARNING]
    assert "penstock undrain eu-de" in remedies[0]
    assert "unless it sleeps" in remedies[-1]


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_an_agent_whose_clock_is_wrong_is_named(ahead_s: float) -> None:
    # What an agent writes whose clock is ahead is ignored: it seems not to be registered.
    agent = replace(AGENT, clock_ahead_s=ahead_s, registered=False)
    found = [finding for finding in fleet_findings(replace(HEALTHY, agents=(agent,)), NOW) if finding.remedy]
    assert [(finding.subject, finding.severity) for finding in found] == [("agent eu-de/a", Severity.PROBLEM)]
    assert found[0].found == "its clock and that of cp-1 differ by 3600 s"

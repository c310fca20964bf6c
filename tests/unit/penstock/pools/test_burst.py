"""When a request uses a burst endpoint, and what an agent learns about its server."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import BurstPool
from penstock.pools.burst import (
    BurstStart,
    BurstUse,
    Otherwise,
    ServerState,
    free_slots,
    precedes_spillover,
    why_not,
)
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.reasons import Reason
from tests.support.planet import MODEL, policy

TERMS = BurstPool((MODEL,), cost_per_second=0.01, idle_s=60.0, cold_start_s=30.0)
POLICY = replace(policy(), objective=Objective(latency_ms_per_cost=20_000.0))


@pytest.mark.parametrize(
    ("terms", "otherwise", "start", "reason"),
    [
        (None, Otherwise(0, inf, inf), BurstStart(0.0, 5.0), Reason.BURST_WITHOUT_PRICE),
        (TERMS, Otherwise(1, inf, inf), BurstStart(0.0, 5.0), Reason.BURST_NOT_NEEDED),
        # 5 s cost 0.05, which counts as 1 s.
        (TERMS, Otherwise(0, 1.0, inf), BurstStart(0.0, 5.0), Reason.BURST_COSTS_MORE),
        (TERMS, Otherwise(0, 1.1, inf), BurstStart(0.0, 5.0), None),
        # 15 s cost 0.15, which counts as 3 s, after a cold start of 10 s.
        (TERMS, Otherwise(0, 13.0, inf), BurstStart(10.0, 5.0), Reason.BURST_COSTS_MORE),
        (TERMS, Otherwise(0, 13.1, inf), BurstStart(10.0, 5.0), None),
        (TERMS, Otherwise(0, inf, 60.0), BurstStart(30.0, 5.0), None),
        (TERMS, Otherwise(0, inf, 29.0), BurstStart(30.0, 5.0), Reason.BURST_NOT_NEEDED),
    ],
)
def test_money_is_weighed_against_the_wait_and_never_against_a_free_slot(
    terms: BurstPool | None, otherwise: Otherwise, start: BurstStart, reason: Reason | None
) -> None:
    verdict = why_not(POLICY, terms, otherwise, start)
    assert (None if verdict is None else verdict.reason) is reason


def test_slots_of_engines_that_rejected_a_request_are_not_free() -> None:
    views = [
        EndpointView("idle", 4, 4, ready=True, in_flight=1),
        EndpointView("overfull", 4, 8, ready=True, in_flight=6),
        EndpointView("down", 4, 4),
        EndpointView("drains", 4, 4, ready=True, draining=True),
        EndpointView("rejects", 4, 4, ready=True, pressure=1.0),
        EndpointView("is pressed", 4, 4, ready=True, in_flight=3, pressure=0.9),
    ]
    assert free_slots(views) == 3 + 1


def test_only_dearer_egress_comes_after_a_burst_endpoint() -> None:
    dear = replace(POLICY.regions["eu-de"], egress_cost_per_gb=1e6)
    costly = replace(POLICY, regions={**POLICY.regions, "eu-de": dear})
    assert precedes_spillover(costly, "eu-de", "eu-es", MODEL, 0.05)
    assert not precedes_spillover(POLICY, "eu-de", "eu-es", MODEL, 0.0)


def test_a_server_runs_while_requests_come_and_its_cold_starts_are_learned() -> None:
    server, paid = ServerState(), []
    assert server.runs_in_s(TERMS, 0, 0.0) == 30.0
    use = BurstUse(server, 0.5, 1.0, 0.0, lambda used_s, cost: paid.append((used_s, cost)))
    server.sent(30.0, 0.0)
    assert server.runs_in_s(TERMS, 1, 10.0) == 20.0, "a second request waits for the same start"
    use.began(13.0)
    assert server.cold_start_s(TERMS) == 12.0
    assert use.used(14.0) == (14.0, 7.0)
    use.ended(20.0)
    assert paid == [(20.0, 10.0)]
    assert use.used(99.0) == (20.0, 10.0)
    assert server.runs_in_s(TERMS, 0, 79.0) == 0.0
    assert server.runs_in_s(TERMS, 0, 80.0) == 12.0
    assert server.runs_in_s(TERMS, 1, 80.0) == 0.0, "another agent's request keeps it running"


def test_a_start_that_fails_is_expected_again_and_not_learned() -> None:
    server = ServerState()
    use = BurstUse(server, 0.5, 0.0, 0.0, lambda used_s, cost: None)
    server.sent(30.0, 0.0)
    use.ended(5.0)
    assert server.runs_in_s(TERMS, 0, 5.0) == 30.0


def test_a_client_that_leaves_a_starting_server_does_not_hide_the_start_from_the_others() -> None:
    server = ServerState()
    stays, leaves = (BurstUse(server, 0.5, 0.0, 0.0, lambda used_s, cost: None) for _ in range(2))
    server.sent(30.0, 0.0)
    server.sent(30.0, 0.0)
    leaves.ended(5.0)
    assert server.runs_in_s(TERMS, 1, 10.0) == 20.0
    stays.began(12.0)
    assert server.cold_start_s(TERMS) == 12.0

"""Which sessions spill over, and where the next turns of a spilled session go."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import Any

import pytest

from penstock.health.region_health import RegionState
from penstock.planning.plan import ArcReason
from penstock.policy.residency import ResidencyClass, residency_class
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionChoice, RegionRequest, RegionView, draw, region_options
from penstock.routing.spilled_sessions import (
    SpilledSessions,
)
from tests.support.planet import MODEL, healthy, policy

MAX_SPILLED = 16_384
STAY_S = 300.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

EVERYWHERE = residency_class(frozenset({"eu-de", "eu-es", "us-east"}))
EU = residency_class(frozenset({"eu-de", "eu-es"}))


def where(
    views: dict[str, RegionView],
    permitted: ResidencyClass = EVERYWHERE,
    tried: dict[str, Reason] | None = None,
    **of: Any,
) -> RegionChoice | Refusal:
    request = RegionRequest("eu-de", MODEL, permitted, tried or {}, of.pop("overflow", False), 7, **of)
    options = region_options(policy(), None, request, views)
    return options if isinstance(options, Refusal) else draw(options, Random(1), 7)


def views(home_s: float = 0.0, credits: int = 1, **more: Any) -> dict[str, RegionView]:
    """A home with an expected wait, and two other regions with credits."""
    return healthy("eu-es", "us-east", credits=credits) | healthy("eu-de", expected_wait_s=home_s, **more)


def region(found: RegionChoice | Refusal) -> str:
    return found.region if isinstance(found, RegionChoice) else found.reason.value


@pytest.mark.parametrize("overflow", [False, True])
def test_sessions_with_little_cached_spill_first(*, overflow: bool) -> None:
    full = {"eu-de": Reason.SATURATED} if overflow else None
    stays = "saturated" if overflow else "eu-de"
    for cached_s, expected in ((0.0, "eu-es"), (0.5, "eu-es"), (3.0, stays)):
        found = where(views(home_s=1.0), tried=full, overflow=overflow, cached_s=cached_s)
        assert region(found) == expected, cached_s
    assert region(where(views(home_s=4.0), tried=full, overflow=overflow, cached_s=3.0)) == "eu-es"


def test_an_engine_that_contradicts_the_estimate_spills_every_session() -> None:
    found = where(views(home_s=0.0), tried={"eu-de": Reason.SATURATED}, overflow=True, cached_s=30.0)
    assert region(found) == "eu-es"


def test_a_spilled_session_stays_while_its_region_grants_credits() -> None:
    found = where(views(), stays_in="us-east", cached_s=9.0)
    assert found == RegionChoice("us-east", ArcReason.SPILLOVER, spends_credit=True)
    assert region(where(views(credits=0), stays_in="us-east")) == "eu-de"
    assert region(where(views(), stays_in="us-east", may_spill=False)) == "eu-de"
    assert region(where(views(), EU, stays_in="us-east")) == "eu-de", "residency wins"
    assert region(where(views(), stays_in="us-east", tried={"us-east": Reason.SATURATED})) == "eu-de"
    for state in (RegionState.FAILED, RegionState.DRAINING, RegionState.UNKNOWN):
        lost = views() | {"us-east": RegionView(state, ready=True, credits=1)}
        assert region(where(lost, stays_in="us-east")) == "eu-de"


def test_a_session_is_remembered_for_a_time_after_its_last_turn() -> None:
    sessions = SpilledSessions()
    sessions.spilled(7, "eu-es", 100.0)
    assert (sessions.region_of(7, 100.0 + STAY_S), sessions.region_of(8, 100.0)) == ("eu-es", "")
    sessions.spilled(7, "us-east", 200.0)
    assert sessions.region_of(7, 200.0 + STAY_S) == "us-east"
    assert sessions.region_of(7, 200.1 + STAY_S) == ""
    assert len(sessions) == 0


def test_the_least_recently_spilled_session_is_forgotten_first() -> None:
    sessions = SpilledSessions(most=2)
    for session in (1, 2, 1, 3):
        sessions.spilled(session, "eu-es", float(session))
    assert [sessions.region_of(session, 3.0) for session in (1, 2, 3)] == ["eu-es", "", "eu-es"]


def test_the_memory_for_spilled_sessions_is_bounded() -> None:
    sessions = SpilledSessions()
    tracemalloc.start()
    try:
        for session in range(4 * MAX_SPILLED):
            sessions.spilled(session << 33, "eu-es", float(session))
        size_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(sessions) == MAX_SPILLED
    assert size_bytes < 6_000_000

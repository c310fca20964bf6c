"""The placement of requests for an object: every rule, as a table."""

from __future__ import annotations

import pytest

from penstock.health.region_health import RegionState
from penstock.planning.plan import ArcReason
from penstock.policy.residency import residency_class
from penstock.routes.object_locations import ObjectLocation
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.object_placement import (
    ObjectRequest,
    refuse_object,
    region_with_object,
    why_not_at_endpoint,
)
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import RegionChoice, RegionView

EU = residency_class(frozenset({"eu-de", "eu-es"}))
READ = ObjectRequest("m", is_for_object=True, needs_object=True, occupies_slot=False, forwarded=False)
CONTINUE = ObjectRequest("m", is_for_object=False, needs_object=True, occupies_slot=True, forwarded=False)
GENERATE = ObjectRequest("m", is_for_object=False, needs_object=False, occupies_slot=True, forwarded=False)
COUNT = ObjectRequest("m", is_for_object=False, needs_object=False, occupies_slot=False, forwarded=False)
"""Uses the object, and occupies no slot."""

HEALTHY = RegionView(RegionState.HEALTHY, ready=True, credits=1)
FULL = RegionView(RegionState.HEALTHY, ready=True)
DRAINING = RegionView(RegionState.DRAINING, ready=True, credits=1)
FAILED = RegionView(RegionState.FAILED, ready=True, credits=1)
THERE = ObjectLocation("m", "eu-es", "")


def spill(*, spends_credit: bool) -> RegionChoice:
    return RegionChoice("eu-es", ArcReason.SPILLOVER, spends_credit)


@pytest.mark.parametrize(
    ("request_", "location", "view", "tried", "expected"),
    [
        (READ, ObjectLocation("m", "us-east", ""), HEALTHY, {}, Reason.NO_PERMITTED_REGION),
        (READ, ObjectLocation("other", "eu-es", ""), HEALTHY, {}, Reason.NOT_FOUND),
        (READ, ObjectLocation("m", "eu-de", "gpu"), FAILED, {}, RegionChoice("eu-de", ArcReason.HOME, False)),
        (READ, THERE, HEALTHY, {"eu-es": Reason.UNREACHABLE}, Reason.UNREACHABLE),
        (READ._replace(forwarded=True), THERE, HEALTHY, {}, Reason.NOT_FOUND),
        (READ, THERE, FULL, {}, spill(spends_credit=False)),
        (READ, THERE, DRAINING, {}, spill(spends_credit=False)),
        (READ, THERE, FAILED, {}, Reason.UNREACHABLE),
        (COUNT, THERE, FULL, {}, spill(spends_credit=False)),
        (CONTINUE, THERE, FULL, {}, spill(spends_credit=False)),
        (CONTINUE, THERE, DRAINING, {}, spill(spends_credit=False)),
        (CONTINUE, THERE, FAILED, {}, Reason.UNREACHABLE),
        (CONTINUE, THERE, HEALTHY, {"eu-es": Reason.SATURATED}, Reason.SATURATED),
        (GENERATE, THERE, HEALTHY, {}, spill(spends_credit=True)),
        (GENERATE, THERE, FULL, {}, Reason.SATURATED),
        (GENERATE, THERE, DRAINING, {}, Reason.SATURATED),
    ],
)
def test_the_region(
    request_: ObjectRequest,
    location: ObjectLocation,
    view: RegionView,
    tried: dict[str, Reason],
    expected: RegionChoice | Reason,
) -> None:
    assert region_with_object(request_, location, EU, "eu-de", view, tried) == expected


def endpoint(in_flight: int = 0, *, ready: bool = True) -> EndpointView:
    return EndpointView("gpu", slots=2, limit=4, ready=ready, in_flight=in_flight)


@pytest.mark.parametrize(
    ("request_", "view", "failed", "excluded", "may_start", "expected"),
    [
        (READ, endpoint(), None, False, False, None),
        (READ, endpoint(), Reason.ENGINE_FAILED, True, True, Reason.ENGINE_FAILED),
        (READ, endpoint(ready=False), None, False, True, Reason.ENDPOINT_NOT_READY),
        (READ, endpoint(4 + 15), None, True, False, None),
        (READ, endpoint(4 + 16), None, False, True, Reason.SATURATED),
        (GENERATE, endpoint(), None, False, True, None),
        (GENERATE, endpoint(), None, False, False, Reason.SATURATED),
        (GENERATE, endpoint(), None, True, True, Reason.SATURATED),
        (GENERATE, endpoint(4), None, False, True, Reason.SATURATED),
        (CONTINUE, endpoint(), None, False, True, None),
        (CONTINUE, endpoint(), None, False, False, Reason.SATURATED),
        (CONTINUE, endpoint(4), None, False, True, Reason.SATURATED),
        (CONTINUE, endpoint(), Reason.SATURATED, True, True, Reason.SATURATED),
        (CONTINUE, endpoint(), Reason.ENGINE_FAILED, True, True, Reason.ENGINE_FAILED),
        (CONTINUE, endpoint(), None, True, True, Reason.ENDPOINT_NOT_READY),
        (CONTINUE, endpoint(ready=False), None, False, True, Reason.ENDPOINT_NOT_READY),
        (COUNT, endpoint(4), None, False, False, None),
        (COUNT, endpoint(), None, True, True, Reason.ENDPOINT_NOT_READY),
        (COUNT, endpoint(ready=False), None, False, True, Reason.ENDPOINT_NOT_READY),
    ],
)
def test_the_endpoint(
    request_: ObjectRequest,
    view: EndpointView,
    failed: Reason | None,
    excluded: bool,
    may_start: bool,
    expected: Reason | None,
) -> None:
    assert why_not_at_endpoint(request_, view, failed=failed, excluded=excluded, may_start=may_start) is expected


@pytest.mark.parametrize(
    ("reason", "status_reason", "can_retry"),
    [
        (Reason.NOT_FOUND, Reason.NOT_FOUND, False),
        (Reason.NO_PERMITTED_REGION, Reason.NO_PERMITTED_REGION, False),
        (Reason.ENGINE_FAILED, Reason.ENGINE_FAILED, False),
        (Reason.SATURATED, Reason.SATURATED, True),
        (Reason.UNREACHABLE, Reason.NONE_READY, True),
    ],
)
def test_the_refusal_says_when_to_retry(reason: Reason, status_reason: Reason, can_retry: bool) -> None:
    refusal = refuse_object(THERE, reason, wait_s=2.0)
    assert refusal.reason is status_reason
    assert (refusal.retry_after_s is not None and refusal.retry_after_s > 0) is can_retry
    assert "eu-es" in refusal.detail

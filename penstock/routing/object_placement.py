"""Places requests that name an object, such as a stored response or a file, at the endpoint that has the object.

Residency applies as to any other request. An object is never searched for at other endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.admission.retry_after import MIN_RETRY_S, retry_after_s
from penstock.health.region_health import RegionState
from penstock.planning.plan import ArcReason
from penstock.policy.residency import ResidencyClass
from penstock.routes.object_locations import ObjectLocation
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionChoice, RegionView, is_usable

BEYOND_LIMIT: Final = 16
"""Maximum number of requests for existing objects that an endpoint accepts beyond its slots and queue. Reading,
deleting or cancelling an object generates nothing, and must be possible at a full endpoint."""

_UNREACHABLE_STATES: Final = frozenset({RegionState.UNKNOWN, RegionState.FAILED})


class ObjectRequest(NamedTuple):
    """The properties that determine the placement of a request that names an object."""

    model: str
    is_for_object: bool
    """Whether the request is for the object itself, and generates nothing."""
    needs_object: bool
    """Whether only the endpoint that has the object can serve the request: a request for the object itself, or one that
    continues from it. Otherwise another endpoint may serve the request."""
    occupies_slot: bool
    forwarded: bool
    """Whether an agent of another region forwarded the request; such a request is never forwarded again."""

    @property
    def needs_room(self) -> bool:
        """Whether the request needs capacity, like a request without an object."""
        return not self.is_for_object and self.occupies_slot


def region_with_object(
    request: ObjectRequest,
    location: ObjectLocation,
    permitted: ResidencyClass,
    here: str,
    view: RegionView,
    tried: Mapping[str, Reason],
) -> RegionChoice | Reason:
    """Return the region that has the object, or the reason why the request cannot be sent to that region.

    Args:
        here: the region of this agent.
        view: the state of the location's region; ignored for `here`.
        tried: regions that did not start this request, and the reason of each.
    """
    if location.region not in permitted.regions:
        return Reason.NO_PERMITTED_REGION
    if location.model != request.model:
        return Reason.NOT_FOUND
    if location.region == here:
        return RegionChoice(here, ArcReason.HOME, spends_credit=False)
    if location.region in tried:
        return tried[location.region]
    if request.forwarded:
        return Reason.NOT_FOUND
    if request.needs_room and not request.needs_object:
        if not is_usable(view) or not view.ready or view.credits <= 0:
            return Reason.SATURATED
    elif view.state in _UNREACHABLE_STATES:
        return Reason.UNREACHABLE
    # A request that only this region can serve needs neither a share nor a spill credit. It waits in the queue there.
    spends_credit = request.needs_room and not request.needs_object
    return RegionChoice(location.region, ArcReason.SPILLOVER, spends_credit)


def why_not_at_endpoint(
    request: ObjectRequest, view: EndpointView, *, failed: Reason | None, excluded: bool, may_start: bool
) -> Reason | None:
    """Return the reason why the endpoint that has the object cannot accept the request; None if it can.

    Args:
        view: the endpoint.
        failed: the reason why the request failed at this endpoint before; None if it was not sent to the endpoint.
        excluded: the endpoint did not start the request, or cannot serve it.
        may_start: the plan permits a request that needs capacity to start in this region now, and the admission queue
            has no earlier request.
    """
    if request.is_for_object:
        if failed is not None:
            return failed
        if not view.ready:
            return Reason.ENDPOINT_NOT_READY
        return Reason.SATURATED if view.in_flight >= view.limit + BEYOND_LIMIT else None
    if request.needs_object and excluded:
        return failed or Reason.ENDPOINT_NOT_READY
    if request.needs_object and not view.ready:
        return Reason.ENDPOINT_NOT_READY
    if request.occupies_slot:
        return Reason.SATURATED if not may_start or excluded or not view.takes_more else None
    return Reason.ENDPOINT_NOT_READY if excluded or not view.ready else None


def refuse_object(location: ObjectLocation, reason: Reason, wait_s: float) -> Refusal:
    """Return the refusal of a request for an object.

    Args:
        reason: why the request cannot be sent to the endpoint that has the object.
        wait_s: expected time in the admission queue.
    """
    where = location.endpoint or location.region
    if reason is Reason.NOT_FOUND:
        return Refusal(reason, f"{where} no longer has the object")
    if reason in (Reason.NO_PERMITTED_REGION, Reason.ENGINE_FAILED):
        return Refusal(reason, f"{where} has the object, and cannot serve it: {reason.value}")
    if reason is Reason.SATURATED:
        return Refusal(reason, f"{where}, which has the object, is full", retry_after_s=retry_after_s(wait_s))
    detail = f"{where}, which has the object, is not available: {reason.value}"
    return Refusal(Reason.NONE_READY, detail, retry_after_s=MIN_RETRY_S)

"""GET /v1/regions, /v1/pools, /v1/endpoints, /v1/agents: the fleet, as policy and the newest reports have it.

Agents report to the leader, so another control plane has it answer: `seen_by` says whose view it is.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Path, Query, Response

from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.pagination import USUAL_LIMIT, Cursor, Limit, Page, paged
from control_plane.api.problems import Problem
from control_plane.auth.required_roles import Viewer
from control_plane.daemon import ControlPlane
from control_plane.policy.suggestion import suggestion
from control_plane.status.endpoint_status import EndpointPage, EndpointStatus, endpoint_statuses
from control_plane.status.status import AgentStatus, PoolStatus, RegionStatus, SeenBy, Status
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.fleet.endpoint_view import omitted_endpoints

T = TypeVar("T")

InRegion = Annotated[str | None, Query(max_length=128, description="Only what is in this region.")]
OfModel = Annotated[str | None, Query(max_length=256, description="Only what serves this model.")]
InState = Annotated[EndpointCondition | None, Query(description="Only what is in this state.")]


class FleetPage(Page[T], frozen=True):
    """Some entries, and whose view they are."""

    seen_by: SeenBy


class RegionPool(msgspec.Struct, frozen=True):
    """The endpoints of one region for one model."""

    region: str
    pool: PoolStatus
    report_age_s: float | None
    """Of the region's newest report."""


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows the fleet."""
    router = APIRouter(prefix="/v1", tags=["fleet"])

    @router.get("/regions", responses=gives(FleetPage[RegionStatus], "A page of regions, by name."))
    async def regions(caller: Viewer, cursor: Cursor = None, limit: Limit = USUAL_LIMIT) -> Response:
        """Every region of the policy: where it is, its state, pools, demand, and how service objectives are kept."""
        status = control_plane.status()
        return _page(status, paged(status.regions, lambda one: one.name, cursor, limit))

    @router.get("/regions/{name}", responses=gives(RegionStatus, "The region."))
    async def region(caller: Viewer, name: Annotated[str, Path(max_length=128)]) -> Response:
        """One region."""
        for one in control_plane.status().regions:
            if one.name == name:
                return answer(one)
        raise _no_region(control_plane, name)

    @router.get("/pools", responses=gives(FleetPage[RegionPool], "A page of pools, by region and model."))
    async def pools(
        caller: Viewer,
        region: InRegion = None,
        model: OfModel = None,
        cursor: Cursor = None,
        limit: Limit = USUAL_LIMIT,
    ) -> Response:
        """Every pool that some report tells of: slots, requests in flight, how long one takes."""
        status = control_plane.status()
        found = (one for one in _pools(status) if region in (None, one.region) and model in (None, one.pool.model))
        page = paged(found, lambda one: f"{one.region}/{one.pool.model}", cursor, limit)
        _must_be_some(control_plane, page, region, model)
        return _page(status, page)

    @router.get("/endpoints", responses=gives(EndpointPage, "A page of endpoints, by region and name."))
    async def endpoints(
        caller: Viewer,
        region: InRegion = None,
        model: OfModel = None,
        state: InState = None,
        cursor: Cursor = None,
        limit: Limit = USUAL_LIMIT,
    ) -> Response:
        """Every endpoint that agents told of: where it is, what it serves, its state and load, and how old that is.

        A region with up to 100 tells of them in each report, a larger one more seldom: `age_s` says when. Of more than
        1,000 the rest is only counted (`omitted_endpoints`).
        """
        snapshot, now = control_plane.snapshot, control_plane.now()

        def page() -> Page[EndpointStatus]:
            found = endpoint_statuses(snapshot, now, region=region, model=model, state=state)
            return paged(found, lambda one: f"{one.region}/{one.name}", cursor, limit)

        # A large fleet has some ten thousand, and the lease wants to be renewed meanwhile.
        some = await asyncio.to_thread(page)
        _must_be_some(control_plane, some, region, model)
        seen_by = _seen_by(control_plane.status())
        return answer(EndpointPage(some.items, some.next_cursor, seen_by, omitted_endpoints(snapshot, region)))

    @router.get("/agents", responses=gives(FleetPage[AgentStatus], "A page of agents, by region and name."))
    async def agents(
        caller: Viewer, region: InRegion = None, cursor: Cursor = None, limit: Limit = USUAL_LIMIT
    ) -> Response:
        """Every agent that is registered or was heard of: its policy and plan, what it refused, whom it reaches."""
        status = control_plane.status()
        found = (one for one in status.agents if region in (None, one.region))
        page = paged(found, lambda one: f"{one.region}/{one.name}", cursor, limit)
        _must_be_some(control_plane, page, region)
        return _page(status, page)

    return router


def _must_be_some(control_plane: ControlPlane, page: Page[Any], region: str | None, model: str | None = None) -> None:
    """Refuse a filter by a region or model that nobody knows: nothing is there, but not because it has none."""
    policy = control_plane.policy
    if page.items or policy is None:
        return
    if region is not None and region not in policy.regions:
        raise _no_region(control_plane, region)
    if model is not None and model not in policy.models:
        remedy = suggestion(model, policy.models, "GET /v1/pools has those that are reported")
        raise Problem(404, f"the policy in force has no model {model!r}; {remedy}")


def _no_region(control_plane: ControlPlane, name: str) -> Problem:
    known = control_plane.policy.regions if control_plane.policy is not None else ()
    remedy = suggestion(name, known, "GET /v1/regions has those it has")
    return Problem(404, f"the policy in force has no region {name!r}; {remedy}")


def _pools(status: Status) -> list[RegionPool]:
    return [RegionPool(region.name, pool, region.report_age_s) for region in status.regions for pool in region.pools]


def _seen_by(status: Status) -> SeenBy:
    return SeenBy(status.name, status.leading, status.leader.url if status.leader is not None else None)


def _page(status: Status, page: Page[T]) -> Response:
    return answer(FleetPage(page.items, page.next_cursor, _seen_by(status)))

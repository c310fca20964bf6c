"""GET /v1/regions, /v1/pools, /v1/endpoints, /v1/agents: the fleet, as policy and the newest reports have it.

Agents report to the leader, so another control plane has it answer: `seen_by` says whose view it is. An endpoint's
address, health and load stay with the agents of its region, which report counts: the answer names whom to ask.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from fastapi import APIRouter, Path, Query, Response

from control_plane.access.required import Viewer
from control_plane.api.answers import answer
from control_plane.api.openapi import gives
from control_plane.api.pages import USUAL_LIMIT, Cursor, Limit, Page, paged
from control_plane.daemon import ControlPlane
from control_plane.problems import Problem
from control_plane.status import AgentStatus, PoolStatus, RegionStatus, Status

T = TypeVar("T")

InRegion = Annotated[str | None, Query(max_length=128, description="Only what is in this region.")]
OfModel = Annotated[str | None, Query(max_length=256, description="Only what serves this model.")]


class SeenBy(msgspec.Struct, frozen=True):
    """Whose view this is."""

    name: str
    """The control plane that agents report to."""
    leading: bool
    """Whether it leads. With the store away it is one that led last, where agents still report."""
    leader: str | None
    """Base URL of the leader, where known."""


class FleetPage(Page[T], frozen=True):
    """Some entries, and whose view they are."""

    seen_by: SeenBy


class RegionPool(msgspec.Struct, frozen=True):
    """The endpoints of one region for one model."""

    region: str
    pool: PoolStatus
    report_age_s: float | None
    """Of the region's newest report."""


class RegionEndpoints(msgspec.Struct, frozen=True):
    """What is known here of the endpoints behind one region's pool: how many, and who knows the rest."""

    region: str
    model: str
    endpoints: int
    ready: int
    """How many may take a new request."""
    ask: tuple[str, ...]
    """Base URLs of the region's agents for operators: `GET /v1/endpoints` there has addresses, health and load."""


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows the fleet."""
    router = APIRouter(prefix="/v1", tags=["fleet"])

    @router.get("/regions", responses=gives(FleetPage[RegionStatus], "A page of regions, by name."))
    async def regions(caller: Viewer, cursor: Cursor = None, limit: Limit = USUAL_LIMIT) -> Response:
        """Every region of the policy: where it is, its state, pools and demand."""
        status = control_plane.status()
        return _page(status, paged(status.regions, lambda one: one.name, cursor, limit))

    @router.get("/regions/{name}", responses=gives(RegionStatus, "The region."))
    async def region(caller: Viewer, name: Annotated[str, Path(max_length=128)]) -> Response:
        """One region."""
        for one in control_plane.status().regions:
            if one.name == name:
                return answer(one)
        raise Problem(404, f"the policy in force has no region {name!r}; GET /v1/regions has those it has")

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
        return _page(status, paged(found, lambda one: f"{one.region}/{one.pool.model}", cursor, limit))

    @router.get("/endpoints", responses=gives(FleetPage[RegionEndpoints], "A page, by region and model."))
    async def endpoints(
        caller: Viewer,
        region: InRegion = None,
        model: OfModel = None,
        cursor: Cursor = None,
        limit: Limit = USUAL_LIMIT,
    ) -> Response:
        """How many endpoints each pool has, and which agents know them.

        Agents report counts. Addresses, health and load of single endpoints never leave their region: ask its agents.
        """
        status = control_plane.status()
        found = [
            RegionEndpoints(
                one.region, one.pool.model, one.pool.endpoints, one.pool.ready, _admin_urls(status, one.region)
            )
            for one in _pools(status)
            if region in (None, one.region) and model in (None, one.pool.model)
        ]
        return _page(status, paged(found, lambda one: f"{one.region}/{one.model}", cursor, limit))

    @router.get("/agents", responses=gives(FleetPage[AgentStatus], "A page of agents, by region and name."))
    async def agents(
        caller: Viewer, region: InRegion = None, cursor: Cursor = None, limit: Limit = USUAL_LIMIT
    ) -> Response:
        """Every agent that is registered or was heard of: its policy and plan, what it refused, whom it reaches."""
        status = control_plane.status()
        found = (one for one in status.agents if region in (None, one.region))
        return _page(status, paged(found, lambda one: f"{one.region}/{one.name}", cursor, limit))

    return router


def _pools(status: Status) -> list[RegionPool]:
    return [RegionPool(region.name, pool, region.report_age_s) for region in status.regions for pool in region.pools]


def _admin_urls(status: Status, region: str) -> tuple[str, ...]:
    return tuple(one.admin_url for one in status.agents if one.region == region and one.admin_url is not None)


def _page(status: Status, page: Page[T]) -> Response:
    seen_by = SeenBy(status.name, status.leading, status.leader.url if status.leader is not None else None)
    return answer(FleetPage(page.items, page.next_cursor, seen_by))

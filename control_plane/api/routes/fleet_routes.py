"""`/v1/regions`, `/v1/endpoints`, `/v1/agents`: the fleet by the policy and the newest reports.

Only the leader receives reports, so other control planes forward these requests. `seen_by` names the control plane that
answered.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Response

from adapters.error_text import suggest
from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.responses import Problem, large_response
from control_plane.auth.required_roles import Viewer
from control_plane.page import Page
from control_plane.status.endpoint_status import EndpointPage, endpoint_statuses
from control_plane.status.fleet_view import FleetView
from control_plane.status.status import AgentStatus, RegionStatus, SeenBy, Status
from control_plane.status.status_reporter import StatusReporter
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.fleet.reported_endpoints import omitted_endpoints
from penstock.policy.policy import Policy

T = TypeVar("T")

InRegion = Annotated[str | None, Query(max_length=128, description="Limit to this region.")]
OfModel = Annotated[str | None, Query(max_length=256, description="Limit to what serves this model.")]
InState = Annotated[EndpointCondition | None, Query(description="Limit to this state.")]


class FleetPage(Page[T], frozen=True):
    """A page of a list, and the control plane that answered."""

    seen_by: SeenBy


def routes(reporter: StatusReporter, view: FleetView) -> APIRouter:
    """Return the router of the fleet."""
    router = APIRouter(prefix="/v1", tags=["fleet"])

    @router.get("/regions", responses=returns(FleetPage[RegionStatus], "A page of regions, by name."))
    async def regions(caller: Viewer, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List the regions of the policy: location, state, pools, demand, and service objectives."""
        prepared = reporter.prepared(agents=False)

        def found() -> FleetPage[RegionStatus]:
            status = prepared()
            return _page(status, paginate(status.regions, lambda region: region.name, cursor, limit))

        return await large_response(found)

    @router.get("/regions/{name}", responses=returns(RegionStatus, "The region."))
    async def region(caller: Viewer, name: Annotated[str, Path(max_length=128)]) -> Response:
        """Get one region."""
        policy, prepared = view.policy, reporter.prepared(agents=False)

        def found() -> RegionStatus:
            for region_status in prepared().regions:
                if region_status.name == name:
                    return region_status
            raise _no_region(policy, name)

        return await large_response(found)

    @router.get("/endpoints", responses=returns(EndpointPage, "A page of endpoints, by region and name."))
    async def endpoints(
        caller: Viewer,
        region: InRegion = None,
        model: OfModel = None,
        state: InState = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> Response:
        """List the endpoints that agents report: address, models, state, load, and the age of each value.

        A region with up to 100 endpoints reports all of them each second, a larger region less often: see `age_s`.
        Endpoints of a region beyond the first 1,000 are not listed; `left_out` is their number.
        """
        policy, snapshot, now, seen_by = view.policy, view.snapshot, view.now(), reporter.seen_by()

        def found() -> EndpointPage:
            models = {} if policy is None else policy.models
            listed = endpoint_statuses(snapshot, now, models, region=region, model=model, state=state)
            page = paginate(listed, lambda endpoint: f"{endpoint.region}/{endpoint.name}", cursor, limit)
            check_filters(policy, page, region, model)
            return EndpointPage(page.items, page.next_cursor, seen_by, omitted_endpoints(snapshot, region))

        return await large_response(found)

    @router.get("/agents", responses=returns(FleetPage[AgentStatus], "A page of agents, by region and name."))
    async def agents(
        caller: Viewer, region: InRegion = None, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT
    ) -> Response:
        """List the agents that are registered or report: policy, plan, refused updates, reachable peers."""
        policy, prepared = view.policy, reporter.prepared()

        def found() -> FleetPage[AgentStatus]:
            status = prepared()
            agents = (agent for agent in status.agents if region in (None, agent.region))
            page = paginate(agents, lambda agent: f"{agent.region}/{agent.name}", cursor, limit)
            check_filters(policy, page, region)
            return _page(status, page)

        return await large_response(found)

    return router


def check_filters(policy: Policy | None, page: Page[Any], region: str | None, model: str | None = None) -> None:
    """Raise 404 for an empty page if the policy lacks the region or model of the filter."""
    if page.items or policy is None:
        return
    if region is not None and region not in policy.regions:
        raise _no_region(policy, region)
    if model is not None and model not in policy.models:
        remedy = suggest(model, policy.models, "GET /v1/endpoints lists the reported models")
        raise Problem(404, f"the policy in force has no model {model!r}; {remedy}")


def _no_region(policy: Policy | None, name: str) -> Problem:
    remedy = suggest(name, policy.regions if policy is not None else (), "GET /v1/regions lists them")
    return Problem(404, f"the policy in force has no region {name!r}; {remedy}")


def _page(status: Status, page: Page[T]) -> FleetPage[T]:
    return FleetPage(
        page.items,
        page.next_cursor,
        SeenBy(status.name, status.leading, status.leader.url if status.leader is not None else None),
    )

"""The HTTP API: routers, error handlers and middleware. Every route outside `open_routers` requires a caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from control_plane.api.authorisation import Authorisation, RouteRules
from control_plane.api.clock_agreement import ClockAgreement
from control_plane.api.json_bodies import MAX_BODY, json_body_of
from control_plane.api.leader_forwarding import ControlPlanePeers, LeaderForwarding
from control_plane.api.openapi import REQUIRED_ROLE, body_of, install_description, operation_id
from control_plane.api.request_limits import RequestLimits
from control_plane.api.responses import install_error_handlers
from control_plane.api.serving.sender_standing import SenderStanding
from control_plane.api.strict_requests import install_method_errors
from control_plane.auth.authentication import Access
from control_plane.auth.required_roles import required_role
from control_plane.leadership.clock_check import ClockCheck
from control_plane.planning.report_intake import ReportIntake


class OtherProcesses(NamedTuple):
    """What the API knows of the other processes of the fleet."""

    control_planes: ControlPlanePeers
    """The other control planes, which forward requests."""
    clocks: ClockCheck
    """Compares the clock with those of other processes."""
    intake: ReportIntake
    """Verifies the reports of agents."""


class UnguardedRoute(Exception):
    """A route outside the open routers that requires no caller, or reads the body first: a defect, found at startup."""


def create_app(
    *,
    open_routers: Sequence[APIRouter],
    guarded_routers: Sequence[APIRouter],
    access: Access,
    others: OtherProcesses,
    cookies: Middleware,
) -> FastAPI:
    """Return the HTTP API of one control plane.

    Args:
        open_routers: routes that require no caller.
        guarded_routers: all other routes.
        access: authenticates callers.
        others: the other processes of the fleet.
        cookies: `SessionCookies`, with the sessions of browsers.

    Raises:
        UnguardedRoute: a route of `guarded_routers` requires no caller, or FastAPI reads its body.
    """
    for route in (route for router in guarded_routers for route in router.routes):
        _describe(route)
    routes = [route for router in (*open_routers, *guarded_routers) for route in router.routes]
    for route in routes:
        if isinstance(route, APIRoute):
            route.operation_id = operation_id(route)
    # FastAPI would make the routes of an included router a second time.
    app = FastAPI(
        title="Penstock control plane",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        routes=routes,
    )
    app.state.access = access
    install_error_handlers(app)
    install_description(app)
    install_method_errors(app)
    rules = RouteRules(routes)
    # The middleware added last receives a request first.
    app.add_middleware(ClockAgreement, clocks=others.clocks, rules=rules)
    app.add_middleware(LeaderForwarding, peers=others.control_planes, rules=rules)
    app.add_middleware(Authorisation, access=access, rules=rules)
    app.add_middleware(RequestLimits, rules=rules)
    app.add_middleware(SenderStanding, access=access, callers=others.control_planes.callers, intake=others.intake)
    app.add_middleware(cookies.cls, *cookies.args, **cookies.kwargs)
    return app


def _describe(route: BaseRoute) -> None:
    """Add the required role and the limit of the body to the description of a guarded route."""
    role = required_role(route.dependant) if isinstance(route, APIRoute) else None
    if not isinstance(route, APIRoute) or role is None:
        raise UnguardedRoute(f"{route} requires no caller: give it a parameter such as `caller: Viewer`")
    if route.body_field is not None:
        raise UnguardedRoute(f"{route} has a body parameter that is read before the caller is known: use JsonBody")
    body = json_body_of(route.dependant)
    described = {} if body is None else {"requestBody": body_of(body.model), MAX_BODY: body.max_bytes}
    route.openapi_extra = {REQUIRED_ROLE: role.value, **described, **(route.openapi_extra or {})}

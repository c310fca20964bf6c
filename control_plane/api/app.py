"""The HTTP API put together: every resource's routes, errors as problem details, and nothing open that need not be."""

from __future__ import annotations

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from adapters.geoip_lookup import GeoIpLookup
from control_plane.api import problems
from control_plane.api.idempotency import Idempotency
from control_plane.api.leader_forwarding import LeadersWord
from control_plane.api.openapi import describe, operation_id
from control_plane.api.request_limits import BoundedBodies, KnownBodies
from control_plane.api.routes import (
    audit_routes,
    events_routes,
    explain_routes,
    fleet_routes,
    health_routes,
    overrides_routes,
    plans_routes,
    policies_routes,
    reports_routes,
    rollouts_routes,
    status_routes,
    steer_routes,
    tenants_routes,
    webhook_routes,
    what_if_routes,
)
from control_plane.api.strict_requests import as_described, tell_methods
from control_plane.auth.authentication import Access
from control_plane.auth.required_roles import is_guarded
from control_plane.daemon import ControlPlane


class UnguardedRoute(Exception):
    """A route that asks nobody who they are: a defect, found at the start."""


def create_app(control_plane: ControlPlane, access: Access, geoip: GeoIpLookup | None = None) -> FastAPI:
    """The API of one control plane; `access` knows who may call it, and `geoip` locates addresses.

    Raises:
        UnguardedRoute: a resource forgot to say whom it is for.
    """
    app = FastAPI(
        title="Penstock control plane",
        version="1",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_id,
        redirect_slashes=False,
    )
    app.state.access = access
    problems.install(app)
    describe(app)
    geoip = geoip or GeoIpLookup(None)
    tell_methods(app)
    # These ask for no caller: they tell nothing of the fleet, or what they take is signed.
    open_routers = (
        health_routes.routes(control_plane),
        reports_routes.routes(control_plane),
        webhook_routes.routes(control_plane.webhook),
    )
    for router in open_routers:
        app.include_router(router)
    for router in (
        status_routes.routes(control_plane),
        plans_routes.routes(control_plane),
        explain_routes.routes(control_plane, geoip),
        steer_routes.routes(control_plane, geoip),
        what_if_routes.routes(control_plane),
        fleet_routes.routes(control_plane),
        tenants_routes.routes(control_plane),
        audit_routes.routes(control_plane.audit),
        events_routes.routes(control_plane.events),
        overrides_routes.routes(control_plane),
        policies_routes.routes(control_plane),
        rollouts_routes.routes(control_plane),
    ):
        for route in router.routes:
            if not isinstance(route, APIRoute) or not is_guarded(route.dependant):
                raise UnguardedRoute(f"{route} asks for no caller: give it a parameter such as `caller: Viewer`")
        app.include_router(router, dependencies=[Depends(as_described)])
    open_to_all = frozenset(getattr(route, "path", "") for router in open_routers for route in router.routes)
    # The last one added is the first that a request meets.
    app.add_middleware(KnownBodies, access=access, open_to_all=open_to_all)
    app.add_middleware(Idempotency, access=access, answers=control_plane.kept_answers)
    app.add_middleware(LeadersWord, control_plane=control_plane, access=access)
    app.add_middleware(BoundedBodies)
    return app

"""The HTTP API: routers, error handlers and middleware. Every route outside `open_routers` requires a caller."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute

from control_plane.api.idempotency import Idempotency
from control_plane.api.idempotency_store import IdempotencyStore
from control_plane.api.leader_forwarding import LeaderForwarding
from control_plane.api.openapi import REQUIRED_ROLE, install_description, operation_id
from control_plane.api.request_limits import AuthenticatedBodies, BodyLimits
from control_plane.api.responses import install_error_handlers
from control_plane.api.strict_requests import install_method_errors, require_described
from control_plane.auth.authentication import Access
from control_plane.auth.required_roles import required_role
from control_plane.leadership.forwarded_caller import ForwardedCallers
from control_plane.leadership.leader_client import LeaderClient
from control_plane.leadership.leader_elector import LeaderElector
from control_plane.ui.browser_sessions import BrowserSessions, SessionCookies


class UnguardedRoute(Exception):
    """A route outside the open routers that requires no caller: a defect, found at startup."""


def create_app(
    *,
    open_routers: Sequence[APIRouter],
    guarded_routers: Sequence[APIRouter],
    access: Access,
    idempotency_store: IdempotencyStore,
    elector: LeaderElector,
    link: LeaderClient,
    callers: ForwardedCallers,
    browsers: BrowserSessions,
) -> FastAPI:
    """Return the HTTP API of one control plane.

    Args:
        open_routers: routes that require no caller.
        guarded_routers: all other routes.
        access: authenticates callers.
        idempotency_store: responses of requests that carried an Idempotency-Key.
        elector: provides the current leader.
        link: forwards requests to the leader.
        callers: verifies the callers of requests that other control planes forward.
        browsers: sessions of browsers.

    Raises:
        UnguardedRoute: a route of `guarded_routers` requires no caller.
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
    install_error_handlers(app)
    install_description(app)
    install_method_errors(app)
    for router in open_routers:
        app.include_router(router)
    for router in guarded_routers:
        for route in router.routes:
            role = required_role(route.dependant) if isinstance(route, APIRoute) else None
            if not isinstance(route, APIRoute) or role is None:
                raise UnguardedRoute(f"{route} requires no caller: give it a parameter such as `caller: Viewer`")
            route.openapi_extra = {**(route.openapi_extra or {}), REQUIRED_ROLE: role.value}
        app.include_router(router, dependencies=[Depends(require_described)])
    open_paths = frozenset(getattr(route, "path", "") for router in open_routers for route in router.routes)
    # The middleware added last receives a request first.
    app.add_middleware(AuthenticatedBodies, access=access, open_paths=open_paths)
    # `app.routes` has one entry for each included router, so the routes are taken from the routers.
    guarded_routes = [route for router in guarded_routers for route in router.routes]
    app.add_middleware(Idempotency, access=access, store=idempotency_store, routes=guarded_routes)
    app.add_middleware(LeaderForwarding, elector=elector, link=link, access=access, callers=callers)
    app.add_middleware(BodyLimits)
    app.add_middleware(SessionCookies, sessions=browsers)
    return app

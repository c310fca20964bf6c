"""Run as a program: a page for operators over the large fleet, with sign-in at an identity provider of its own.

Pages and clients get the status by the control plane's own routes and feed; only the fleet behind them does not exist.
Prints its URL once it listens.
"""

from __future__ import annotations

import socket
from itertools import count
from random import Random

import httpx
import uvicorn
import uvloop
from fastapi import FastAPI, Request, Response

from adapters.access.callers import Role
from control_plane.api.responses import Problem, install_error_handlers, json_response
from control_plane.api.routes import events_routes, status_routes
from control_plane.api.serving.http_server import UnsignalledServer
from control_plane.audit.audit_log import AuditLog
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.authentication import Access
from control_plane.auth.code_flow import CodeFlow, OidcClient
from control_plane.auth.jwks import Jwks
from control_plane.auth.oidc import Oidc, OidcTrust
from control_plane.auth.oidc_provider import OidcProvider
from control_plane.auth.required_roles import Viewer
from control_plane.events.event_log import EventLog
from control_plane.status.status import Status
from control_plane.status.status_feed import StatusFeed
from control_plane.status.status_history import INTERVAL_S, SAMPLES, StatusHistory
from control_plane.ui import sign_in_routes, ui_routes
from control_plane.ui.browser_sessions import BrowserSessions, SessionCookies
from control_plane.ui.session_revocations import SessionRevocations
from lab.memory_store import MemoryStore
from tests.support.identity_provider import CLIENT_ID, IdentityProvider
from tests.support.issuer import AUDIENCE, rsa_key
from tests.ui.large_fleet import AT, status

TOKEN = "a token of the large fleet"

PROVIDER_HOST = "localhost"
"""Another site than the page's 127.0.0.1, as a provider is."""


class LargeFleet:
    """Reads the status of the large fleet; each read is a second later."""

    def __init__(self) -> None:
        self._seconds = count()

    async def read(self, *_: object, agents: bool = True) -> Status:
        """The next status."""
        return status(next(self._seconds))


def create_app(flow: CodeFlow, access: Access) -> FastAPI:
    """The page with its routes; those of other views return empty lists."""
    app = FastAPI()
    app.state.access = access
    install_error_handlers(app)
    fleet = LargeFleet()
    events = EventLog(lambda: AT)
    sessions = BrowserSessions(b"a secret of the large fleet's control plane")
    store = MemoryStore()
    revocations = SessionRevocations(store, AuditLog(store), rng=Random())
    history = StatusHistory()
    for sample in range(SAMPLES):
        past = status(-sample)
        history.add(past.at - (SAMPLES - sample) * INTERVAL_S, past.regions)
    feed = StatusFeed(fleet.read, events.wake)
    for router in (
        sign_in_routes.routes(flow, sessions),
        ui_routes.public_routes(flow.name),
        ui_routes.session_routes(sessions, revocations),
        status_routes.routes(fleet, history),  # type: ignore[arg-type]
        events_routes.routes(events, feed),
    ):
        app.include_router(router)

    @app.get("/v1/{path:path}")
    async def other(path: str, caller: Viewer, request: Request) -> Response:
        if path.startswith("rollouts/"):
            raise Problem(404, "there is no rollout")
        return json_response({"items": [], "next_cursor": None})

    app.add_middleware(SessionCookies, sessions=sessions, is_revoked=revocations.is_revoked)
    return app


async def main() -> None:
    """Serve until the process is stopped."""
    provider = IdentityProvider(PROVIDER_HOST, one=rsa_key())
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with provider.http, httpx.AsyncClient() as http:
        trust = OidcTrust(provider.url, AUDIENCE, {"sre": Role.OPERATOR})
        oidc = Oidc(trust, Jwks(provider.jwks_url, http))
        client = OidcClient(CLIENT_ID, f"{url}/ui/signed-in")
        flow = CodeFlow(client, OidcProvider(provider.url, http), oidc.for_audience(CLIENT_ID), http)
        app = create_app(flow, Access(AdminToken(TOKEN), oidc=oidc))
        config = uvicorn.Config(app, loop="none", lifespan="off", log_config=None, access_log=False)
        print(url, flush=True)
        await UnsignalledServer(config).serve([listener])


if __name__ == "__main__":
    uvloop.run(main())

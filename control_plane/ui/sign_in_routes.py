"""`/ui/sign-in` redirects to the identity provider; `/ui/signed-in` receives its response and begins a session.

The request to `/ui/signed-in` is a navigation that another site initiates, for which browsers send no SameSite=Strict
cookies, so the cookie of the pending sign-in is Lax. The session cookie is Strict, because only requests of the page
need it.
"""

from __future__ import annotations

from collections import Counter
from html import escape

import structlog
from fastapi import APIRouter, Request, Response

from adapters.access.callers import Caller
from control_plane.auth.authentication import Access
from control_plane.auth.code_flow import CodeFlow, SignInFailed
from control_plane.ui.browser_sessions import (
    CALLER_LIFETIME_S,
    COOKIE,
    PENDING_COOKIE,
    PENDING_LIFETIME_S,
    BrowserSessions,
    cookie,
    set_cookie,
)
from control_plane.ui.ui_routes import HEADERS

_FAILED = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Sign-in failed: Penstock</title>
<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="style.css">
</head>
<body>
<main class="sign-in">
<h1>Sign-in failed</h1>
<p class="bad" role="alert">{message}</p>
<p><a href="./">Back to the page</a></p>
</main>
</body>
</html>
"""

_log = structlog.get_logger(__name__)


def routes(flow: CodeFlow, sessions: BrowserSessions) -> APIRouter:
    """Return the router of the sign-in at the identity provider."""
    router = APIRouter(prefix="/ui", include_in_schema=False)

    @router.get("/sign-in")
    async def begin(request: Request) -> Response:
        """Redirect the browser to the identity provider."""
        try:
            pending, url = await flow.begin()
        except SignInFailed as error:
            return _failed(error)
        response = _redirect(url)
        set_cookie(response, request, PENDING_COOKIE, sessions.seal_pending(pending), PENDING_LIFETIME_S, "lax")
        return response

    @router.get("/signed-in")
    async def finish(request: Request) -> Response:
        """Begin a session for the caller that the identity provider authenticated."""
        access: Access = request.app.state.access
        address = request.client.host if request.client is not None else ""
        value = cookie(request.scope, PENDING_COOKIE)
        try:
            if wait_s := access.failures.wait_s(address):
                raise SignInFailed(f"Too many failed logins from {address}. Begin again in {wait_s} s.", 429)
            pending = sessions.open_pending(value) if value is not None else None
            caller = await flow.finish(pending, _parameters(request))
            session = _session(sessions, caller)
        except SignInFailed as error:
            if error.is_suspicious:
                access.failures.note(address)
            _log.warning("sign-in failed", address=address, reason=str(error))
            response = _failed(error)
        else:
            _log.info("signed in", name=caller.name, role=caller.role.value, address=address)
            response = _redirect("./")
            set_cookie(response, request, COOKIE, session, CALLER_LIFETIME_S, "strict")
        set_cookie(response, request, PENDING_COOKIE, "", 0, "lax")
        return response

    return router


def _parameters(request: Request) -> dict[str, str]:
    """Return the parameters of an authorization response; none may be repeated (RFC 6749, 3.1)."""
    sent = request.query_params.multi_items()
    repeated = [name for name, count in Counter(name for name, _ in sent).items() if count > 1]
    if repeated:
        raise SignInFailed("The answer of the identity provider has a parameter twice. Begin again.")
    return dict(sent)


def _session(sessions: BrowserSessions, caller: Caller) -> str:
    try:
        return sessions.seal_caller(caller)
    except ValueError as error:
        raise SignInFailed(f"{caller.name} cannot get a session: {error}.", 403) from None


def _redirect(url: str) -> Response:
    return Response(status_code=303, headers={**HEADERS, "cache-control": "no-store", "location": url})


def _failed(error: SignInFailed) -> Response:
    content = _FAILED.format(message=escape(str(error)))
    headers = {**HEADERS, "cache-control": "no-store"}
    return Response(content, error.status, headers, media_type="text/html; charset=utf-8")

"""`/ui`: the page for operators. Its files are public; all data comes from the API, which requires a role."""

from __future__ import annotations

from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Annotated, NamedTuple

import structlog
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from adapters.store.config_store import StoreError
from control_plane.api.json_bodies import JsonBody
from control_plane.api.responses import Problem, problem_response
from control_plane.api.text_fields import Reason
from control_plane.auth.required_roles import Admin, Viewer, must_reach
from control_plane.request_model import RequestModel
from control_plane.ui.browser_sessions import COOKIE, LIFETIME_S, SESSION_STATE, BrowserSessions, Session, set_cookie
from control_plane.ui.session_revocations import SessionRevocations

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

INDEX = "index.html"
PROVIDER_PLACEHOLDER = b"{identity-provider}"

_log = structlog.get_logger(__name__)


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str


def public_routes(provider: str = "") -> APIRouter:
    """Return the router of the page's files.

    Args:
        provider: name of the identity provider at which people can sign in; empty if there is none.
    """
    router = APIRouter(prefix="/ui", include_in_schema=False)
    found = _load(provider)

    @router.get("")
    @router.get("/")
    async def index(request: Request) -> Response:
        """Return the page, whose views have addresses in the URL fragment."""
        if not request.url.path.endswith("/"):
            return Response(status_code=308, headers={"location": "/ui/"})
        return _response(found[INDEX], request)

    @router.get("/{name}")
    async def file(name: str, request: Request) -> Response:
        """Return a file of the page."""
        if name not in found:
            raise Problem(404, f"the page has no file {name!r}")
        return _response(found[name], request)

    return router


class RevokeSessions(RequestModel):
    """The caller whose sessions end."""

    caller: str = Field(min_length=1, max_length=256, description="Name of the caller, as in the audit log.")
    reason: Reason


RevokeBody = Annotated[RevokeSessions, Depends(JsonBody(RevokeSessions).read)]


def session_routes(sessions: BrowserSessions, revocations: SessionRevocations) -> APIRouter:
    """Return the router that begins, ends and revokes sessions of browsers."""
    router = APIRouter(prefix="/v1/session", tags=["session"])

    @router.post("", status_code=204, responses={204: {"description": "The session has begun."}})
    async def sign_in(caller: Viewer, request: Request) -> Response:
        """Begin a session with the credential of the Authorization header."""
        credential = request.headers.get("authorization", "").partition(" ")[2].strip()
        if not credential:
            raise Problem(422, "a session needs an Authorization header: send an API key or a token")
        try:
            value = sessions.seal(credential, caller.name)
        except ValueError as error:
            raise Problem(422, str(error)) from None
        return _with_cookie(request, value, LIFETIME_S)

    @router.delete("", status_code=204, responses={204: {"description": "The session has ended."}})
    async def sign_out(caller: Viewer, request: Request) -> Response:
        """End the session: its cookie no longer counts, at any control plane, and the browser deletes it.

        503 if the store does not answer: the cookie no longer counts at this control plane until it restarts.
        """
        session = getattr(request.state, SESSION_STATE, None)
        response = _with_cookie(request, "", 0)
        if isinstance(session, Session):
            try:
                await revocations.revoke(session)
            except StoreError as error:
                _log.warning("sign-out not stored", caller=caller.name, reason=str(error))
                detail = "this browser is signed out; a copy of its cookie counts again if the control plane restarts"
                cookies = {"set-cookie": response.headers["set-cookie"], "cache-control": "no-store"}
                return problem_response(503, detail, cookies)
        return response

    @router.post("/revocations", status_code=204, responses={204: {"description": "The sessions have ended."}})
    async def revoke(caller: Admin, body: RevokeBody) -> Response:
        """End every session of a caller, at every control plane.

        For a person who lost a group or an account at the identity provider. The person can sign in again if the
        provider still gives a role. Sessions of API keys also end when the key is removed.
        """
        must_reach(caller, None)
        await revocations.revoke_all(caller, body.caller, body.reason)
        return Response(status_code=204)

    return router


def _with_cookie(request: Request, value: str, max_age_s: int) -> Response:
    response = Response(status_code=204, headers={"cache-control": "no-store"})
    set_cookie(response, request, COOKIE, value, max_age_s, "strict")
    return response


def _load(provider: str) -> dict[str, _File]:
    found = {}
    for entry in files("control_plane.ui").joinpath("static").iterdir():
        media_type = MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            content = entry.read_bytes()
            if entry.name == INDEX:
                content = content.replace(PROVIDER_PLACEHOLDER, escape(provider).encode())
            found[entry.name] = _File(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')
    return found


def _response(file: _File, request: Request) -> Response:
    headers = {**HEADERS, "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)

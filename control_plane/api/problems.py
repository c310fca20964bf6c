"""Errors of the HTTP API as problem details (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from adapters.store.claim import ClaimLost
from adapters.store.config_store import StoreError
from control_plane.audit.audit_log import ChangeRefused

JSON = "application/json"
MEDIA_TYPE = "application/problem+json"

STORE_RETRY_S = 2
"""When (s) to try again what the store could not be reached for."""

_log = structlog.get_logger(__name__)


class Problem(HTTPException):
    """Raise it anywhere below a route to refuse the request.

    Args:
        status: of the response.
        detail: what is wrong and what to do about it, for people.
        headers: of the response.
        members: extension members of the problem, for programs.
    """

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None, **members: Any) -> None:
        super().__init__(status, detail, headers)
        self.members = members


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **members: Any) -> Response:
    """A response that says what is wrong; `members` are extension members of the problem."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **members}
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Let every error of `app` be told as problem details, and no defect with its traceback."""

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> Response:
        members = error.members if isinstance(error, Problem) else {}
        return problem(error.status_code, str(error.detail), dict(error.headers or {}), **members)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if any(one["loc"] == ("body",) for one in found) and await request.body() and kind != JSON:
            sent = f"what is sent is called {kind[:64]}" if kind else "nothing says what is sent"
            return problem(415, f"{sent}: send JSON, with `content-type: {JSON}`")
        errors = [_told(one) for one in found]
        told = "; ".join(f"{one['field']}: {one['problem']}" for one in errors[:3])
        return problem(422, told or "the request is malformed", errors=errors)

    @app.exception_handler(ChangeRefused)
    async def overtaken(request: Request, error: ChangeRefused) -> Response:
        return problem(412, f"{error}: somebody changed it at the same time; look again")

    @app.exception_handler(ClaimLost)
    async def repeated(request: Request, error: ClaimLost) -> Response:
        return problem(409, f"nothing was changed: {error}", {"retry-after": "1"})

    @app.exception_handler(StoreError)
    async def store_away(request: Request, error: StoreError) -> Response:
        _log.warning("the store failed a request", method=request.method, path=request.url.path, reason=str(error))
        detail = "the store did not answer; if this was a change, look whether it was made before you try again"
        return problem(503, detail, {"retry-after": str(STORE_RETRY_S)})

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        _log.error("request failed", method=request.method, path=request.url.path, exc_info=error)
        return problem(500, "a defect in the control plane; its log has more")


def _told(error: dict[str, Any]) -> dict[str, str]:
    if error["type"] == "json_invalid":
        place = f"at character {error['loc'][-1]}"
        return {"field": "body", "problem": f"is not JSON: {error.get('ctx', {}).get('error', 'broken off')} {place}"}
    return {"field": _place(error["loc"]), "problem": error["msg"]}


def _place(location: tuple[str | int, ...]) -> str:
    """Where in the request, as people write it: `body.regions[1]`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text

"""Responses of the HTTP API: structs as JSON, and errors as problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from adapters.store.config_store import StoreError
from control_plane.api.body_decoding import error_detail, field_error
from control_plane.api.serving.api_threads import in_api_thread
from control_plane.audit.audit_log import ChangeRefused

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"

MAX_ERRORS = 20
"""Maximum number of errors in a response."""

MAX_DETAIL_CHARS = 4_000
"""Maximum length (characters) of `detail`."""

MAX_ERROR_CHARS = 500
"""Maximum length (characters) of a field or problem of an error."""

STORE_RETRY_S = 2
"""Retry-After (s) of the response to a request that failed because the store did not respond."""

_log = structlog.get_logger(__name__)


class Problem(HTTPException):
    """Raised anywhere below a route to refuse the request with problem details.

    Args:
        status: HTTP status code of the response.
        detail: the error, and the remedy.
        headers: headers of the response.
        members: extension members of the problem, for programs.
    """

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None, **members: Any) -> None:
        super().__init__(status, detail, headers)
        self.members = members

    def response(self) -> Response:
        """Return the response."""
        return problem_response(self.status_code, str(self.detail), dict(self.headers or {}), **self.members)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with `value`, a struct or anything else that msgspec encodes, as JSON."""
    return Response(msgspec.json.encode(value), status, headers, JSON)


async def large_response(value: Callable[[], Any]) -> Response:
    """Return a response with a value whose size grows with the fleet: made and encoded in a thread.

    Args:
        value: returns the value; reads only what does not change.
    """
    return await in_api_thread(lambda: json_response(value()))


def problem_response(status: int, detail: str, headers: dict[str, str] | None = None, **members: Any) -> Response:
    """Return a response with problem details; `members` are extension members.

    Errors may contain parts of the request: their number and length are bounded, and what is not Unicode is replaced.
    """
    detail = _bounded(detail, MAX_DETAIL_CHARS)
    if errors := members.get("errors"):
        shown = [
            {name: _bounded(text, MAX_ERROR_CHARS) for name, text in error.items()} for error in errors[:MAX_ERRORS]
        ]
        members["errors"] = shown
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **members}
    return Response(msgspec.json.encode(body), status, headers, PROBLEM_JSON)


def install_error_handlers(app: FastAPI) -> None:
    """Make `app` answer every error with problem details, and unexpected errors without a traceback."""

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> Response:
        if isinstance(error, Problem):
            return error.response()
        return problem_response(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        errors = [field_error(flaw) for flaw in error.errors()]
        return problem_response(422, error_detail(errors) or "the request is malformed", errors=errors)

    @app.exception_handler(ChangeRefused)
    async def concurrent_change(request: Request, error: ChangeRefused) -> Response:
        return problem_response(412, f"{error}: it was changed concurrently; read it again")

    @app.exception_handler(StoreError)
    async def store_unavailable(request: Request, error: StoreError) -> Response:
        _log.warning("request failed: store error", method=request.method, path=request.url.path, reason=str(error))
        detail = "the store did not answer; before you repeat a change, check whether it was made"
        return problem_response(503, detail, {"retry-after": str(STORE_RETRY_S)})

    @app.exception_handler(ClientDisconnect)
    async def disconnected(request: Request, error: ClientDisconnect) -> Response:
        _log.debug("the client disconnected during its request", method=request.method, path=request.url.path)
        # The server discards the response.
        return problem_response(400, "the client disconnected before the body was complete")

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        _log.error("request failed", method=request.method, path=request.url.path, exc_info=error)
        return problem_response(500, "internal error in the control plane; see its log")


def _bounded(text: str, max_chars: int) -> str:
    cut = text if len(text) <= max_chars else f"{text[:max_chars]}..."
    return cut.encode("utf-8", "replace").decode()

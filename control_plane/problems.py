"""Errors of the HTTP API as problem details (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

MEDIA_TYPE = "application/problem+json"

_log = structlog.get_logger(__name__)


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **members: Any) -> Response:
    """A response that says what is wrong; `members` are extension members of the problem."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **members}
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Let every error of `app` be told as problem details, and no defect with its traceback."""

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        _log.error("request failed", method=request.method, path=request.url.path, exc_info=error)
        return problem(500, "a defect in the control plane; its log has more")

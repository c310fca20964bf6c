"""The HTTP API: reports in, status and plans out, health and metrics for whoever looks after the process."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from control_plane import problems
from control_plane.admin_token import AdminToken
from control_plane.daemon import ControlPlane
from control_plane.intake import LARGEST_REPORT_BYTES, SIGNATURE_HEADER, ReportRefused
from control_plane.metrics import CONTENT_TYPE

BODY_TIMEOUT_S = 5.0
"""How long (s) a client may take to send a report."""

JSON = "application/json"


def create_app(control_plane: ControlPlane, token: AdminToken) -> FastAPI:
    """The API of one control plane; everything that tells of the fleet asks for `token`."""
    app = FastAPI(title="Penstock control plane", docs_url=None, redoc_url=None, openapi_url=None)
    problems.install(app)

    async def operator(request: Request) -> None:
        if not token.allows(request.headers.get("authorization")):
            headers = {"www-authenticate": "Bearer"}
            raise HTTPException(401, "send the admin token as `Authorization: Bearer <token>`", headers)

    @app.post("/v1/reports")
    async def take_report(request: Request) -> Response:
        body = await _bounded_body(request)
        try:
            receipt = control_plane.intake.receive(body, request.headers.get(SIGNATURE_HEADER, ""))
        except ReportRefused as refused:
            return problems.problem(refused.status, str(refused))
        return Response(msgspec.json.encode(receipt), 202, media_type=JSON)

    @app.get("/v1/status", dependencies=[Depends(operator)])
    async def status() -> Response:
        return Response(msgspec.json.encode(control_plane.status()), media_type=JSON)

    @app.get("/v1/plans/current", dependencies=[Depends(operator)])
    async def current_plans() -> Response:
        return Response(msgspec.json.encode(control_plane.plans), media_type=JSON)

    @app.get("/livez")
    async def alive() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz")
    async def ready() -> Response:
        reasons = control_plane.not_ready()
        if reasons:
            return problems.problem(503, "; ".join(reasons), reasons=reasons)
        refused = list(control_plane.policies.refused)
        return Response(msgspec.json.encode({"ready": True, "policy_refused": refused}), media_type=JSON)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(control_plane.metrics.render(), media_type=CONTENT_TYPE)

    return app


async def _bounded_body(request: Request) -> bytes:
    """The body, unless it is larger or slower than a report may be."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > LARGEST_REPORT_BYTES:
                    raise HTTPException(413, f"a report has at most {LARGEST_REPORT_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {BODY_TIMEOUT_S} s") from None
    return bytes(body)

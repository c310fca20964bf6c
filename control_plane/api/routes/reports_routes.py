"""POST /v1/reports: agents' reports in. Signed with the fleet's key, so no caller is asked for."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.problems import Problem
from control_plane.daemon import ControlPlane
from control_plane.planning.report_intake import MAX_REPORT_BYTES, SIGNATURE_HEADER, Receipt, ReportRefused

BODY_TIMEOUT_S = 5.0
"""How long (s) a client may take to send a report."""


def routes(control_plane: ControlPlane) -> APIRouter:
    """Takes reports."""
    router = APIRouter(tags=["agents"])

    @router.post(
        "/v1/reports",
        status_code=202,
        responses=gives(Receipt, "Taken in; who leads.", status=202),
        openapi_extra={"requestBody": {"required": True, "content": {"application/msgpack": {"schema": {}}}}},
    )
    async def take(request: Request) -> Response:
        """Take in an agent's report.

        MessagePack, with its signature by the fleet's key in `x-penstock-signature`. Agents alone can make one.
        """
        body = await _bounded_body(request)
        try:
            receipt = control_plane.intake.receive(body, request.headers.get(SIGNATURE_HEADER, ""))
        except ReportRefused as refused:
            raise Problem(refused.status, str(refused)) from None
        return answer(receipt, 202)

    return router


async def _bounded_body(request: Request) -> bytes:
    """The body, unless it is larger or slower than a report may be."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_REPORT_BYTES:
                    raise Problem(413, f"a report has at most {MAX_REPORT_BYTES} bytes")
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {BODY_TIMEOUT_S} s") from None
    return bytes(body)

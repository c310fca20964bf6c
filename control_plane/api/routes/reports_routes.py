"""Receives agents' reports, and returns the certificate that agents need first. Reports are signed: no caller is
required."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from control_plane.api.json_bodies import MAX_BODY
from control_plane.api.openapi import returns
from control_plane.api.responses import Problem, json_response
from control_plane.planning.internal_metrics import InternalMetrics
from control_plane.planning.report_intake import MAX_REPORT_BYTES, ReportIntake, ReportReceipt, ReportRefused
from penstock.wire import identity, signed_report
from penstock.wire.identity import encode_certificate
from penstock.wire.peer_keys import Keyring

BODY_TIMEOUT_S = 5.0
"""Maximum time (s) to receive the body of a report."""


def routes(intake: ReportIntake, keyring: Keyring, metrics: InternalMetrics) -> APIRouter:
    """Return the router of reports."""
    router = APIRouter(tags=["agents"])

    @router.post(
        signed_report.PATH,
        status_code=202,
        responses=returns(ReportReceipt, "The report was accepted; names the leader.", status=202),
        openapi_extra={
            MAX_BODY: MAX_REPORT_BYTES,
            "requestBody": {"required": True, "content": {"application/msgpack": {"schema": {}}}},
        },
    )
    async def take(request: Request) -> Response:
        """Receive an agent's report.

        The body is MessagePack. `x-penstock-certificate` is the certificate of the agent, `content-digest` the digest
        of the body (RFC 9530, sha-256), and `x-penstock-signature` the signature of that header for this control
        plane. The body is read only if the signature is valid.
        """
        with metrics.receiving_report():
            try:
                receipt = intake.receive(intake.accept_head(request.headers), await read_signed_body(request))
            except ReportRefused as refused:
                raise Problem(refused.status, str(refused)) from None
            return json_response(receipt, 202)

    @router.get(identity.PATH, response_class=PlainTextResponse)
    async def certificate() -> PlainTextResponse:
        """Return the certificate (DER in base64) of this control plane, which agents and control planes verify."""
        return PlainTextResponse(encode_certificate(keyring.identity.peer.certificate))

    return router


async def read_signed_body(request: Request, max_bytes: int = MAX_REPORT_BYTES) -> bytes:
    """Return the body; raises 413 and 408 if it is larger or slower than the limits."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise Problem(413, f"the body is larger than {max_bytes} bytes")
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {BODY_TIMEOUT_S} s") from None
    return bytes(body)

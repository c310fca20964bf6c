"""Exchanges of budgets with agents. They are signed: no caller is required."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from control_plane.api.json_bodies import MAX_BODY
from control_plane.api.responses import Problem
from control_plane.api.routes.reports_routes import read_signed_body
from control_plane.planning.report_intake import ReportIntake
from control_plane.tenants.budget_leader import MAX_EXCHANGE_BYTES, BudgetLeader, ExchangeRefused
from penstock.wire import budget_exchange
from penstock.wire.identity import BadIdentity
from penstock.wire.peer_keys import BadSignature, Purpose

_PACKED: dict[str, Any] = {"content": {"application/msgpack": {"schema": {}}}}


def routes(leader: BudgetLeader, intake: ReportIntake) -> APIRouter:
    """Return the router of exchanges."""
    router = APIRouter(tags=["agents"])

    @router.post(
        budget_exchange.PATH,
        responses={200: {"description": "The leases, signed for the agent."} | _PACKED},
        openapi_extra={MAX_BODY: MAX_EXCHANGE_BYTES, "requestBody": {"required": True} | _PACKED},
    )
    async def exchange(request: Request) -> Response:
        """Receive what an agent uses of budgets, and return leases.

        Signed as a report is, for this kind of message. The answer, MessagePack behind its signature and a line feed,
        is signed together with the digest of the request. Only the leader answers; without news it may do so later.
        """
        try:
            head = intake.authenticate(request.headers, Purpose.BUDGET_USES)
            content = await leader.exchange(head, await read_signed_body(request, MAX_EXCHANGE_BYTES))
        except (BadIdentity, BadSignature) as error:
            raise Problem(401, str(error)) from None
        except ExchangeRefused as refused:
            raise Problem(refused.status, str(refused)) from None
        return Response(content, media_type="application/octet-stream")

    return router

"""GET /v1/audit: every change, who made it and why; newest first in pages, or all of it as JSON lines to verify."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.pagination import USUAL_LIMIT, Limit, Page
from control_plane.audit.audit_chain import AuditEntry, AuditHead
from control_plane.audit.audit_log import AuditLog
from control_plane.auth.required_roles import Viewer

JSON_LINES = "application/x-ndjson"

Before = Annotated[
    str | None,
    Query(pattern=r"^[0-9]{1,15}$", description="`next_cursor` of the page before; without one, the newest come."),
]


class AuditPage(Page[AuditEntry], frozen=True):
    """Some entries, newest first."""

    head: AuditHead
    """The end of the chain: keep it, and a later export must hold it."""


def routes(audit: AuditLog) -> APIRouter:
    """Shows the audit log."""
    router = APIRouter(prefix="/v1/audit", tags=["audit"])

    @router.get("", responses=gives(AuditPage, "A page of entries."))
    async def page(caller: Viewer, cursor: Before = None, limit: Limit = USUAL_LIMIT) -> Response:
        """The changes, newest first."""
        head = await audit.head()
        last = min(head.seq, int(cursor) - 1) if cursor is not None else head.seq
        first = max(1, last - limit + 1)
        entries = await audit.page(first, last) if last > 0 else []
        more = str(first) if first > 1 else None
        return answer(AuditPage(tuple(reversed(entries)), more, head))

    @router.get("/export", responses=gives(str, "One JSON object a line.", media_type=JSON_LINES))
    async def export(caller: Viewer) -> Response:
        """Every change, oldest first, as JSON lines: what `penstock audit verify` reads."""
        last = (await audit.head()).seq

        async def lines() -> AsyncIterator[bytes]:
            async for entry in audit.entries(last=last):
                yield msgspec.json.encode(entry, order="sorted") + b"\n"

        return StreamingResponse(lines(), media_type=JSON_LINES)

    return router

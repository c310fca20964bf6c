"""GET /v1/audit: every change, who made it and why; newest first in pages, or all of it as JSON lines to verify."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from control_plane.access.required import Viewer
from control_plane.api.answers import answer
from control_plane.api.openapi import gives
from control_plane.api.pages import USUAL_LIMIT, Cursor, Limit, Page, from_cursor, to_cursor
from control_plane.audit.chain import AuditEntry, AuditHead
from control_plane.audit.log import AuditLog
from control_plane.problems import Problem

JSON_LINES = "application/x-ndjson"


class AuditPage(Page[AuditEntry], frozen=True):
    """Some entries, newest first."""

    head: AuditHead
    """The end of the chain: keep it, and a later export must hold it."""


def routes(audit: AuditLog) -> APIRouter:
    """Shows the audit log."""
    router = APIRouter(prefix="/v1/audit", tags=["audit"])

    @router.get("", responses=gives(AuditPage, "A page of entries."))
    async def page(caller: Viewer, cursor: Cursor = None, limit: Limit = USUAL_LIMIT) -> Response:
        """The changes, newest first."""
        head = await audit.head()
        last = min(head.seq, _before(cursor)) if cursor is not None else head.seq
        first = max(1, last - limit + 1)
        entries = await audit.page(first, last) if last > 0 else []
        more = to_cursor(str(first)) if first > 1 else None
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


def _before(cursor: str) -> int:
    """The number of the newest entry after a cursor."""
    seq = from_cursor(cursor)
    if not seq.isascii() or not seq.isdecimal() or len(seq) > 15:
        raise Problem(422, "cursor: not one that a page of the audit log gave; begin without")
    return int(seq) - 1

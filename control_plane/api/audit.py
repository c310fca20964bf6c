"""GET /v1/audit: every change, who made it and why; newest first in pages, or all of it as JSON lines to verify."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from control_plane.access.required import Viewer
from control_plane.api.answers import answer
from control_plane.audit.chain import AuditEntry, AuditHead
from control_plane.audit.log import AuditLog

JSON_LINES = "application/x-ndjson"


class AuditPage(msgspec.Struct, frozen=True):
    """Some entries, newest first."""

    items: tuple[AuditEntry, ...]
    next_cursor: str | None
    """Give it as `cursor` for the entries before these; None: there are none."""
    head: AuditHead
    """The end of the chain: keep it, and a later export must hold it."""


def routes(audit: AuditLog) -> APIRouter:
    """Shows the audit log."""
    router = APIRouter(prefix="/v1/audit", tags=["audit"])

    @router.get("")
    async def page(
        caller: Viewer,
        cursor: Annotated[str | None, Query(pattern=r"^[0-9]{1,15}$", description="`next_cursor` of a page")] = None,
        limit: Annotated[int, Query(ge=1, le=500, description="entries in a page")] = 50,
    ) -> Response:
        """A page of entries, newest first."""
        head = await audit.head()
        last = min(head.seq, int(cursor) - 1) if cursor is not None else head.seq
        first = max(1, last - limit + 1)
        entries = await audit.page(first, last) if last > 0 else []
        more = str(first) if first > 1 else None
        return answer(AuditPage(tuple(reversed(entries)), more, head))

    @router.get("/export", response_class=StreamingResponse)
    async def export(caller: Viewer) -> Response:
        """Every entry, oldest first, one JSON object a line: what `penstock audit verify` reads."""
        last = (await audit.head()).seq

        async def lines() -> AsyncIterator[bytes]:
            async for entry in audit.entries(last=last):
                yield msgspec.json.encode(entry, order="sorted") + b"\n"

        return StreamingResponse(lines(), media_type=JSON_LINES)

    return router

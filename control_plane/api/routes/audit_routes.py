"""`/v1/audit`: the audit log, newest first in pages, or whole as JSON lines for verification."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Limit
from control_plane.api.responses import large_response
from control_plane.audit.audit_log import AuditLog
from control_plane.auth.required_roles import Viewer
from control_plane.page import Page
from penstock.log_chains.audit_log_chain import AuditEntry, AuditHead, ChainFault

JSON_LINES = "application/x-ndjson"

Before = Annotated[
    str | None,
    Query(pattern=r"^[0-9]{1,15}$", description="`next_cursor` of the previous page. Default: the newest entries."),
]


class AuditPage(Page[AuditEntry], frozen=True):
    """A page of audit entries, newest first."""

    head: AuditHead
    """Last entry of the chain. Keep a copy: every later export must contain this entry."""
    unreadable: tuple[ChainFault, ...] = ()
    """Entries of this page that cannot be decoded, or are not signed by a process of the fleet."""
    removed_up_to: int = 0
    """Number of the last entry that was removed because of its age; 0: none was."""


def routes(audit: AuditLog) -> APIRouter:
    """Return the router of the audit log."""
    router = APIRouter(prefix="/v1/audit", tags=["audit"])

    @router.get("", responses=returns(AuditPage, "A page of entries."))
    async def page(caller: Viewer, cursor: Before = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List audit entries, newest first."""
        head = await audit.head()
        last = min(head.seq, int(cursor) - 1) if cursor is not None else head.seq
        removed, _ = await audit.removed()
        oldest = removed.removed_up_to + 1
        first = max(oldest, last - limit + 1)
        entries = await audit.page(first, last) if last >= oldest else []
        next_cursor = str(first) if first > oldest else None
        readable = tuple(entry for entry in reversed(entries) if isinstance(entry, AuditEntry))
        unreadable = tuple(entry for entry in reversed(entries) if isinstance(entry, ChainFault))
        return await large_response(lambda: AuditPage(readable, next_cursor, head, unreadable, removed.removed_up_to))

    @router.get("/export", responses=returns(str, "One JSON object per line.", media_type=JSON_LINES))
    async def export(caller: Viewer) -> Response:
        """Export the audit log, oldest entry first, as JSON lines.

        An entry that cannot be read is a line with `seq` and `problem`; if entries were removed because of their age,
        the first line has `removed_up_to`, and the `hash` of that entry. `penstock audit verify` reads this format.
        """
        last = (await audit.head()).seq

        async def lines() -> AsyncIterator[bytes]:
            async for entry in audit.entries(last=last):
                yield msgspec.json.encode(entry, order="sorted") + b"\n"

        return StreamingResponse(lines(), media_type=JSON_LINES)

    return router

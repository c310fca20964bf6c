"""A request's head that was accepted on a connection, to take the next one there by if it is the same."""

from __future__ import annotations

from typing import Final

from regional_agent.http.head_cache import RepeatedHead
from regional_agent.http.messages import NOT_FOR_ENGINES, PassingNames, Request, request_lines_onward

MAY_DIFFER: Final = frozenset(
    {b"authorization", b"content-length", b"traceparent", b"x-forwarded-for", b"x-request-id"},
)
"""Headers whose value may be another: they are read by name, each for itself, and what passes on has none of them."""

assert MAY_DIFFER <= NOT_FOR_ENGINES


class KnownRequest:
    """What was understood of a head, but for its varying values. Only of a plain request, whose body has a length."""

    __slots__ = ("_like", "_repeated")

    def __init__(
        self, raw: bytes, request: Request, names_onward: PassingNames, location_header: bytes, scheme: bytes
    ) -> None:
        """Remember a head.

        Args:
            raw: as it came.
            request: what it was understood as.
            names_onward: which of its headers pass on.
            location_header: one that does not, and differs by client; empty is none.
            scheme: of its connection.
        """
        assert request.plain
        self._repeated = RepeatedHead(raw, request.headers, MAY_DIFFER | {location_header})
        # A copy: the body of a request on its way may be replaced (`served_as.py`), and its length with it.
        self._like = Request(request)
        self._like.passing = request_lines_onward(request, names_onward, scheme, request.authority)

    def again(self, data: bytes) -> tuple[Request, int] | None:
        """The request whose head `data` begins with, and where its body begins; None where it is another head."""
        raw = self._repeated.raw
        if data.startswith(raw):
            return Request(self._like), len(raw)
        found = self._repeated.again(data)
        if found is None:
            return None
        request = Request(self._like)
        request.headers, request.by_name, body_at = found
        request.length = int(request.by_name.get(b"content-length") or 0)
        return request, body_at

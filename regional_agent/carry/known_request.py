"""A request's head that was accepted on a connection, to take the next one there by if it is the same."""

from __future__ import annotations

from regional_agent.carry.messages import NOT_FOR_ENGINES, PassingNames, Request, request_lines_onward
from regional_agent.carry.repeated_head import RepeatedHead

MAY_DIFFER = frozenset(
    {b"authorization", b"content-length", b"traceparent", b"x-forwarded-for", b"x-request-id"},
)
"""Headers whose value may be another: they are read by name, each for itself, and what passes on has none of them."""

assert MAY_DIFFER <= NOT_FOR_ENGINES


class KnownRequest:
    """What was understood of a head, but for its varying values. Only of a plain request, whose body has a length."""

    __slots__ = (
        "_authority",
        "_by_name",
        "_headers",
        "_http_1_0",
        "_keep_alive",
        "_length",
        "_method",
        "_passing",
        "_path",
        "_repeated",
        "_repeats",
        "_target",
    )

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
        self._method = request.method
        self._target = request.target
        self._path = request.path
        self._authority = request.authority
        self._headers = request.headers
        self._by_name = request.by_name
        self._repeats = request.repeats
        self._keep_alive = request.keep_alive
        self._http_1_0 = request.http_1_0
        self._length = request.length or 0
        self._passing = request_lines_onward(request, names_onward, scheme, request.authority)

    def again(self, data: bytes) -> tuple[Request, int] | None:
        """The request whose head `data` begins with, and where its body begins; None where it is another head."""
        headers, by_name, length, raw = self._headers, self._by_name, self._length, self._repeated.raw
        if data.startswith(raw):
            body_at = len(raw)
        else:
            found = self._repeated.again(data)
            if found is None:
                return None
            headers, by_name, body_at = found
            length = int(by_name.get(b"content-length") or 0)
        request = Request()
        request.method = self._method
        request.target = self._target
        request.path = self._path
        request.authority = self._authority
        request.headers = headers
        request.by_name = by_name
        request.repeats = self._repeats
        request.plain = True
        request.keep_alive = self._keep_alive
        request.http_1_0 = self._http_1_0
        request.length = length
        request.passing = self._passing
        return request, body_at

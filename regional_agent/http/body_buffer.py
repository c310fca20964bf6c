"""Large bodies that are kept so that their requests can be sent again: of all connections of a listener, bounded."""

from __future__ import annotations

from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request


class KeptBodies:
    """What they take together."""

    __slots__ = ("_limits", "bytes_kept")

    def __init__(self, limits: Limits) -> None:
        """Nothing is kept."""
        self._limits = limits
        self.bytes_kept = 0

    def may_keep(self, more_bytes: int) -> bool:
        """Whether this much more of a large body may be kept."""
        return self.bytes_kept + more_bytes <= self._limits.max_kept_bytes

    def fits(self, request: Request, chunk: bytes) -> bool:
        """Whether more of a body may be kept, by what is kept of it and of all."""
        return len(request.body) + len(chunk) <= self._limits.kept_body_bytes and self.may_keep(len(chunk))

    def keep(self, request: Request, chunk: bytes) -> None:
        """Keep more of a body."""
        request.body = chunk if not request.body else joined(request.body, chunk)
        request.kept_bytes += len(chunk)
        self.bytes_kept += len(chunk)

    def forget(self, request: Request) -> None:
        """Drop what is kept of a body whose beginning has been passed on: it cannot be sent again."""
        self.let_go(request)
        request.body, request.forgotten = b"", True

    def let_go(self, request: Request) -> None:
        """What was kept of a body is needed no more."""
        self.bytes_kept -= request.kept_bytes
        request.kept_bytes = 0


def joined(body: bytes | bytearray, chunk: bytes) -> bytearray:
    """A body with more of it; what has been joined before grows in place."""
    if isinstance(body, bytearray):
        body += chunk
        return body
    return bytearray(body) + chunk

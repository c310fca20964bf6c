"""What the connections of one listener share: settings, the write batch, the drain flag, and the body memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from regional_agent.http.disconnect_watcher import DisconnectWatcher
from regional_agent.http.header_rules import NOT_FOR_ENGINES, TO_ENGINE, HeaderFilter
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request
from regional_agent.http.write_batcher import WriteBatcher


class ListenerState:
    """Shared by all connections of one listener."""

    __slots__ = (
        "batcher",
        "bodies",
        "clock",
        "disconnects",
        "draining",
        "draining_since",
        "limits",
        "location_header",
        "secure",
        "to_upstream",
        "trusts",
    )

    def __init__(self, limits: Limits, trusts: Callable[[str], bool], location_header: bytes, *, secure: bool) -> None:
        """Create the state of a listener that accepts connections.

        Args:
            trusts: whether an address is a trusted proxy.
            location_header: name, in lower case, of the header in which trusted proxies send a client's location. It
                is never sent upstream. Empty is none.
            secure: whether the listener uses TLS.
        """
        self.limits = limits
        self.trusts = trusts
        self.location_header = location_header
        self.to_upstream = HeaderFilter(NOT_FOR_ENGINES | {location_header}) if location_header else TO_ENGINE
        """The request headers that are sent upstream."""
        self.secure = secure
        self.clock = asyncio.get_running_loop().time
        self.bodies = KeptBodies(limits)
        self.disconnects = DisconnectWatcher()
        self.batcher = WriteBatcher()
        self.draining = False
        self.draining_since = 0.0


class KeptBodies:
    """The memory that large request bodies take while they are kept, so that their requests can be sent again."""

    __slots__ = ("_limits", "bytes_kept")

    def __init__(self, limits: Limits) -> None:
        """Keep nothing yet."""
        self._limits = limits
        self.bytes_kept = 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` more may be kept, of all bodies together."""
        return self.bytes_kept + size_bytes <= self._limits.max_kept_bytes

    def fits(self, request: Request, chunk: bytes) -> bool:
        """Whether `chunk` may be kept, by the limits for one body and for all."""
        return len(request.body) + len(chunk) <= self._limits.kept_body_bytes and self.has_room(len(chunk))

    def keep(self, request: Request, chunk: bytes) -> None:
        """Append `chunk` to the kept body."""
        request.body = chunk if not request.body else joined(request.body, chunk)
        request.kept_bytes += len(chunk)
        self.bytes_kept += len(chunk)

    def drop(self, request: Request) -> None:
        """Drop the kept part of a body that has been sent upstream; the request cannot be sent again."""
        self.release(request)
        request.body, request.body_dropped = b"", True

    def release(self, request: Request) -> None:
        """Stop counting the memory of a body. Called when its request ends."""
        self.bytes_kept -= request.kept_bytes
        request.kept_bytes = 0


def joined(body: bytes | bytearray, chunk: bytes) -> bytearray:
    """`body` followed by `chunk`. A bytearray grows in place."""
    if isinstance(body, bytearray):
        body += chunk
        return body
    return bytearray(body) + chunk

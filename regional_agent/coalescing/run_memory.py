"""Bounds what large shared and kept responses hold until their clients have received them.

A client that reads slowly holds a piece of a response in its connection. The rest is held once for all clients of a
run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request
from regional_agent.jobs.api.api_responses import Answer, Content, Refuse, WaitingResponse

PIECE_BYTES: Final = 256 * 1024
"""Bytes of a response that are written at once to a client, and that count in no bound."""

MAX_HELD_BYTES: Final = 256 * 1024 * 1024
"""Maximum size (bytes) of the responses of all runs of an agent, without the first PIECE_BYTES of each."""

MAX_TENANT_BYTES: Final = 64 * 1024 * 1024
"""The same of the runs of one tenant, so that its slow clients leave room for others."""


class RunMemory:
    """What the runs of one agent hold, by the tenant that sent the first request."""

    def __init__(self) -> None:
        """Start without a run."""
        self.by_tenant: Counter[str] = Counter()

    def hold(self, tenant: str, size_bytes: int) -> bool:
        """Count further bytes; returns False if they are too many."""
        self.by_tenant[tenant] += size_bytes
        return self.by_tenant[tenant] <= MAX_TENANT_BYTES and self.by_tenant.total() <= MAX_HELD_BYTES

    def free(self, tenant: str, size_bytes: int) -> None:
        """Count bytes no longer."""
        self.by_tenant[tenant] -= size_bytes
        if not self.by_tenant[tenant]:
            del self.by_tenant[tenant]


class RunHold:
    """What one run holds: until it has ended, and each of its clients has received the response or left."""

    def __init__(self, memory: RunMemory, tenant: str) -> None:
        """Hold nothing yet, for the run itself."""
        self._memory = memory
        self._tenant = tenant
        self._users = 1
        self._received_bytes = self._held_bytes = 0

    def received(self, size_bytes: int) -> bool:
        """Count a further part of the response; returns False if the runs hold too much."""
        self._received_bytes += size_bytes
        further = max(0, self._received_bytes - PIECE_BYTES) - self._held_bytes
        if not further:
            return True
        self._held_bytes += further
        return self._memory.hold(self._tenant, further)

    def again(self) -> None:
        """Drop what was received: the run is repeated, or has ended."""
        if self._held_bytes:
            self._memory.free(self._tenant, self._held_bytes)
        self._received_bytes = self._held_bytes = 0

    def use(self) -> None:
        """Hold the response for a further client."""
        self._users += 1

    def release(self) -> None:
        """Hold the response no longer for a client, or for the run."""
        self._users -= 1
        if not self._users:
            self.again()


def in_pieces(
    request: Request, connection: ClientConnection, refuse: Refuse, status: int, lines: list[bytes], body: bytes
) -> WaitingResponse | None:
    """Send a response; returns the handler of the request if it is sent as the client reads it."""
    if len(body) <= PIECE_BYTES:
        connection.respond(status, lines, body)
        return None

    async def answer() -> Answer:
        return Content(len(body), _pieces(body), tuple(lines), status)

    return WaitingResponse(request, connection, refuse, answer())


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]

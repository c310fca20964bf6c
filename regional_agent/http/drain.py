"""The end of an agent's listeners: hand over the ports, complete requests, and end those that take too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from regional_agent.http.listen_port import HANDSHAKE_S

FLUSH_S = 5.0
"""Maximum time (s) in which clients receive the last bytes of responses that are ended."""


class Drainable(Protocol):
    """A port on which the agent serves requests."""

    def hand_over(self) -> None:
        """Steer new connections to the other process that listens on the port."""

    def stop_accepting(self) -> None:
        """Accept no connections, and finish requests."""

    def refuse_uploads(self) -> None:
        """Refuse the requests whose bodies are still arriving and that no handler has received."""

    async def wait_drained(self, grace_s: float) -> bool:
        """Wait up to `grace_s` (s) until all requests have ended; returns whether they have."""

    async def drain(self, grace_s: float) -> int:
        """Wait up to `grace_s` (s) until all requests have ended, then abort open ones; returns how many."""


async def drain_all(
    listeners: Sequence[Drainable],
    grace_s: float,
    end_requests: Callable[[], int],
    hurry: asyncio.Event | None = None,
) -> int:
    """Hand over the ports, and wait for the requests; returns the number of requests and connections that were cut.

    Args:
        listeners: the listeners to close.
        grace_s: maximum time (s) for which requests continue.
        end_requests: ends the requests in progress with an error of their format; returns how many.
        hurry: ends the grace when it is set.
    """
    for listener in listeners:
        listener.hand_over()
    await asyncio.sleep(HANDSHAKE_S)
    for listener in listeners:
        listener.stop_accepting()
    ended = 0
    if not await _wait(listeners, grace_s, hurry):
        ended = end_requests()
        for listener in listeners:
            listener.refuse_uploads()
        await _wait(listeners, FLUSH_S, None)
    return ended + sum(await asyncio.gather(*(listener.drain(0.0) for listener in listeners)))


async def _wait(listeners: Sequence[Drainable], grace_s: float, hurry: asyncio.Event | None) -> bool:
    """Wait until no listener has a connection, up to `grace_s` (s) or until `hurry`; returns whether none has."""
    drained = asyncio.gather(*(listener.wait_drained(grace_s) for listener in listeners))
    if hurry is None:
        return all(await drained)
    hurried = asyncio.ensure_future(hurry.wait())
    await asyncio.wait((drained, hurried), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if drained.done():
        return all(drained.result())
    drained.cancel()
    with suppress(asyncio.CancelledError):
        await drained
    return False

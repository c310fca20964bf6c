"""Detects clients that disconnect while their connection is not being read.

Without this watcher only a read reports the end of a stream, and reading pauses while a request with an incomplete
large body is queued, or while its engine reads slowly. A client that disconnects then would keep its queue entry or
slot until reading resumes. The kernel reports the disconnect (epoll(7), EPOLLRDHUP), except where so much unread data
precedes the FIN that the receive buffer is full. On platforms without epoll the disconnect is detected when reading
resumes.
"""

from __future__ import annotations

import asyncio
import select
from contextlib import suppress
from typing import Protocol


class Watched(Protocol):
    """A connection whose reading is paused."""

    def on_disconnect(self, *, fully: bool) -> None:
        """Handle a close of the client's sending side; `fully`: of both sides."""


class DisconnectWatcher:
    """Watches the connections of one listener whose reading is paused."""

    def __init__(self) -> None:
        """Create a watcher without connections."""
        self._watched: dict[int, Watched] = {}
        self._epoll: select.epoll | None = None

    def watch(self, connection: Watched, descriptor: int) -> None:
        """Report a disconnect of `connection` until `unwatch`, including a disconnect that has already happened."""
        if self._epoll is None:
            if not hasattr(select, "epoll"):
                return
            self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._poll)
        # A transport may close its descriptor before it reports the loss of the connection; `register` then fails.
        with suppress(OSError):
            self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)
            self._watched[descriptor] = connection

    def unwatch(self, connection: Watched, descriptor: int) -> None:
        """Stop watching `connection`. A newer connection that uses the same descriptor stays watched."""
        if self._watched.get(descriptor) is connection:
            del self._watched[descriptor]
            if self._epoll is not None:
                with suppress(OSError):
                    self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Stop watching all connections."""
        epoll, self._epoll = self._epoll, None
        self._watched.clear()
        if epoll is not None:
            asyncio.get_running_loop().remove_reader(epoll.fileno())
            epoll.close()

    @property
    def watching(self) -> int:
        """Number of watched connections."""
        return len(self._watched)

    def _poll(self) -> None:
        assert self._epoll is not None
        for descriptor, events in self._epoll.poll(0):
            connection = self._watched.get(descriptor)
            if connection is not None:
                connection.on_disconnect(fully=bool(events & (select.EPOLLHUP | select.EPOLLERR)))

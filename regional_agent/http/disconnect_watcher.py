"""Notices a client that leaves while nothing is read from it: the end of a stream is seen only by whoever reads it.

Reading pauses while a request whose large body is still coming waits for room, or while its engine reads slowly. A
client that goes away then would keep its place, or its slot, until somebody reads on. The kernel knows at once, and is
asked (epoll(7), EPOLLRDHUP); but for a client that ends while more of its bytes are on their way than the kernel takes:
its end comes behind them. Elsewhere than on Linux a client that leaves is noticed when reading goes on.
"""

from __future__ import annotations

import asyncio
import select
from contextlib import suppress
from typing import Protocol


class Watched(Protocol):
    """A connection from which nothing is read now."""

    def departed(self, *, wholly: bool) -> None:
        """Its client will send no more; `wholly`: nor read."""


class Departures:
    """Watches the clients of one listener from which nothing is read now."""

    def __init__(self) -> None:
        """Watches nobody."""
        self._watched: dict[int, Watched] = {}
        self._kernel: select.epoll | None = None

    def watch(self, connection: Watched, descriptor: int) -> None:
        """Tell `connection` when its client leaves, until `forget`; soon, where it has left already."""
        if self._kernel is None:
            if not hasattr(select, "epoll"):
                return
            self._kernel = select.epoll()
            asyncio.get_running_loop().add_reader(self._kernel.fileno(), self._look)
        # A transport may have closed the descriptor before it tells of the end.
        with suppress(OSError):
            self._kernel.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)
            self._watched[descriptor] = connection

    def forget(self, connection: Watched, descriptor: int) -> None:
        """Somebody reads from `connection` again, or it has ended; then its descriptor may be another's already."""
        if self._watched.get(descriptor) is connection:
            del self._watched[descriptor]
            if self._kernel is not None:
                with suppress(OSError):
                    self._kernel.unregister(descriptor)

    def close(self) -> None:
        """Watch nobody any more."""
        kernel, self._kernel = self._kernel, None
        self._watched.clear()
        if kernel is not None:
            asyncio.get_running_loop().remove_reader(kernel.fileno())
            kernel.close()

    @property
    def watching(self) -> int:
        """How many connections are watched now."""
        return len(self._watched)

    def _look(self) -> None:
        assert self._kernel is not None
        for descriptor, events in self._kernel.poll(0):
            connection = self._watched.get(descriptor)
            if connection is not None:
                connection.departed(wholly=bool(events & (select.EPOLLHUP | select.EPOLLERR)))

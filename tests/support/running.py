"""Runs a part of a daemon for the duration of a block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar


class Part(Protocol):
    """A part that is started and stopped."""

    def start(self) -> object:
        """Start the part."""

    async def stop(self) -> None:
        """Stop the part."""


P = TypeVar("P", bound=Part)


@asynccontextmanager
async def running(part: P) -> AsyncIterator[P]:
    """Start the part, and stop it at the end of the block."""
    part.start()
    try:
        yield part
    finally:
        await part.stop()

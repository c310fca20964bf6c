"""Interface of a third-party proxy or router that is compared with an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

ROOM_FOR_STREAMS = 8_000
"""Limit of concurrent connections and requests in the configuration of every peer, high enough not to apply."""

READY_PATH = "/readyz"
"""Path to which each proxy itself responds with 200, as an agent does."""


class Launch(msgspec.Struct, frozen=True):
    """How to start one instance."""

    argv: tuple[str, ...]
    files: Mapping[str, str]
    """Content by file name, written to the directory of the instance."""
    ready_path: str
    """Path that responds with 2xx when the instance is ready."""


class Peer(Protocol):
    """A third-party proxy or router."""

    @property
    def name(self) -> str:
        """Name in the results."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Descriptions of all settings except addresses, with reasons."""

    def version(self) -> str:
        """Version that the program reports; raises MissingBinary."""

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """Return how to start an instance on a loopback port, with backends on loopback ports; raises MissingBinary."""

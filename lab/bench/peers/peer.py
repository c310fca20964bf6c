"""What it takes to be compared: a name, a program, and what it is set to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

ROOM_FOR_STREAMS = 8_000
"""Connections and requests at a time that every peer is set to allow: no limit of theirs is to be met."""

READY_PATH = "/readyz"
"""Where each proxy answers 200 by itself, as an agent does."""


class Launch(msgspec.Struct, frozen=True):
    """How to start one instance."""

    argv: tuple[str, ...]
    files: Mapping[str, str]
    """Content by name, written into the directory that the command line names."""
    ready_path: str
    """Answers 2xx once it serves."""


class Peer(Protocol):
    """Someone else's program."""

    @property
    def name(self) -> str:
        """What it is called here."""

    @property
    def settings(self) -> tuple[str, ...]:
        """What it was set to besides where to listen and send, and why, for people."""

    def program(self) -> Path:
        """Where it is installed.

        Raises:
            MissingBinary: it is not.
        """

    def version(self) -> str:
        """What it says it is; raises MissingBinary."""

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """An instance on a loopback port, in front of backends on loopback ports; raises MissingBinary."""

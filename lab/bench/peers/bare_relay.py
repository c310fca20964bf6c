"""The baseline: the minimum cost of any proxy in Python, measured in the same run as the others."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.bench.peers.peer import Launch


class BareRelay:
    """An event loop and an HTTP parser that finds message boundaries, and nothing else: not fit for deployment."""

    name = "bare-relay"
    settings = (
        "asyncio.Protocol on uvloop with httptools, as penstock; round robin, kept connections, bytes as they came",
        "no checks, bounds, deadlines, choice, metrics or log: the least that a proxy in Python costs",
    )

    def program(self) -> Path:
        """This interpreter."""
        return Path(sys.executable)

    def version(self) -> str:
        """The event loop's version: most of what runs is its code."""
        return f"uvloop {importlib.metadata.version('uvloop')}"

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """Its readiness is a backend's: it has no page of its own."""
        argv = (str(self.program()), "-m", "lab.bench.peers.relaying", str(port), *map(str, backends))
        return Launch(argv, {}, "/health")

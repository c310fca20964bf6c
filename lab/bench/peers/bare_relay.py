"""The baseline: the minimum cost of a proxy in Python, measured in the same run as the peers."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.bench.peers.peer import Launch


class BareRelay:
    """An event loop and an HTTP parser that finds message boundaries, without other functions: not for deployment."""

    name = "bare-relay"
    settings = (
        "asyncio.Protocol on uvloop with httptools, as penstock; round robin, kept connections, bytes as they came",
        "no checks, bounds, deadlines, choice, metrics or log: the least that a proxy in Python costs",
    )

    def version(self) -> str:
        """Version of the event loop, whose code accounts for most of the cost."""
        return f"uvloop {importlib.metadata.version('uvloop')}"

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """Return how to start an instance. Its readiness is that of a backend, because it has no status page."""
        argv = (sys.executable, "-m", "lab.bench.peers.relaying", str(port), *map(str, backends))
        return Launch(argv, {}, "/health")

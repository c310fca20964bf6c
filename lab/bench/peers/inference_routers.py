"""The routers of vLLM and SGLang, and SMG, written in Rust: from their wheels, with one of their routing policies."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

import msgspec

from adapters.servers.free_ports import free_ports
from adapters.servers.process import find_script
from lab.bench.peers.peer import ROOM_FOR_STREAMS, Launch

LOG_LEVEL = "error"

VLLM, SGLANG, SMG = "vllm-router", "sglang-router", "smg"
"""Distributions; their console scripts have the same names. SMG is the successor of SGLang's router."""


class RoutingPolicy(msgspec.Struct, frozen=True):
    """A routing policy of the routers, and its configuration."""

    name: str
    options: tuple[str, ...] = ()
    why: str = ""
    """Reason for the configuration, for the report."""


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
    """The router of vLLM or SGLang, or SMG, which share code and options."""

    def __init__(self, distribution: str, policy: RoutingPolicy, name: str = "") -> None:
        """Args: `name` is the name in the results; empty for the name of the distribution."""
        self.name = name or distribution
        self._distribution = distribution
        self._policy = policy
        self.settings = (
            f"{' '.join(('--policy', policy.name, *policy.options))}: {policy.why}",
            f"--max-concurrent-requests {ROOM_FOR_STREAMS}; log level {LOG_LEVEL}, metrics on, threads as it chooses",
        )

    def version(self) -> str:
        """Version of the installed distribution; raises MissingBinary."""
        find_script(self._distribution, self._distribution)
        try:
            return importlib.metadata.version(self._distribution)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """Return how to start an instance, with all settings on the command line."""
        argv = [find_script(self._distribution, self._distribution)]
        if self._distribution in (SGLANG, SMG):
            argv.append("launch")
        argv += ["--host", "127.0.0.1", "--port", str(port), "--policy", self._policy.name, *self._policy.options]
        argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_ports(1)[0])]
        argv += ["--max-concurrent-requests", str(ROOM_FOR_STREAMS), "--log-level", LOG_LEVEL]
        argv += ["--worker-startup-check-interval", "1", "--request-timeout-secs", "600"]
        argv += ["--worker-urls", *(f"http://127.0.0.1:{backend}" for backend in backends)]
        return Launch(tuple(argv), {}, "/health")


VLLM_ROUTER = InferenceRouter(VLLM, ROUND_ROBIN)
SGLANG_ROUTER = InferenceRouter(SGLANG, ROUND_ROBIN)
"""Routers with the cheapest policy, to compare the cost of forwarding a request."""

AT_THEIR_BEST = (
    InferenceRouter(SGLANG, CACHE_AWARE, "sglang-cache-aware"),
    InferenceRouter(SGLANG, POWER_OF_TWO, "sglang-power-of-two"),
    InferenceRouter(SMG, CACHE_AWARE, "smg-cache-aware"),
    InferenceRouter(VLLM, CACHE_AWARE, "vllm-cache-aware"),
    InferenceRouter(VLLM, CONSISTENT_HASH, "vllm-consistent-hash"),
)
"""Routers with the policies that balance best."""

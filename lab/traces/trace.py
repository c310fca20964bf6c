"""A request of a workload: arrival time, lengths and shared prefix."""

from __future__ import annotations

from pathlib import Path

import msgspec

BLOCK_TOKENS = 512
"""Tokens in one prefix block: the unit of Mooncake's hash_ids (Qin et al., FAST'25)."""

COMMON_MAX_TOKENS = 1024
"""`max_tokens` of every request in a workload whose answer lengths no balancer can read."""


class TraceRequest(msgspec.Struct, frozen=True):
    """One arrival of a workload."""

    at_s: float
    """Arrival time (s) since the start of the workload."""
    prompt_tokens: int
    output_tokens: int
    """Number of generated tokens."""
    prefix_blocks: tuple[int, ...] = ()
    """One id per BLOCK_TOKENS of the prompt; equal leading ids mean an equal prefix. Empty if not recorded."""
    conversation: str = ""
    """Name of the conversation of the request; empty if it was not recorded."""
    tenant: str = ""
    """Tenant of the request; empty if it was not recorded."""


class TraceError(Exception):
    """A trace is invalid; the message states the position and the remedy in one line."""

    def __init__(self, path: Path, problem: str, remedy: str, line: int | None = None, field: str = "") -> None:
        """Args: `line` counts from 1; `field` is the invalid column or key."""
        where = f"{path}, line {line}" if line is not None else f"{path}"
        what = f"{field}: {problem}" if field else problem
        super().__init__(f"{where}: {what}; {remedy}")
        self.path = path
        self.line = line
        self.field = field


def blocks_of(prompt_tokens: int) -> int:
    """Return the number of prefix blocks of a prompt; the last block may be partial."""
    return -(-prompt_tokens // BLOCK_TOKENS)

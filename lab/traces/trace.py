"""A request of a workload: arrival time, lengths and shared prefix."""

from __future__ import annotations

from pathlib import Path

import msgspec

BLOCK_TOKENS = 512
"""Tokens in one prefix block: the unit of Mooncake's hash_ids (Qin et al., FAST'25)."""


class TraceRequest(msgspec.Struct, frozen=True):
    """One arrival of a workload."""

    at_s: float
    """When it arrived, in seconds since the workload began."""
    prompt_tokens: int
    output_tokens: int
    """Tokens that were generated."""
    prefix_blocks: tuple[int, ...] = ()
    """One id per BLOCK_TOKENS of prompt; equal leading ids mean an equal prefix. Empty if it was not recorded."""
    conversation: str = ""
    """Names the conversation whose turn this is; empty if it was not recorded."""


class TraceError(Exception):
    """A trace is invalid; the message contains the position and the remedy, in one line."""

    def __init__(self, path: Path, problem: str, remedy: str, line: int | None = None, field: str = "") -> None:
        """Args: `line` counts from 1; `field` is the column or key that is wrong."""
        where = f"{path}, line {line}" if line is not None else f"{path}"
        what = f"{field}: {problem}" if field else problem
        super().__init__(f"{where}: {what}; {remedy}")
        self.path = path
        self.line = line
        self.field = field


def blocks_of(prompt_tokens: int) -> int:
    """Return the number of prefix blocks that a prompt spans; the last may be partial."""
    return -(-prompt_tokens // BLOCK_TOKENS)

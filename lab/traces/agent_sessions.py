"""Generates the sessions of agents that call tools: many turns, whose prompts grow by what the tools return."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from lab.traces.trace import BLOCK_TOKENS

SHARED_BLOCKS: Final = 6
"""Prefix blocks of the instructions and tools with which each session begins: about 3,000 tokens."""


class Turn(msgspec.Struct, frozen=True):
    """One request of a session."""

    prompt_tokens: int
    output_tokens: int
    pause_s: float
    """Time (s) from the response of the previous turn: the run of a tool, or the thoughts of a person."""
    prefix_blocks: tuple[int, ...]


class Sessions(msgspec.Struct, frozen=True):
    """Parameters of the sessions."""

    turns: tuple[int, int] = (20, 60)
    """Minimum and maximum number of turns."""
    first_tokens: tuple[int, int] = (500, 4000)
    """Minimum and maximum length (tokens) of the first question."""
    tool_log_mean: float = 6.8
    tool_log_sd: float = 0.8
    """Logarithm of the length (tokens) of what a tool returns: about 1,200 on average."""
    output_log_mean: float = 4.6
    output_log_sd: float = 0.6
    """Logarithm of the length (tokens) of an answer: about 120 on average."""
    tool_s: float = 1.5
    """Mean time (s) of a tool."""
    think_s: float = 15.0
    """Mean time (s) of a person between an answer and the next question."""
    person_part: float = 0.1
    """Part (0-1) of the turns that a person begins."""
    max_prompt_tokens: int = 100_000
    """A session ends before its prompt exceeds this length (tokens)."""


def generate_session(number: int, rng: Random, shape: Sessions | None = None) -> list[Turn]:
    """Return the turns of a session.

    Args:
        number: of the session, from 0; the blocks of its prompts are its own, beside the shared ones.
        shape: parameters; None for the defaults.
    """
    shape = shape or Sessions()
    blocks = list(range(SHARED_BLOCKS))
    next_block = SHARED_BLOCKS + number * (shape.max_prompt_tokens // BLOCK_TOKENS + 1)
    tokens = SHARED_BLOCKS * BLOCK_TOKENS + rng.randint(*shape.first_tokens)
    turns = []
    for at in range(rng.randint(*shape.turns)):
        if tokens > shape.max_prompt_tokens:
            break
        while len(blocks) < tokens // BLOCK_TOKENS:
            blocks.append(next_block)
            next_block += 1
        output_tokens = max(8, int(rng.lognormvariate(shape.output_log_mean, shape.output_log_sd)))
        mean_s = shape.think_s if rng.random() < shape.person_part else shape.tool_s
        turns.append(Turn(tokens, output_tokens, rng.expovariate(1.0 / mean_s) if at else 0.0, tuple(blocks)))
        tokens += output_tokens + int(rng.lognormvariate(shape.tool_log_mean, shape.tool_log_sd))
    return turns

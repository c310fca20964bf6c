"""Generates conversations with high prefix reuse: shared documents, and prompts that grow with each turn.

If prompts are shortened to the context of small engines, public traces with prefixes (Mooncake) reuse about a tenth of
their tokens. Assistants over documents, agents and coding tools reuse most of their tokens, as this workload does.
"""

from __future__ import annotations

from random import Random

import msgspec

from lab.traces.trace import BLOCK_TOKENS, TraceRequest

RAMP_S = 60.0
"""Time (s) before the workload at which conversations begin, so that the workload starts with later turns."""

TOKEN_S = 0.015
"""Time (s) per output token of the previous response before the next turn."""


class Conversations(msgspec.Struct, frozen=True):
    """Parameters of the conversations."""

    documents: int = 12
    """Number of shared documents. Each conversation begins with one of them."""
    document_blocks: tuple[int, ...] = (2, 4, 6, 8)
    """Lengths of documents (prefix blocks), with equal probabilities."""
    mean_turns: float = 5.0
    first_tokens: tuple[int, int] = (500, 2500)
    """Minimum and maximum length (tokens) of the first question."""
    question_tokens: tuple[int, int] = (100, 1200)
    """Minimum and maximum length (tokens) of each later question."""
    output_log_mean: float = 3.9
    output_log_sd: float = 0.8
    think_s: float = 8.0
    """Mean time (s) from a response to the next question."""
    max_prompt_tokens: int = 12_000
    """Maximum prompt length (tokens). A conversation ends before its prompt exceeds this length."""


def generate_conversations(
    duration_s: float, rate_per_s: float, rng: Random, shape: Conversations | None = None
) -> list[TraceRequest]:
    """Return the requests of conversations that begin as a Poisson process, in order of arrival.

    Args:
        duration_s: duration (s) of arrivals.
        rate_per_s: approximate rate (requests/s). Conversations that end at the maximum prompt length reduce it.
        rng: source of all randomness.
        shape: parameters of the conversations; None for the defaults.
    """
    shape = shape or Conversations()
    lengths = [rng.choice(shape.document_blocks) for _ in range(shape.documents)]
    documents: list[tuple[int, ...]] = []
    next_block = 0
    for length in lengths:
        documents.append(tuple(range(next_block, next_block + length)))
        next_block += length
    requests: list[TraceRequest] = []
    begins_at, number = -RAMP_S, 0
    while (begins_at := begins_at + rng.expovariate(rate_per_s / shape.mean_turns)) < duration_s:
        blocks = list(rng.choice(documents))
        tokens, at_s = len(blocks) * BLOCK_TOKENS + rng.randint(*shape.first_tokens), begins_at
        number += 1
        turns = 1 + int(rng.expovariate(1.0 / (shape.mean_turns - 1.0))) if shape.mean_turns > 1.0 else 1
        for _ in range(turns):
            while len(blocks) < tokens // BLOCK_TOKENS:
                blocks.append(next_block)
                next_block += 1
            output_tokens = max(8, int(rng.lognormvariate(shape.output_log_mean, shape.output_log_sd)))
            if 0.0 <= at_s < duration_s:
                requests.append(TraceRequest(at_s, tokens, output_tokens, tuple(blocks), f"c{number}"))
            at_s += output_tokens * TOKEN_S + 1.0 + rng.expovariate(1.0 / shape.think_s)
            tokens += output_tokens + rng.randint(*shape.question_tokens)
            if tokens > shape.max_prompt_tokens:
                break
    return sorted(requests, key=lambda request: request.at_s)

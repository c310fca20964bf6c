"""Truncates and scales workloads. Each function documents its effect on the arrival process."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from lab.traces.trace import TraceRequest, blocks_of


def first_seconds(trace: Sequence[TraceRequest], window_s: float) -> list[TraceRequest]:
    """Return the arrivals before `window_s` (s). The process within the window is unchanged; slower trends are lost."""
    return [request for request in trace if request.at_s < window_s]


def compress_time(trace: Sequence[TraceRequest], factor: float) -> list[TraceRequest]:
    """Divide all arrival times by `factor`.

    The rate is multiplied by `factor`. Counts per scaled window keep their distribution, so relative burstiness is
    preserved. All correlation times are divided by `factor`: bursts, pauses between turns, and trends.
    """
    if factor <= 0:
        raise ValueError(f"factor must be positive, not {factor}")
    return [msgspec.structs.replace(request, at_s=request.at_s / factor) for request in trace]


def thin(trace: Sequence[TraceRequest], keep: float, rng: Random) -> list[TraceRequest]:
    """Keep each arrival with probability `keep` (0-1], independently.

    The rate is multiplied by `keep`, and time scales are preserved. The process approaches Poisson: the excess of the
    index of dispersion over 1 is multiplied by `keep` (Daley & Vere-Jones, section 11.3). Fewer requests share a
    prefix, so the maximum cache hit ratio decreases.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], not {keep}")
    return [request for request in trace if rng.random() < keep]


def superpose(trace: Sequence[TraceRequest], copies: int, period_s: float, rng: Random) -> list[TraceRequest]:
    """Superpose `copies` of the workload; all copies but the first are rotated by a random part of `period_s` (s).

    The rate is multiplied by `copies`. Time scales and the index of dispersion are preserved, so bursts become smaller
    relative to the mean, as in a service with more independent users. Copies share no prefixes.
    """
    if copies < 1 or period_s <= 0:
        raise ValueError(f"copies must be at least 1 and period_s positive, not {copies} and {period_s}")
    ids_per_copy = 1 + max((max(request.prefix_blocks, default=-1) for request in trace), default=-1)
    together = list(trace)
    for copy in range(1, copies):
        shift_s = rng.random() * period_s
        together += [
            msgspec.structs.replace(
                request,
                at_s=(request.at_s + shift_s) % period_s,
                prefix_blocks=tuple(block + copy * ids_per_copy for block in request.prefix_blocks),
                conversation=request.conversation and f"{request.conversation}-{copy}",
            )
            for request in trace
        ]
    return sorted(together, key=lambda request: request.at_s)


def scale_rate(trace: Sequence[TraceRequest], factor: float, period_s: float, rng: Random) -> list[TraceRequest]:
    """Multiply the rate by `factor` at unchanged time scales: superpose to the next whole number, then thin.

    `superpose` and `thin` document the effects on the process; `period_s` (s) is the duration of the workload.
    """
    if factor <= 0:
        raise ValueError(f"factor must be positive, not {factor}")
    copies = max(1, -int(-factor // 1))
    return thin(superpose(trace, copies, period_s, rng), factor / copies, rng)


def cap_tokens(trace: Sequence[TraceRequest], max_prompt_tokens: int, max_output_tokens: int) -> list[TraceRequest]:
    """Truncate prompts and outputs to the maximum lengths.

    Arrivals are unchanged. The tail of the work per request is lost, and with it most of the variance of service time.
    """
    if max_prompt_tokens < 1 or max_output_tokens < 1:
        raise ValueError("caps must be at least one token")
    return [
        msgspec.structs.replace(
            request,
            prompt_tokens=min(request.prompt_tokens, max_prompt_tokens),
            output_tokens=min(request.output_tokens, max_output_tokens),
            prefix_blocks=request.prefix_blocks[: blocks_of(max_prompt_tokens)],
        )
        for request in trace
    ]

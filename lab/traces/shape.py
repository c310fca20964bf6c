"""Cuts and scales a workload; each function says what it does to the arrival process, because none is neutral."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from lab.traces.trace import TraceRequest, blocks_of


def first_seconds(trace: Sequence[TraceRequest], window_s: float) -> list[TraceRequest]:
    """The arrivals before `window_s` (s). The process in the window is untouched; slower trends are cut off."""
    return [request for request in trace if request.at_s < window_s]


def compress_time(trace: Sequence[TraceRequest], factor: float) -> list[TraceRequest]:
    """Play the workload `factor` times as fast (below 1: slower).

    The rate is multiplied by `factor` and counts per scaled window keep their distribution, so relative burstiness
    stays; but every correlation in time shrinks too: bursts, pauses between turns, and trends last 1/factor as long.
    """
    if factor <= 0:
        raise ValueError(f"factor must be positive, not {factor}")
    return [msgspec.structs.replace(request, at_s=request.at_s / factor) for request in trace]


def thin(trace: Sequence[TraceRequest], keep: float, rng: Random) -> list[TraceRequest]:
    """Keep each arrival with probability `keep` (0-1], independently.

    The rate is multiplied by `keep` and time scales stay; but the process drifts towards Poisson: the excess of the
    index of dispersion over 1 is multiplied by `keep` too (Daley & Vere-Jones, section 11.3). Shared prefixes lose
    members, so the best possible cache hit ratio falls.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], not {keep}")
    return [request for request in trace if rng.random() < keep]


def superpose(trace: Sequence[TraceRequest], copies: int, period_s: float, rng: Random) -> list[TraceRequest]:
    """Lay `copies` of the workload over each other, each rotated by a random part of `period_s` (s).

    The rate is multiplied by `copies` and time scales stay; the index of dispersion stays while the mean grows, so
    bursts become smaller against the mean, as in a service with more independent users. Copies share no prefixes.
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

    See `superpose` and `thin` for what each does to the process; `period_s` (s) is how long the workload lasts.
    """
    if factor <= 0:
        raise ValueError(f"factor must be positive, not {factor}")
    copies = max(1, -int(-factor // 1))
    return thin(superpose(trace, copies, period_s, rng), factor / copies, rng)


def cap_tokens(trace: Sequence[TraceRequest], max_prompt_tokens: int, max_output_tokens: int) -> list[TraceRequest]:
    """Cut longer prompts and outputs down to the caps.

    Arrivals are untouched; the tail of the work per request is gone, with it most of the variance of service time.
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

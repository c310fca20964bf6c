"""Generates a workload that resembles recorded traces: bursty arrivals, fitted lengths, shared prefixes.

Lengths are a mixture of log-normal distributions, fitted to the conversation trace of the Azure Public Dataset (LLM
inference trace 2023, CC-BY-4.0) and, for prefixes, to the conversation trace of Mooncake (FAST'25, Apache-2.0).
"""

from __future__ import annotations

from bisect import bisect_left
from math import exp, floor
from random import Random

import msgspec

from lab.traces.trace import TraceRequest, blocks_of


class Arrivals(msgspec.Struct, frozen=True):
    """A Gamma-modulated Poisson process: the rate changes to a new Gamma-distributed level after exponential times.

    For counts in windows of w seconds, the index of dispersion (variance over mean) is
    1 + 2 * rate * rate_cv^2 * dwell_s * (1 - (1 - e^-x) / x) with x = w / dwell_s (Cox & Isham, Point Processes, 3.3).
    """

    rate_per_s: float
    """Mean rate (arrivals/s)."""
    rate_cv: float
    """Coefficient of variation of the rate; 0 gives a Poisson process."""
    dwell_s: float
    """Mean time (s) at a level."""


CHAT_ARRIVALS = Arrivals(rate_per_s=5.53, rate_cv=0.23, dwell_s=180.0)
"""Fitted to Azure's conversation trace: uneven over minutes, nearly Poisson over seconds.

Index of dispersion in windows of 1, 10, 60, 120 s: model 1.3, 3.9, 16.7, 29.5; trace 1.4, 3.9, 16.1, 29.5."""


class LengthCluster(msgspec.Struct, frozen=True):
    """A class of requests whose prompt and output lengths are log-normal and independent."""

    weight: float
    prompt_log_mean: float
    """Mean of the natural logarithm of prompt tokens."""
    prompt_log_sd: float
    output_log_mean: float
    output_log_sd: float


CHAT_LENGTHS = (
    LengthCluster(0.231, 7.746, 0.544, 4.363, 0.517),
    LengthCluster(0.234, 5.992, 0.100, 4.541, 0.230),
    LengthCluster(0.323, 6.979, 0.100, 6.032, 0.100),
    LengthCluster(0.212, 5.605, 1.097, 4.719, 0.862),
)
"""Fitted to Azure's conversation trace; two of the clusters are prompt templates of users.

Kolmogorov-Smirnov distance to the 19,366 requests: prompts 0.064, outputs 0.059. A single log-normal (prompts
6.633 and 0.985, outputs 5.019 and 0.859) has distances of 0.159 and 0.182. More than four clusters improve little."""


class Prefixes(msgspec.Struct, frozen=True):
    """Parameters of shared prefixes: some requests continue the prompt of an earlier request."""

    follow_share: float
    """Share (0-1) of requests that continue an earlier request."""
    shared_part: float
    """Part (0-1) of the request's prompt that is shared with the earlier request, limited to the earlier prompt."""
    mean_pause_s: float
    """Mean time (s) since the earlier request; the time is exponential."""


CHAT_PREFIXES = Prefixes(follow_share=0.387, shared_part=0.71, mean_pause_s=177.0)
"""Fitted to Mooncake's conversations: 38.7 % of the requests share more than the block of the system prompt with an
earlier request, on average 71 % of their blocks; the median pause is 123 s. An unbounded cache hits 36.6 % of the
blocks of the trace, and about 19 % of a generated workload, whose prompts by Azure's lengths have two or three blocks
instead of twenty."""

MAX_PROMPT_TOKENS = 14_050
MAX_OUTPUT_TOKENS = 1_000
"""Maximum lengths in Azure's conversation trace, which truncate the log-normal tails."""


def generate(
    duration_s: float,
    rng: Random,
    arrivals: Arrivals = CHAT_ARRIVALS,
    lengths: tuple[LengthCluster, ...] = CHAT_LENGTHS,
    prefixes: Prefixes = CHAT_PREFIXES,
) -> list[TraceRequest]:
    """Return a generated workload; equal `rng` states give equal workloads.

    Args:
        duration_s: duration (s) of arrivals.
        rng: source of all randomness.
        arrivals: the arrival process.
        lengths: the distribution of lengths.
        prefixes: parameters of shared prefixes.
    """
    times_s = arrival_times(duration_s, arrivals, rng)
    weights = [cluster.weight for cluster in lengths]
    library = _PrefixLibrary(prefixes, rng)
    trace = []
    for at_s in times_s:
        cluster = rng.choices(lengths, weights)[0]
        prompt = _log_normal(cluster.prompt_log_mean, cluster.prompt_log_sd, MAX_PROMPT_TOKENS, rng)
        output = _log_normal(cluster.output_log_mean, cluster.output_log_sd, MAX_OUTPUT_TOKENS, rng)
        trace.append(TraceRequest(at_s, prompt, output, library.blocks_for(at_s, blocks_of(prompt))))
    return trace


def arrival_times(duration_s: float, arrivals: Arrivals, rng: Random) -> list[float]:
    """Return arrival times (s) in order, from 0 to `duration_s`."""
    times_s: list[float] = []
    level_ends_s = 0.0
    while level_ends_s < duration_s:
        at_s = level_ends_s
        level_ends_s = min(duration_s, at_s + rng.expovariate(1.0 / arrivals.dwell_s))
        rate_per_s = _level(arrivals, rng)
        # A rate near 0 would overflow the gap.
        while rate_per_s > 1e-9:
            at_s += rng.expovariate(rate_per_s)
            if at_s >= level_ends_s:
                break
            times_s.append(at_s)
    return times_s


def _level(arrivals: Arrivals, rng: Random) -> float:
    if arrivals.rate_cv == 0:
        return arrivals.rate_per_s
    shape = 1.0 / arrivals.rate_cv**2
    return rng.gammavariate(shape, arrivals.rate_per_s / shape)


def _log_normal(log_mean: float, log_sd: float, longest: int, rng: Random) -> int:
    return max(1, min(longest, round(exp(rng.gauss(log_mean, log_sd)))))


class _PrefixLibrary:
    """Records all prompts, and selects an earlier prompt to continue by its age."""

    def __init__(self, prefixes: Prefixes, rng: Random) -> None:
        self._prefixes = prefixes
        self._rng = rng
        self._times_s: list[float] = []
        self._prompts: list[tuple[int, ...]] = []
        self._next_block = 0

    def blocks_for(self, at_s: float, count: int) -> tuple[int, ...]:
        shared: tuple[int, ...] = ()
        if self._prompts and self._rng.random() < self._prefixes.follow_share:
            ago_s = self._rng.expovariate(1.0 / self._prefixes.mean_pause_s)
            earlier = min(len(self._prompts) - 1, bisect_left(self._times_s, at_s - ago_s))
            # Random rounding preserves the mean shared part for prompts of one or two blocks.
            shared = self._prompts[earlier][: floor(self._prefixes.shared_part * count + self._rng.random())]
        fresh = range(self._next_block, self._next_block + count - len(shared))
        self._next_block = fresh.stop
        blocks = (*shared, *fresh)
        self._times_s.append(at_s)
        self._prompts.append(blocks)
        return blocks

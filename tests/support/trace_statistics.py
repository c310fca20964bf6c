"""Fits the parameters of the trace generator to a trace, which yields the constants of `lab.traces.generate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log, pi, sqrt
from random import Random
from statistics import NormalDist, fmean, pvariance

from lab.traces.generate import LengthCluster
from lab.traces.trace import TraceRequest

NARROWEST_LOG_SD = 0.1
"""Minimum deviation of a cluster, so that a cluster does not shrink to a single frequent length."""

ENOUGH_GAIN = 1e-5
"""Relative growth of the log-likelihood below which the fit stops."""


def fit_lengths(trace: Sequence[TraceRequest], clusters: int, rounds: int, rng: Random) -> list[LengthCluster]:
    """A mixture of log-normals for (prompt, output) by expectation-maximisation (Dempster, Laird & Rubin 1977).

    Args:
        trace: the trace; requests without output are ignored.
        clusters: number of clusters.
        rounds: maximum number of rounds.
        rng: draws the start; the result is a local optimum, which depends on the start.
    """
    points = Counter((log(r.prompt_tokens), log(r.output_tokens)) for r in trace if r.output_tokens > 0)
    starts = rng.sample(sorted(points), clusters)
    mixture = [LengthCluster(1.0 / clusters, x, 0.7, y, 0.7) for x, y in starts]
    likelihood = float("-inf")
    for _ in range(rounds):
        mixture, now = _improve(points, mixture)
        if now - likelihood < ENOUGH_GAIN * abs(now):
            break
        likelihood = now
    return mixture


def _improve(points: Counter[tuple[float, float]], mixture: list[LengthCluster]) -> tuple[list[LengthCluster], float]:
    """One round: weights of each point in each cluster, then the weighted moments of the clusters."""
    sums = [[1e-9, 0.0, 0.0, 0.0, 0.0] for _ in mixture]
    log_likelihood = 0.0
    for (x, y), times in points.items():
        densities = [_density(cluster, x, y) for cluster in mixture]
        total = sum(densities) or 1e-300
        log_likelihood += times * log(total)
        for moments, density in zip(sums, densities, strict=True):
            part = times * density / total
            for index, term in enumerate((1.0, x, x * x, y, y * y)):
                moments[index] += part * term
    whole = sum(moments[0] for moments in sums)
    return [_cluster(moments, whole) for moments in sums], log_likelihood


def _density(cluster: LengthCluster, x: float, y: float) -> float:
    across = (x - cluster.prompt_log_mean) / cluster.prompt_log_sd
    up = (y - cluster.output_log_mean) / cluster.output_log_sd
    area = 2 * pi * cluster.prompt_log_sd * cluster.output_log_sd
    return cluster.weight * exp(-0.5 * (across * across + up * up)) / area


def _cluster(moments: list[float], whole: float) -> LengthCluster:
    count, x, xx, y, yy = moments
    return LengthCluster(
        count / whole,
        x / count,
        max(NARROWEST_LOG_SD, sqrt(max(0.0, xx / count - (x / count) ** 2))),
        y / count,
        max(NARROWEST_LOG_SD, sqrt(max(0.0, yy / count - (y / count) ** 2))),
    )


def length_misfit(trace: Sequence[TraceRequest], mixture: Sequence[LengthCluster]) -> tuple[float, float]:
    """Kolmogorov-Smirnov distances of a mixture to a trace: of prompt tokens, and of output tokens."""
    prompts = [(c.weight, NormalDist(c.prompt_log_mean, c.prompt_log_sd)) for c in mixture]
    outputs = [(c.weight, NormalDist(c.output_log_mean, c.output_log_sd)) for c in mixture]
    return (
        _misfit([request.prompt_tokens for request in trace], prompts),
        _misfit([request.output_tokens for request in trace], outputs),
    )


def _misfit(lengths: list[int], mixture: list[tuple[float, NormalDist]]) -> float:
    worst = 0.0
    seen = 0
    for length, times in sorted(Counter(lengths).items()):
        seen += times
        # Lengths are integers, so the model's share up to a length ends half a token above the length.
        model = sum(weight * normal.cdf(log(length + 0.5)) for weight, normal in mixture)
        worst = max(worst, abs(seen / len(lengths) - model))
    return worst


def dispersion(times_s: Sequence[float], window_s: float) -> float:
    """Index of dispersion of arrivals: variance over mean of the counts in windows of `window_s` seconds.

    The index of a Poisson process is 1. An incomplete last window is ignored.
    """
    counts = [0] * int(times_s[-1] // window_s)
    for at_s in times_s:
        if at_s < len(counts) * window_s:
            counts[int(at_s // window_s)] += 1
    return pvariance(counts) / fmean(counts)


def cache_hit_ratio(trace: Sequence[TraceRequest]) -> float:
    """Share of prefix blocks that an unbounded prefix cache contains."""
    seen: set[int] = set()
    hits = blocks = 0
    for request in trace:
        for block in request.prefix_blocks:
            if block not in seen:
                break
            hits += 1
        seen.update(request.prefix_blocks)
        blocks += len(request.prefix_blocks)
    return hits / blocks if blocks else 0.0

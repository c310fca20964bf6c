"""Results of a replay: counts, and exact latency quantiles by serving region and over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lab.quantile import quantile
from lab.replay.outcome import Outcome, OutcomeKind


class Counts(msgspec.Struct, frozen=True):
    """Number of requests by kind of outcome."""

    total: int
    ok: int
    refused: int
    failed: int
    cancelled: int


class Latency(msgspec.Struct, frozen=True):
    """Latency quantiles (ms) of served requests, from the due time; None without served requests."""

    requests: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    e2e_p50_ms: float | None
    e2e_p99_ms: float | None


class Bucket(msgspec.Struct, frozen=True):
    """Results of the requests that were due in one interval."""

    from_s: float
    counts: Counts
    latency: Latency


class Results(msgspec.Struct, frozen=True):
    """Results of a replay."""

    requests: Counts
    latency: Latency
    by_region: dict[str, Latency]
    """Latency by serving region."""
    timeline: list[Bucket]
    codes: dict[str, int]
    """Number of refused and failed requests by code."""
    retried: int
    """Number of requests that were sent to more than one entry."""
    lag_p99_ms: float | None
    """Lag of the replayer itself; large values make the other figures unreliable."""


def summarise(outcomes: Sequence[Outcome], bucket_s: float) -> Results:
    """Summarise a replay; `bucket_s` is the length (s) of one interval of the timeline."""
    regions = sorted({outcome.region for outcome in outcomes if outcome.region})
    codes: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.kind in (OutcomeKind.REFUSED, OutcomeKind.FAILED):
            codes[outcome.code] = codes.get(outcome.code, 0) + 1
    return Results(
        requests=count(outcomes),
        latency=latency(outcomes),
        by_region={region: latency(o for o in outcomes if o.region == region) for region in regions},
        timeline=timeline(outcomes, bucket_s),
        codes=dict(sorted(codes.items(), key=lambda item: -item[1])),
        retried=sum(len({attempt.url for attempt in outcome.tries}) > 1 for outcome in outcomes),
        lag_p99_ms=_ms(quantile([outcome.lag_s for outcome in outcomes], 0.99)),
    )


def count(outcomes: Iterable[Outcome]) -> Counts:
    """Number of requests by kind of outcome."""
    by_kind = dict.fromkeys(OutcomeKind, 0)
    for outcome in outcomes:
        by_kind[outcome.kind] += 1
    return Counts(
        sum(by_kind.values()),
        by_kind[OutcomeKind.OK],
        by_kind[OutcomeKind.REFUSED],
        by_kind[OutcomeKind.FAILED],
        by_kind[OutcomeKind.CANCELLED],
    )


def latency(outcomes: Iterable[Outcome]) -> Latency:
    """Latency quantiles of the served requests in `outcomes`."""
    whole = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.OK]
    ttft_s = [outcome.ttft_s for outcome in whole if outcome.ttft_s is not None]
    e2e_s = [outcome.e2e_s for outcome in whole]
    return Latency(
        len(whole),
        _ms(quantile(ttft_s, 0.5)),
        _ms(quantile(ttft_s, 0.99)),
        _ms(quantile(e2e_s, 0.5)),
        _ms(quantile(e2e_s, 0.99)),
    )


def timeline(outcomes: Sequence[Outcome], bucket_s: float) -> list[Bucket]:
    """Results by due time in consecutive intervals of `bucket_s` seconds, including empty intervals."""
    if not outcomes:
        return []
    buckets: list[list[Outcome]] = [[] for _ in range(int(max(o.scheduled_s for o in outcomes) // bucket_s) + 1)]
    for outcome in outcomes:
        buckets[int(outcome.scheduled_s // bucket_s)].append(outcome)
    return [Bucket(number * bucket_s, count(bucket), latency(bucket)) for number, bucket in enumerate(buckets)]


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1000, 1)

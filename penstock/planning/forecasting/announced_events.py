"""The demand of announced events, which a forecast from measurements does not know before they begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.planning.share_moves import Key
from penstock.policy.kinds.operations import Event


def factor(events: Iterable[Event], key: Key, now: float, at: float) -> float:
    """The factor by which events raise a series at `at`, as seen at `now` (Unix times, s); 1 without any.

    An event that has begun raises nothing: the measured rates contain it. Of events at one time, the largest counts.
    """
    factors = [
        event.factor
        for event in events
        if now < event.starts_at <= at < event.starts_at + event.duration_s
        and (not event.models or key.model in event.models)
        and (not event.origins or key.origin in event.origins)
    ]
    return max(factors, default=1.0)


def with_events(
    expected: Mapping[Key, float], events: Iterable[Event], now: float, horizon_s: float
) -> dict[Key, float]:
    """The expected rates (1/s) by key, `horizon_s` seconds after `now`, raised by the announced events."""
    announced = tuple(events)
    if not announced:
        return dict(expected)
    return {key: rate * factor(announced, key, now, now + horizon_s) for key, rate in expected.items()}

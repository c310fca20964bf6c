"""The demand of announced events, which a forecast from measurements does not know before they begin."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.planning.share_moves import Key
from penstock.policy.kinds.operations import Event


def factor(events: Collection[Event], key: Key, now: float, at: float) -> float:
    """The factor by which events raise a series at `at`, as seen at `now` (Unix times, s); 1 without any.

    Measured rates contain the events that have begun: those raise nothing, and what follows one counts by its ratio to
    it. Of events at one time, the largest counts.
    """
    expected, measured = (
        max(
            (
                event.factor
                for event in events
                if event.starts_at <= time < event.starts_at + event.duration_s
                and (not event.models or key.model in event.models)
                and (not event.origins or key.origin in event.origins)
            ),
            default=1.0,
        )
        for time in (at, now)
    )
    return max(1.0, expected / measured)


def with_events(
    expected: Mapping[Key, float], events: Iterable[Event], now: float, horizon_s: float
) -> dict[Key, float]:
    """The expected rates (1/s) by key, `horizon_s` seconds after `now`, raised by the announced events."""
    announced = tuple(events)
    if not announced:
        return dict(expected)
    return {key: rate * factor(announced, key, now, now + horizon_s) for key, rate in expected.items()}

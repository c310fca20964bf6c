"""External signals of demand: their format, and how they raise a forecast."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

import msgspec

from penstock.planning.share_moves import Key
from penstock.policy.kinds.external_sources import DemandSignal

MAX_POINTS = 1_000
"""Maximum number of points of a signal."""

MAX_POINT_FACTOR = 1e6
"""Largest valid factor of a point."""


class SignalPoint(msgspec.Struct, frozen=True):
    """Expected demand at one time."""

    at: float
    """Unix time (s)."""
    factor: float
    """Demand as a multiple of the usual."""


class _Body(msgspec.Struct, frozen=True):
    points: tuple[SignalPoint, ...]


Points = tuple[SignalPoint, ...]


def read_points(body: bytes) -> Points:
    """Read the response of a signal's URL.

    Raises:
        ValueError: the response is not valid; the message has the field and the limit.
    """
    try:
        points = msgspec.json.decode(body, type=_Body).points
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the response is not valid: {error}") from None
    if len(points) > MAX_POINTS:
        raise ValueError(f"the response has {len(points)} points, at most {MAX_POINTS} are valid")
    for index, point in enumerate(points):
        if not 0.0 <= point.factor <= MAX_POINT_FACTOR:
            raise ValueError(f"points[{index}].factor is not from 0 to {MAX_POINT_FACTOR:g}")
        if index and not points[index - 1].at < point.at:
            raise ValueError(f"points[{index}].at is not after the point before it")
    return points


def factor_at(points: Points, at: float) -> float:
    """The factor at a time (Unix, s): interpolated between two points, and 1 before the first and after the last."""
    after = bisect_right(points, at, key=lambda point: point.at)
    if after == len(points):
        return points[-1].factor if points and points[-1].at == at else 1.0
    if after == 0:
        return 1.0
    first, second = points[after - 1], points[after]
    return first.factor + (second.factor - first.factor) * (at - first.at) / (second.at - first.at)


def with_signals(
    expected: Mapping[Key, float],
    signals: Iterable[DemandSignal],
    points_of: Mapping[str, Points],
    now: float,
    horizon_s: float,
) -> dict[Key, float]:
    """The expected rates (1/s) by key, `horizon_s` seconds after `now`, raised by signals and never lowered.

    Args:
        signals: those of the policy.
        points_of: the last valid response of each, by name.
    """
    rises = []
    for signal in signals:
        points = points_of.get(signal.name, ())
        ahead, usual = factor_at(points, now + horizon_s), factor_at(points, now)
        rise = min(signal.max_factor, ahead / usual if usual > 0.0 else signal.max_factor)
        if ahead > usual:
            rises.append((rise, signal))
    if not rises:
        return dict(expected)
    return {
        key: rate
        * max(
            (
                rise
                for rise, signal in rises
                if (not signal.models or key.model in signal.models)
                and (not signal.origins or key.origin in signal.origins)
            ),
            default=1.0,
        )
        for key, rate in expected.items()
    }

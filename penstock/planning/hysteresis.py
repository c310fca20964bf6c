"""Hysteresis: delays the reversal of share moves, so that plans do not oscillate.

Measured rates are moving means, so a step of demand reaches the planner as a curve, and the optimal plans along that
curve may reverse: one class moves away, another takes its place, the first returns. A share that has moved therefore
reverses only after the target has required the reversal without interruption for long enough. This is a cumulative sum
test (Page, "Continuous inspection schemes", Biometrika 41, 1954): the larger the reversal, the sooner it is made. Every
reversal is made once the moving means have settled; otherwise small reversals would keep the plan moving long after the
demand is steady. No move is delayed when regions are added, lost, or on a ramp.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.fleet.demand import TIME_CONSTANT_S
from penstock.planning.share_moves import Key

REVERSAL_AWAY = 2.0
"""Integral (share times seconds) at which a reversal away from home is made: half of the traffic after 4 s, when a
moving mean of 3 s shows most of a step. Until then overflow uses spill credits."""

REVERSAL_HOME = 0.3
"""Integral (share times seconds) at which a reversal that returns demand to its home is made, with hardly any delay."""

MAX_REVERSAL_DELAY_S = 4.0 * TIME_CONSTANT_S
"""Maximum delay (s) of a reversal of any size: by then the rates show 98 % of a step."""

SHRINKING = 0.8
"""A reversal that shrinks below this part (0-1) of its maximum restarts its delay, since its cause is a surge that has
ended and is still part of the moving mean."""

SETTLED_S = 30.0
"""Time (s) without a move after which a share is at rest: its next move away from home counts as a reversal."""

MIN_MOVE = 0.005
"""Minimum change (0-1) of a share that counts as a move."""


class _Heading:
    """The direction in which one share last moved: 1 up, -1 down, 0 unknown."""

    __slots__ = ("_at", "_direction", "_largest", "_moved_at", "_summed", "_wanted_at", "_wanted_since")

    def __init__(self, share: float, moved_at: float) -> None:
        self._at = share
        self._direction = 0
        self._moved_at = moved_at
        self._wanted_at: float | None = None
        """Time (s) of the last target with a reversal; None if the last target had none."""
        self._wanted_since = 0.0
        self._summed = 0.0
        self._largest = 0.0
        """The largest reversal since `_wanted_since`."""

    def reset(self, now: float) -> None:
        """Reset the direction: the next move is not a reversal."""
        self._direction, self._moved_at, self._wanted_at = 0, now, None

    def follow(self, share: float, homeward: int, now: float) -> None:
        """Update the direction with the share in force."""
        if abs(share - self._at) > MIN_MOVE:
            self._direction = 1 if share > self._at else -1
            self._at, self._moved_at = share, now
        elif now - self._moved_at > SETTLED_S:
            self._direction = homeward

    def delays(self, change: float, enough: float, now: float) -> bool:
        """Whether a change is a reversal to delay, because its integral is below `enough`."""
        if change * self._direction >= 0.0:
            self._wanted_at = None
            return False
        if self._wanted_at is None:
            self._wanted_since, self._summed, self._largest = now, 0.0, 0.0
        else:
            self._summed += abs(change) * (now - self._wanted_at)
        self._wanted_at = now
        self._largest = max(self._largest, abs(change))
        if self._summed >= enough or now - self._wanted_since >= MAX_REVERSAL_DELAY_S:
            return False
        if abs(change) < SHRINKING * self._largest:
            self._wanted_since, self._summed, self._largest = now, 0.0, abs(change)
        return True


class Hysteresis:
    """Keeps the direction of every share; two instances with the same ticks return the same shares."""

    def __init__(self) -> None:
        self._headings: dict[Key, dict[str, _Heading]] = {}
        self._surroundings: dict[str, object] = {}

    def set_surroundings(self, model: str, surroundings: object, now: float) -> None:
        """Set what a model's shares depend on besides demand; a change resets all directions.

        Args:
            model: the model.
            surroundings: the regions that serve it and how much of a class each may have, compared by equality.
            now: the planner's clock, in seconds.
        """
        if self._surroundings.get(model) == surroundings:
            return
        self._surroundings[model] = surroundings
        for key, headings in self._headings.items():
            if key.model == model:
                for heading in headings.values():
                    heading.reset(now)

    def keep(self, keys: Mapping[Key, object]) -> None:
        """Remove the state of all keys that are not in `keys`."""
        if self._headings.keys() - keys.keys():
            self._headings = {key: headings for key, headings in self._headings.items() if key in keys}

    def damped(
        self, key: Key, home: str, current: Mapping[str, float], target: Mapping[str, float], now: float
    ) -> Mapping[str, float]:
        """The target shares without the reversals that are delayed.

        Args:
            key: of the shares.
            home: the home region of the demand.
            current: shares in force, of regions that serve; empty for a new key.
            target: target shares.
            now: the planner's clock, in seconds.
        """
        if not current:
            return target
        headings = self._headings.setdefault(key, {})
        changes = {name: target.get(name, 0.0) - current.get(name, 0.0) for name in current.keys() | target.keys()}
        enough = REVERSAL_HOME if changes.get(home, 0.0) > 0.0 else REVERSAL_AWAY
        held = set()
        for name, change in changes.items():
            share = current.get(name, 0.0)
            heading = headings.get(name)
            if heading is None:
                heading = headings[name] = _Heading(share, now)
            heading.follow(share, 1 if name == home else -1, now)
            if heading.delays(change, enough, now):
                held.add(name)
        if not held:
            return target
        return _moved(current, {name: change for name, change in changes.items() if name not in held})


def _moved(current: Mapping[str, float], changes: Mapping[str, float]) -> dict[str, float]:
    """The shares after these changes, scaled so that decreases and increases are equal."""
    given = -sum(change for change in changes.values() if change < 0.0)
    taken = sum(change for change in changes.values() if change > 0.0)
    both = min(given, taken)
    moved = dict(current)
    for name, change in sorted(changes.items()):
        if both > 0.0 and change:
            moved[name] = moved.get(name, 0.0) + change * both / (taken if change > 0.0 else given)
    return {name: share for name, share in moved.items() if share > 0.0}

"""Shares that moved one way do not move back at the first opportunity.

A step of demand reaches the planner as a curve, since rates are moving means, and the cheapest plans along that curve
need not lie on a line: one class moves away, another takes its place, the first comes back. So a share that moved
turns round only when a turn has been wanted, without a break, for long enough. This is a cumulative sum test (Page,
"Continuous inspection schemes", Biometrika 41, 1954): the larger the turn, the sooner it is made. Once the moving means
have settled, the wanted shares are no longer a point on such a curve, so every turn is made by then. Otherwise small
turns would keep the plan moving long after the demand is steady. When regions come, go or are on a ramp nothing is held
back.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.fleet.demand import TIME_CONSTANT_S
from penstock.planning.share_moves import Key

TURN_AWAY = 2.0
"""A share turns away from home once the wanted turn, summed over the time (s) it was wanted, has come to this: half of
the traffic after 4 s, when a moving mean of 3 s shows most of a step. Until then overflow leaves on spill credits."""

TURN_HOME = 0.3
"""The same for turns that bring demand home: hardly any delay."""

MAX_TURN_DELAY_S = 4.0 * TIME_CONSTANT_S
"""A turn wanted for this long (s) is made, however small: the rates show 98 % of a step by then."""

PASSING = 0.8
"""A turn that is wanted less than this part of what it was is about to end, and its time starts anew: when a surge
ends, nothing moves away any more for the demand that a moving mean still shows."""

SETTLED_S = 30.0
"""A share that has not moved for this long (s) is at rest: its next move away from home counts as a turn."""

NOTICED = 0.005
"""A share has moved when it differs by this much from where it was last seen to move to."""


class _Heading:
    """The direction in which one share last moved: 1 up, -1 down, 0 not known."""

    __slots__ = ("_at", "_direction", "_largest", "_moved_at", "_summed", "_wanted_at", "_wanted_since")

    def __init__(self, share: float, moved_at: float) -> None:
        self._at = share
        self._direction = 0
        self._moved_at = moved_at
        self._wanted_at: float | None = None
        """When a turn was last wanted; None if the last change was no turn."""
        self._wanted_since = 0.0
        self._summed = 0.0
        self._largest = 0.0
        """The largest turn since `_wanted_since`."""

    def reset(self, now: float) -> None:
        """Forget the direction: the next move is no turn."""
        self._direction, self._moved_at, self._wanted_at = 0, now, None

    def follow(self, share: float, homeward: int, now: float) -> None:
        """Take in the share in force."""
        if abs(share - self._at) > NOTICED:
            self._direction = 1 if share > self._at else -1
            self._at, self._moved_at = share, now
        elif now - self._moved_at > SETTLED_S:
            self._direction = homeward

    def holds(self, change: float, enough: float, now: float) -> bool:
        """Whether a wanted change is a turn that has to wait, because less than `enough` of it was wanted so far."""
        if change * self._direction >= 0.0:
            self._wanted_at = None
            return False
        if self._wanted_at is None:
            self._wanted_since, self._summed, self._largest = now, 0.0, 0.0
        else:
            self._summed += abs(change) * (now - self._wanted_at)
        self._wanted_at = now
        self._largest = max(self._largest, abs(change))
        if self._summed >= enough or now - self._wanted_since >= MAX_TURN_DELAY_S:
            return False
        if abs(change) < PASSING * self._largest:
            self._wanted_since, self._summed, self._largest = now, 0.0, abs(change)
        return True


class Hysteresis:
    """Remembers the direction of every share; two instances given the same ticks return the same shares."""

    def __init__(self) -> None:
        self._headings: dict[Key, dict[str, _Heading]] = {}
        self._surroundings: dict[str, object] = {}

    def set_surroundings(self, model: str, surroundings: object, now: float) -> None:
        """Note what a model's shares depend on besides demand; when that changes, nothing is held back.

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
        """Forget the shares of all other keys."""
        if self._headings.keys() - keys.keys():
            self._headings = {key: headings for key, headings in self._headings.items() if key in keys}

    def damped(
        self, key: Key, home: str, current: Mapping[str, float], target: Mapping[str, float], now: float
    ) -> Mapping[str, float]:
        """The target shares without the turns that have to wait.

        Args:
            key: whose shares they are.
            home: the region where the demand belongs.
            current: shares in force, of regions that serve; empty where the key is new.
            target: shares wanted.
            now: the planner's clock, in seconds.
        """
        if not current:
            return target
        headings = self._headings.setdefault(key, {})
        changes = {name: target.get(name, 0.0) - current.get(name, 0.0) for name in current.keys() | target.keys()}
        enough = TURN_HOME if changes.get(home, 0.0) > 0.0 else TURN_AWAY
        held = set()
        for name, change in changes.items():
            share = current.get(name, 0.0)
            heading = headings.get(name)
            if heading is None:
                heading = headings[name] = _Heading(share, now)
            heading.follow(share, 1 if name == home else -1, now)
            if heading.holds(change, enough, now):
                held.add(name)
        if not held:
            return target
        return _moved(current, {name: change for name, change in changes.items() if name not in held})


def _moved(current: Mapping[str, float], changes: Mapping[str, float]) -> dict[str, float]:
    """The shares after these changes, scaled so that what some regions give is what others take."""
    given = -sum(change for change in changes.values() if change < 0.0)
    taken = sum(change for change in changes.values() if change > 0.0)
    both = min(given, taken)
    moved = dict(current)
    for name, change in sorted(changes.items()):
        if both > 0.0 and change:
            moved[name] = moved.get(name, 0.0) + change * both / (taken if change > 0.0 else given)
    return {name: share for name, share in moved.items() if share > 0.0}

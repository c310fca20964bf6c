"""Shares that have just moved one way do not turn round for a whim.

A step of demand reaches the planner as a curve, since rates are moving means, and the cheapest plans along that curve
need not lie on a line: one class moves away, another takes its place, the first comes back. So a share that has moved
turns round only when enough of a turn has been wanted for long enough without a break, which is a cumulative sum test
(Page, "Continuous inspection schemes", Biometrika 41, 1954): large turns soon, small ones late. Servers that come, go
or are on a ramp are no whim: then everything may move either way at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.planning.share_moves import Key

TURN_AWAY = 2.0
"""A share turns away from home once the turn wanted, summed over the time (s) it was wanted, has come to this: half the
traffic after 4 s, when a moving mean of 3 s has seen most of a step. Until then overflow leaves on spill credits."""

TURN_HOME = 0.3
"""The same for turns that bring demand home: hardly a wait."""

PASSING = 0.8
"""A turn that is wanted less than this part of what it was is on its way to be over, and its time counts anew: when a
surge ends, nothing leaves any more for the demand that a moving mean still remembers."""

SETTLED_S = 30.0
"""A share that has not moved for this long (s) may go either way."""

NOTICED = 0.005
"""A share has moved when it is this far from where it was last seen to move to."""


class _Heading:
    """Which way one share went last; at rest, a server's share points home."""

    __slots__ = ("_asked_at", "_at", "_largest", "_moved_at", "_wanted", "_way")

    def __init__(self, share: float, now: float) -> None:
        self._at = share
        self._way = 0
        self._moved_at = now
        self._asked_at: float | None = None
        """When the turn was last wanted; None where it is not."""
        self._wanted = 0.0
        self._largest = 0.0
        """Of the turns wanted since the wish began, or last began to pass."""

    def free(self, now: float) -> None:
        """Either way will do."""
        self._way, self._moved_at = 0, now
        self._wanted, self._largest, self._asked_at = 0.0, 0.0, None

    def follow(self, share: float, homeward: int, now: float) -> None:
        """Take in what is in force."""
        if abs(share - self._at) > NOTICED:
            self._way = 1 if share > self._at else -1
            self._at, self._moved_at = share, now
        elif now - self._moved_at > SETTLED_S:
            self._way = homeward

    def holds(self, change: float, enough: float, now: float) -> bool:
        """Whether a change is to wait, until `enough` of it was wanted."""
        if change * self._way >= 0.0:
            self._wanted, self._largest, self._asked_at = 0.0, 0.0, None
            return False
        if self._asked_at is not None:
            self._wanted += abs(change) * (now - self._asked_at)
        self._asked_at = now
        self._largest = max(self._largest, abs(change))
        if self._wanted < enough and abs(change) < PASSING * self._largest:
            self._wanted, self._largest = 0.0, abs(change)
        return self._wanted < enough


class Steadiness:
    """Remembers which way every share went; two that saw the same say the same."""

    def __init__(self) -> None:
        self._headings: dict[Key, dict[str, _Heading]] = {}
        self._calm: dict[Key, object] = {}
        """Entries in force that nothing else was wanted than; while that stays so, there is nothing to follow."""
        self._serving: dict[str, object] = {}

    def begin(self, model: str, serving: object, now: float) -> None:
        """Note who serves a model, and how much of a class each may have; when that changes, nothing holds."""
        if self._serving.get(model) == serving:
            return
        self._serving[model] = serving
        self._calm = {key: entry for key, entry in self._calm.items() if key.model != model}
        for key, headings in self._headings.items():
            if key.model == model:
                for one in headings.values():
                    one.free(now)

    def keep(self, keys: Mapping[Key, object]) -> None:
        """Forget the shares of all other keys."""
        if self._headings.keys() - keys.keys():
            self._headings = {key: one for key, one in self._headings.items() if key in keys}
            self._calm = {key: entry for key, entry in self._calm.items() if key in keys}

    def calm(self, key: Key, entry: object) -> None:
        """Note that `steadied` was asked for just what this entry in force has."""
        self._calm[key] = entry

    def is_calm(self, key: Key, entry: object) -> bool:
        """Whether `steadied` has nothing to say or to learn if this entry in force is to stay as it is.

        A heading at rest follows the clock alone, and will know as much when it is asked again.
        """
        return self._calm.get(key) is entry

    def steadied(
        self, key: Key, home: str, standing: Mapping[str, float], target: Mapping[str, float], now: float
    ) -> Mapping[str, float]:
        """The shares to aim at.

        Args:
            home: where the demand belongs.
            standing: shares in force, of servers that serve; none where the key is new.
            target: shares wanted.
            now: the planner's clock, in seconds.
        """
        if not standing:
            return target
        headings = self._headings.setdefault(key, {})
        changes = {name: target.get(name, 0.0) - standing.get(name, 0.0) for name in standing.keys() | target.keys()}
        enough = TURN_HOME if changes.get(home, 0.0) > 0.0 else TURN_AWAY
        held = set()
        for name, change in changes.items():
            share, homeward = standing.get(name, 0.0), 1 if name == home else -1
            heading = headings.get(name)
            if heading is None:
                heading = headings[name] = _Heading(share, now)
            heading.follow(share, homeward, now)
            if heading.holds(change, enough, now):
                held.add(name)
        return _moved(standing, {name: one for name, one in changes.items() if name not in held}) if held else target


def _moved(standing: Mapping[str, float], changes: Mapping[str, float]) -> dict[str, float]:
    """Make changes as far as those that give and those that take are even."""
    given = -sum(one for one in changes.values() if one < 0.0)
    taken = sum(one for one in changes.values() if one > 0.0)
    both = min(given, taken)
    moved = dict(standing)
    for name, one in sorted(changes.items()):
        if both > 0.0 and one:
            moved[name] = moved.get(name, 0.0) + one * both / (taken if one > 0.0 else given)
    return {name: share for name, share in moved.items() if share > 0.0}

"""Which entries of a plan need no second look: wanted as they stand, in surroundings that did not change."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.planning.plan import ClassPlan

ClassAt = tuple[str, str, str]
"""Origin, model, name of the residency class."""


def is_as_wanted(entry: ClassPlan, target: Mapping[str, float]) -> bool:
    """Whether an entry's arcs have just the shares wanted."""
    arcs = entry.arcs
    if len(arcs) != len(target):
        return False
    if len(arcs) == 1:
        return target.get(arcs[0].server) == arcs[0].share
    return all(target.get(arc.server) == arc.share for arc in arcs)


class Resting:
    """Remembers entries that came out as they went in, from tick to tick, and where home is for them."""

    def __init__(self) -> None:
        self._surroundings: object = None
        self._homes: dict[ClassAt, tuple[ClassPlan, str]] = {}

    def begin(self, surroundings: object) -> None:
        """Note what else entries depend on; when it changes nothing is remembered. None: it changes all the time."""
        if surroundings is None or surroundings != self._surroundings:
            self._homes = {}
        self._surroundings = surroundings

    def home(self, key: ClassAt, entry: ClassPlan, target: Mapping[str, float]) -> str | None:
        """The home of an entry in force that is right as it stands, but for the details of its arcs; None: look closer.

        Args:
            target: the shares wanted.
        """
        known = self._homes.get(key)
        return known[1] if known is not None and known[0] is entry and is_as_wanted(entry, target) else None

    def note(self, key: ClassAt, entry: ClassPlan, home: str) -> None:
        """Remember an entry that came out as it went in."""
        if self._surroundings is not None:
            self._homes[key] = entry, home

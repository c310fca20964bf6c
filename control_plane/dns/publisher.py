"""Publishes the records of names to a DNS server: only changes, at a limited rate, and never an empty name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from math import inf
from typing import Final, Protocol

from control_plane.dns.dynamic_update import UpdateFailed, zones_of
from penstock.dns.record_sets import NameRecords, Publication, RecordSet, next_publication

READ_EVERY_S: Final = 300.0
"""Time (s) after which the records of the target are read again: a server that was restored, or that another process
changed, has others than were sent."""


class RecordTarget(Protocol):
    """Where records are published."""

    def read(self, names: Iterable[str]) -> dict[str, tuple[RecordSet, ...]]:
        """Return the records that the target has of some names; raises UpdateFailed."""

    def send(self, zone: str, changed: dict[str, tuple[RecordSet, ...]]) -> None:
        """Replace the records of some names of one zone; raises UpdateFailed."""


class RecordPublisher:
    """Brings one target up to date, step by step. Reports changes, and each problem once while it lasts."""

    def __init__(
        self,
        target: RecordTarget,
        min_interval_s: float,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        is_dry_run: bool = False,
    ) -> None:
        """Create a publisher.

        Args:
            min_interval_s: minimum time (s) between two changes.
            report: called with each line for operators.
            is_dry_run: whether changes are reported, and not sent.
        """
        self._target = target
        self._min_interval_s = min_interval_s
        self._report = report
        self._clock = clock
        self._is_dry_run = is_dry_run
        self._published: Publication | None = None
        self._changed_at = -inf
        self._read_at = -inf
        self._reported: set[str] = set()

    def step(self, names: Iterable[NameRecords]) -> bool:
        """Publish what has changed. Returns whether every name is up to date and has a live region.

        A zone that the target refuses to change does not keep the others from changing.
        """
        wanted = {name.name: name for name in names}
        problems: list[str] = []
        current, now = self._published, self._clock()
        if current is None or now - self._read_at >= READ_EVERY_S:
            self._read_at = now
            read: dict[str, tuple[RecordSet, ...]] = {}
            for members in zones_of(wanted.values()).values():
                try:
                    read |= self._target.read(members)
                except UpdateFailed as error:
                    problems.append(f"not updated: {error}")
            current = Publication(read, self._changed_at)
            wanted = {name: found for name, found in wanted.items() if name in read}
        step = next_publication(current, wanted, now, self._min_interval_s)
        for zone, members in zones_of(wanted[name] for name in step.changed).items():
            changed = {name: step.changed[name] for name in members}
            try:
                if not self._is_dry_run:
                    self._target.send(zone, changed)
            except UpdateFailed as error:
                problems.append(f"not updated: {error}")
                continue
            self._changed_at = step.publication.changed_at
            for name, record_sets in changed.items():
                values = ", ".join(value for each in record_sets for value in each.values)
                self._report(f"{name}: {'would be' if self._is_dry_run else 'now'} {values}")
        # After a failure, what the target has is unknown, and is read again.
        self._published = None if problems else step.publication
        self._note([*problems, *(f"{name}: no permitted region is live; its records stay" for name in step.kept)])
        return not problems and not step.kept and not step.delayed

    def _note(self, problems: list[str]) -> None:
        for problem in problems:
            if problem not in self._reported:
                self._report(problem)
        self._reported = set(problems)

"""Reads the witness files during a run: the arrivals at engines, and the requests that an engine started."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lab.demo.records import Sighting
from lab.witness import Sighting as WitnessSighting
from lab.witness import Witness


class WitnessWatch:
    """Reads the witness files while engines write them."""

    def __init__(self, directory: Path, wall_clock_zero: float) -> None:
        """Args: `wall_clock_zero` is the Unix time (s) of the start of the schedule."""
        self._witness = Witness(directory)
        self._zero = wall_clock_zero
        self.sightings: list[Sighting] = []

    async def read(self) -> int:
        """Read the new records; return the number of violations so far."""
        testimony, fresh = await asyncio.to_thread(self._witness.read)
        self.sightings += [self._sighting(sighting) for sighting in fresh if sighting.required is not None]
        return len(testimony.violations)

    async def started(self) -> frozenset[str]:
        """Return the ids of the requests that an engine started."""
        testimony, _ = await asyncio.to_thread(self._witness.read)
        return frozenset(testimony.started)

    def _sighting(self, seen: WitnessSighting) -> Sighting:
        required = tuple(sorted(seen.required or ()))
        return Sighting(seen.request_id or "", seen.t - self._zero, seen.region, seen.endpoint, required)

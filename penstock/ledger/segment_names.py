"""Names of segments in the usage store. Equal records have an equal name, so that a segment can be put twice."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Final, NamedTuple

from penstock.ledger.ledger_record import LedgerRecord

_NAME: Final = re.compile(
    r"day=(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})/region=(?P<region>[a-z0-9._-]{1,63})/"
    r"(?P<agent>[A-Za-z0-9._-]+)-(?P<epoch>[0-9]{1,16})-(?P<number>[0-9]{1,12})\.parquet"
)

COMPACTED: Final = "_compacted"
"""In place of the agent in the names of segments that replace others. Names of agents begin with a letter or digit."""


class SegmentName(NamedTuple):
    """The parts of a segment's name."""

    day: date
    """Day (UTC) on which the requests of the segment ended."""
    region: str
    agent: str
    epoch: int
    """Number of the agent's start; of a compacted segment, the time (Unix, ms) of the compaction."""
    number: int

    def __str__(self) -> str:
        return f"day={self.day.isoformat()}/region={self.region}/{self.agent}-{self.epoch}-{self.number}.parquet"

    @property
    def is_compacted(self) -> bool:
        """Whether the segment replaces segments of agents."""
        return self.agent == COMPACTED


def parse_segment_name(path: str) -> SegmentName | None:
    """Return the parts of a path in the store; None if the path is not the name of a segment."""
    found = _NAME.fullmatch(path)
    if found is None:
        return None
    try:
        day = date.fromisoformat(found["day"])
    except ValueError:
        return None
    return SegmentName(day, found["region"], found["agent"], int(found["epoch"]), int(found["number"]))


def day_of(at_ms: int) -> date:
    """Return the day (UTC) of a Unix time (ms)."""
    return datetime.fromtimestamp(at_ms / 1000.0, UTC).date()


def by_day(records: Iterable[LedgerRecord]) -> dict[date, list[LedgerRecord]]:
    """Return the records of one spool file by day, each of which is a segment of its own."""
    found: dict[date, list[LedgerRecord]] = {}
    for record in records:
        found.setdefault(day_of(record.at_ms), []).append(record)
    return found

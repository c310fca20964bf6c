"""Verifies the chains of access logs: file by file, then across the files of each epoch. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import inf

import msgspec

from penstock.log_chains.access_log_chain import ChainedLine, ChainHead, genesis
from penstock.log_chains.log_ends import EndCheck, GivenLines, LogFault, SignedHeads, UnprovedSpan
from penstock.log_chains.signed_head import SignedHead


class Epoch(msgspec.Struct, frozen=True):
    """The lines that an agent wrote between two starts."""

    first_seq: int
    head: ChainHead
    """Head of the last line. A copy that is kept elsewhere later reveals a missing end."""
    dropped: int
    """Lines that the agent could not write."""
    signed_seq: int
    """Number of the last line that a signed head covers; 0 if none does."""


class _Segment(msgspec.Struct):
    """Consecutive lines of one epoch in one file."""

    file: str
    number: int
    """Number of the first line in the file."""
    first: ChainedLine
    first_at: float
    last: ChainHead
    last_at: float
    signed: SignedHead | None = None
    """The newest signed head among these lines."""
    unsigned_from: float = inf
    """Time of the earliest line after `signed` (Unix, s)."""


class ChainCheck:
    """Checks the lines of all files. Files may be added in any order; `finish` joins them."""

    def __init__(
        self, since: float, until: float, kept: Iterable[ChainHead] = (), signed: SignedHeads | None = None
    ) -> None:
        """Report gaps that may hide lines between `since` and `until` (Unix time, s).

        Args:
            kept: heads of earlier reports, which the logs must contain.
            signed: the signed heads of the agents; None to verify the chains only.
        """
        self._kept = set(kept)
        self._signed = signed
        self._matched: set[ChainHead] = set()
        self._since = since
        self._until = until
        self._segments: dict[str, list[_Segment]] = {}
        self._open: dict[tuple[str, str], _Segment] = {}
        self._dropped: dict[str, int] = {}
        self.faults: list[LogFault] = []
        self.unproved: list[UnprovedSpan] = []

    def add(self, file: str, number: int, line: ChainedLine, at: float) -> None:
        """Add line `number` of a file, written at `at` (Unix time, s). Lines must be added in the order of the file."""
        self._kept.discard(line.head)
        epoch = line.head.epoch
        segment = self._open.get((file, epoch))
        if segment is not None and self._joins(file, number, line, segment.last, at):
            segment.last, segment.last_at = line.head, at
        else:
            segment = self._begin(file, number, line, at)
        if self._signed is not None:
            self._compare(self._signed, segment, line.head, at)

    def finish(self) -> list[Epoch]:
        """Join the files of each epoch; returns the epochs. Afterwards `faults` and `unproved` are complete."""
        epochs, given = [], {}
        for name, segments in sorted(self._segments.items()):
            # `add` has already reported the faults between two segments of one file.
            segments.sort(key=lambda segment: segment.first.head.seq)
            self._check_beginning(segments[0], name)
            for before, segment in pairwise(segments):
                if before.file != segment.file:
                    self._check_join(before, segment)
            last = max((segment.last for segment in segments), key=lambda head: head.seq)
            given[name] = lines = _given(segments)
            signed_seq = lines.signed.head.seq if lines.signed is not None else 0
            epochs.append(Epoch(segments[0].first.head.seq, last, self._dropped.get(name, 0), signed_seq))
        for head in sorted(self._kept, key=str):
            self._fault("", 0, f"line {head.seq} of {head.epoch} was kept, and is missing or has another digest")
        if self._signed is not None:
            ends = EndCheck(self._signed, self._since, self._until)
            ends.check(given, self._matched)
            self.faults += [*self._signed.faults, *ends.faults]
            self.unproved = ends.unproved
        return epochs

    def _compare(self, signed: SignedHeads, segment: _Segment, head: ChainHead, at: float) -> None:
        stated = signed.find(head)
        if stated is None:
            segment.unsigned_from = min(segment.unsigned_from, at)
        else:
            self._matched.add(head)
            segment.signed, segment.unsigned_from = stated, inf

    def _begin(self, file: str, number: int, line: ChainedLine, at: float) -> _Segment:
        segment = _Segment(file, number, line, at, line.head, at)
        self._open[file, line.head.epoch] = segment
        self._segments.setdefault(line.head.epoch, []).append(segment)
        return segment

    def _joins(self, file: str, number: int, line: ChainedLine, before: ChainHead, at: float) -> bool:
        """Whether a line follows another one; reports the fault if not, or the lines that the agent dropped."""
        seq = line.head.seq
        missing = seq - before.seq - 1
        if seq > before.seq and line.follows(before.chain):
            if missing:
                self._dropped[before.epoch] = self._dropped.get(before.epoch, 0) + missing
                self._fault(file, number, f"the agent dropped the {missing} lines before it")
            return True
        if seq <= before.seq:
            problem = f"line {seq} of its epoch after line {before.seq}: moved or repeated"
        elif missing:
            problem = f"lines {before.seq + 1} to {seq - 1} of its epoch are missing"
        else:
            problem = "does not follow the line before it: one of them was changed"
        self._fault(file, number, problem)
        return False

    def _check_beginning(self, segment: _Segment, epoch: str) -> None:
        line = segment.first
        if line.head.seq == 1 and line.follows(genesis(epoch)):
            return
        if line.head.seq > 1 and line.follows(genesis(epoch)):
            self._dropped[epoch] = self._dropped.get(epoch, 0) + line.head.seq - 1
            self._fault(segment.file, segment.number, f"the agent dropped the {line.head.seq - 1} lines before it")
        elif line.head.seq == 1:
            self._fault(segment.file, segment.number, "the first line of its epoch was changed")
        elif self._signed is not None and not self._signed.may_precede(line):
            self._fault(segment.file, segment.number, "does not follow the line before it, which was signed")
        elif segment.first_at >= self._since:
            missing = f"lines 1 to {line.head.seq - 1} of its epoch are missing"
            self._fault(segment.file, segment.number, f"{missing}; add the earlier file")

    def _check_join(self, before: _Segment, segment: _Segment) -> None:
        """Check the join of two files. Missing lines before or after the period are not a fault, but changed digests
        are."""
        seq, last = segment.first.head.seq, before.last
        outside = segment.first_at < self._since or before.last_at > self._until
        if seq > last.seq + 1 and outside and not segment.first.follows(last.chain):
            return
        self._joins(segment.file, segment.number, segment.first, last, segment.first_at)

    def _fault(self, file: str, line: int, problem: str) -> None:
        self.faults.append(LogFault(file, line, problem))


def _given(segments: list[_Segment]) -> GivenLines:
    """The lines of segments in their order."""
    signed, unsigned_from = None, inf
    for segment in segments:
        if segment.signed is not None:
            signed, unsigned_from = segment.signed, segment.unsigned_from
        else:
            unsigned_from = min(unsigned_from, segment.unsigned_from)
    return GivenLines(tuple((each.first.head.seq, each.last.seq) for each in segments), signed, unsigned_from)

"""What signed heads prove of the logs: that no line was changed by others, and that no end was cut off. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf

import msgspec

from penstock.records.record_chain import ChainedLine, ChainHead, genesis
from penstock.records.signed_head import BadHead, SignedHead, read_head
from penstock.wire.identity import TrustBundle


class LogFault(msgspec.Struct, frozen=True, order=True):
    """Something that keeps the logs from being a complete record."""

    file: str
    line: int
    """From 1; 0 for the whole file."""
    problem: str


class UnprovedSpan(msgspec.Struct, frozen=True, order=True):
    """A time for which no signature shows that the log of an agent is complete and its own."""

    epoch: str
    since: float | None
    """Unix time (s); None for the beginning of the logs."""
    until: float | None
    """Unix time (s); None for an open end."""
    after_seq: int
    """The last line that a signature covers; 0 where none is."""


class GivenLines(msgspec.Struct, frozen=True):
    """The lines of one epoch that the logs have."""

    sections: tuple[tuple[int, int], ...]
    """Numbers of the first and the last line of each part, in order."""
    signed: SignedHead | None
    """The newest signed head that is the head of one of these lines."""
    unsigned_from: float
    """Time (Unix, s) of the earliest line after `signed`; infinite where there is none."""


class SignedHeads:
    """The signed heads of all agents."""

    def __init__(self, trust: TrustBundle) -> None:
        """Accept heads that agents of the fleet of `trust` signed."""
        self._trust = trust
        self._by_epoch: dict[str, dict[ChainHead, SignedHead]] = {}
        self.faults: list[LogFault] = []

    def add_file(self, file: str, lines: Iterable[bytes]) -> None:
        """Verify the heads of a file; those that are not accepted are faults."""
        for number, line in enumerate(lines, 1):
            try:
                stated = read_head(line, self._trust)
            except BadHead as error:
                self.faults.append(LogFault(file, number, str(error)))
                continue
            of_epoch = self._by_epoch.setdefault(stated.head.epoch, {})
            known = of_epoch.get(stated.head)
            if known is None or (known.final, known.until) < (stated.final, stated.until):
                of_epoch[stated.head] = stated

    def find(self, head: ChainHead) -> SignedHead | None:
        """What the agent stated of a head, if it signed it."""
        return self._by_epoch.get(head.epoch, {}).get(head)

    def of(self, epoch: str) -> list[SignedHead]:
        """The heads of an epoch, by line."""
        return sorted(self._by_epoch.get(epoch, {}).values(), key=lambda stated: (stated.head.seq, stated.until))

    def may_precede(self, line: ChainedLine) -> bool:
        """Whether a line follows the line before it, as far as that one was signed."""
        before = line.head.seq - 1
        chains = [stated.head.chain for stated in self.of(line.head.epoch) if stated.head.seq == before]
        return not chains or any(line.follows(chain) for chain in chains)

    def epochs(self) -> Collection[str]:
        """The epochs that have signed heads."""
        return self._by_epoch.keys()


class EndCheck:
    """Compares the lines of each epoch with what its agent signed."""

    def __init__(self, signed: SignedHeads, since: float, until: float) -> None:
        """Look at the period between `since` and `until` (Unix time, s)."""
        self._signed = signed
        self._since = since
        self._until = until
        self.faults: list[LogFault] = []
        self.unproved: list[UnprovedSpan] = []

    def check(self, given: Mapping[str, GivenLines], matched: Collection[ChainHead]) -> None:
        """Judge all epochs.

        Args:
            given: the lines by epoch.
            matched: the signed heads that are heads of these lines.
        """
        ends = dict(self._ends())
        for epoch in sorted({*given, *self._signed.epochs()}):
            end = min(self._until, ends.get(epoch, inf))
            heads = self._signed.of(epoch)
            if end <= self._since or (heads and heads[0].head.started_at >= self._until):
                continue
            lines = given.get(epoch) or GivenLines((), None, inf)
            self._check_digests(epoch, heads, lines, matched)
            self._check_end(epoch, heads, lines, end)

    def _ends(self) -> Iterator[tuple[str, float]]:
        """Each epoch that another one of the same agent follows, with the start of that one."""
        newest: dict[str, tuple[float, str]] = {}
        starts = [(next(iter(self._signed.of(epoch))).head, epoch) for epoch in self._signed.epochs()]
        for head, epoch in sorted(starts, key=lambda start: start[0].started_at):
            if head.agent in newest:
                yield newest[head.agent][1], head.started_at
            newest[head.agent] = head.started_at, epoch

    def _check_digests(
        self, epoch: str, heads: list[SignedHead], lines: GivenLines, matched: Collection[ChainHead]
    ) -> None:
        firsts = [first for first, _ in lines.sections]
        for stated in heads:
            seq = stated.head.seq
            section = bisect_right(firsts, seq) - 1
            if section >= 0 and seq <= lines.sections[section][1] and stated.head not in matched:
                self._fault(
                    f"line {seq} of {epoch} was signed with another digest: it, or a line before it, was changed"
                )
                return

    def _check_end(self, epoch: str, heads: list[SignedHead], lines: GivenLines, end: float) -> None:
        proof = lines.signed or self._before_lines(epoch, heads)
        covered = -inf if proof is None else inf if proof.final else proof.until
        first_unproved = min(covered, lines.unsigned_from)
        if first_unproved >= end:
            return
        last_seq = max(
            [last for _, last in lines.sections] + ([proof.head.seq] if proof is not None else []), default=0
        )
        cut = next((stated.head.seq for stated in heads if stated.head.seq > last_seq), None)
        if cut is not None and covered < end:
            self._fault(f"lines {last_seq + 1} to {cut} of {epoch} are missing: its agent signed line {cut}")
            return
        started_at = heads[0].head.started_at if heads else -inf
        since = max(first_unproved, self._since, started_at)
        after_seq = proof.head.seq if proof is not None else 0
        self.unproved.append(UnprovedSpan(epoch, _finite(since), _finite(end), after_seq))

    def _before_lines(self, epoch: str, heads: list[SignedHead]) -> SignedHead | None:
        """The newest head that states no line of the period: as at its beginning, or as at the start of the agent."""
        at_begin = [stated for stated in heads if stated.until <= self._since]
        base = at_begin[-1].head if at_begin else ChainHead(epoch, 0, genesis(epoch))
        return self._signed.find(base)

    def _fault(self, problem: str) -> None:
        self.faults.append(LogFault("", 0, problem))


def _finite(at: float) -> float | None:
    return at if abs(at) < inf else None

"""Compares access logs with signed heads, which prove that no other process changed a line or cut off an end. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf

import msgspec

from penstock.log_chains.access_log_chain import ChainedLine, ChainHead, genesis
from penstock.log_chains.signed_head import BadHead, SignedHead, read_head
from penstock.wire.identity import TrustBundle


class LogFault(msgspec.Struct, frozen=True, order=True):
    """A fault because of which the logs are not a complete record."""

    file: str
    line: int
    """Number of the line, from 1; 0 for the whole file."""
    problem: str


class UnprovedSpan(msgspec.Struct, frozen=True, order=True):
    """A period for which no signature proves that the log of an agent is complete and was written by the agent."""

    epoch: str
    since: float | None
    """Unix time (s); None for the beginning of the logs."""
    until: float | None
    """Unix time (s); None for an open end."""
    after_seq: int
    """Number of the last line that a signature covers; 0 if none does."""


class GivenLines(msgspec.Struct, frozen=True):
    """The lines of one epoch that the logs contain."""

    sections: tuple[tuple[int, int], ...]
    """Numbers of the first and the last line of each part, in order."""
    signed: SignedHead | None
    """The newest signed head that is the head of one of these lines."""
    unsigned_from: float
    """Time (Unix, s) of the earliest line after `signed`; infinite if there is no such line."""


class SignedHeads:
    """The signed heads of all agents."""

    def __init__(self, trust: TrustBundle) -> None:
        """Accept heads that agents of the fleet of `trust` signed."""
        self._trust = trust
        self._by_epoch: dict[str, dict[ChainHead, SignedHead]] = {}
        self.faults: list[LogFault] = []

    def add_file(self, file: str, lines: Iterable[bytes]) -> None:
        """Verify the signed heads in a file; rejected heads are recorded as faults."""
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
        """The agent's signed statement of a head; None if the agent did not sign the head."""
        return self._by_epoch.get(head.epoch, {}).get(head)

    def of(self, epoch: str) -> list[SignedHead]:
        """The signed heads of an epoch, sorted by line."""
        return sorted(self._by_epoch.get(epoch, {}).values(), key=lambda stated: (stated.head.seq, stated.until))

    def may_precede(self, line: ChainedLine) -> bool:
        """Whether a line follows the signed head of the line before it; true if that line has no signed head."""
        before = line.head.seq - 1
        chains = [stated.head.chain for stated in self.of(line.head.epoch) if stated.head.seq == before]
        return not chains or any(line.follows(chain) for chain in chains)

    def epochs(self) -> Collection[str]:
        """The epochs that have signed heads."""
        return self._by_epoch.keys()


class EndCheck:
    """Compares the lines of each epoch with the heads that the agent signed."""

    def __init__(self, signed: SignedHeads, since: float, until: float) -> None:
        """Check the period between `since` and `until` (Unix time, s)."""
        self._signed = signed
        self._since = since
        self._until = until
        self.faults: list[LogFault] = []
        self.unproved: list[UnprovedSpan] = []

    def check(self, given: Mapping[str, GivenLines], matched: Collection[ChainHead]) -> None:
        """Check all epochs; the results are in `faults` and `unproved`.

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
        """Yields each epoch with a later epoch of the same agent, and the start (Unix time, s) of the later epoch."""
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
        """The newest signed head from before the period, or else that of the agent's start; None if neither was
        signed."""
        at_begin = [stated for stated in heads if stated.until <= self._since]
        base = at_begin[-1].head if at_begin else ChainHead(epoch, 0, genesis(epoch))
        return self._signed.find(base)

    def _fault(self, problem: str) -> None:
        self.faults.append(LogFault("", 0, problem))


def _finite(at: float) -> float | None:
    return at if abs(at) < inf else None

"""The chain of an access log: each line has a digest over the line before it. Pure.

A line ends with `,"epoch":E,"seq":N,"chain":H}`: the start of the agent that wrote it, its number from 1, and the
SHA-256 of the previous line's digest and of the line up to `,"chain":`. A line that was changed, removed, inserted or
moved does not fit its neighbour. Numbers that are missing although the digests fit are lines that the agent itself
dropped.

The chain has no key: a process that can write the whole file can recompute the chain or cut off the end of the file.
The heads that the agent signs (`signed_head.py`) reveal both.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Annotated

import msgspec

DIGEST_CHARS = 64
_CHAIN = b',"chain":"'
_END = b'"}'
_HEAD = re.compile(r"([^:\s]{1,300}):([0-9]{1,18}):([0-9a-f]{64})")
_TAIL_BYTES = len(_CHAIN) + DIGEST_CHARS + len(_END)


class ChainHead(msgspec.Struct, frozen=True):
    """The end of a chain."""

    epoch: str
    """`region/agent/time`: the agent that wrote the chain, and its start (Unix time in ns)."""
    seq: int
    chain: str
    """SHA-256 in lower-case hex."""

    def __str__(self) -> str:
        return f"{self.epoch}:{self.seq}:{self.chain}"

    @classmethod
    def parse(cls, text: str) -> ChainHead:
        """Parse the text form of a head, as `str` returns it; raises ValueError if the text is invalid."""
        match = _HEAD.fullmatch(text)
        if match is None:
            raise ValueError("must be epoch:line:digest, as `penstock residency report` prints it")
        epoch, seq, chain = match.groups()
        return cls(epoch, int(seq), chain)

    @property
    def agent(self) -> str:
        """`region/agent` of the epoch."""
        return self.epoch.rpartition("/")[0]

    @property
    def started_at(self) -> float:
        """Start of the epoch (Unix time, s); 0 if the epoch does not contain it."""
        started_ns = self.epoch.rpartition("/")[2]
        return int(started_ns) / 1e9 if started_ns.isascii() and started_ns.isdecimal() else 0.0


class ChainedLine(msgspec.Struct, frozen=True):
    """One line, whose digest is not verified yet."""

    head: ChainHead
    covered: bytes
    """The part of the line that its digest covers."""

    def follows(self, previous: str) -> bool:
        """Whether this line was written after the line with the digest `previous`."""
        return _digest(previous.encode(), self.covered) == self.head.chain


class _Place(msgspec.Struct):
    epoch: str
    seq: Annotated[int, msgspec.Meta(ge=1)]
    chain: str


_place = msgspec.json.Decoder(_Place)


def epoch_of(region: str, agent: str, started_ns: int) -> str:
    """The epoch of an agent that started at `started_ns` (Unix time, ns)."""
    return f"{region}/{agent}/{started_ns}"


def genesis(epoch: str) -> str:
    """The digest that the first line of an epoch follows."""
    return sha256(epoch.encode()).hexdigest()


class ChainWriter:
    """Adds the chain to the lines of one epoch."""

    def __init__(self, epoch: str, share: float) -> None:
        """`share` of the successful requests is logged; each line states it if it is below 1."""
        sampled = b"" if share >= 1.0 else b'"share":%b,' % msgspec.json.encode(share)
        self._suffix = b',%b"epoch":%b,"seq":' % (sampled, msgspec.json.encode(epoch))
        self.head = ChainHead(epoch, 0, genesis(epoch))
        """The last line in the file; number 0 before the first."""

    def chained(self, block: bytes, first_seq: int) -> tuple[bytes, ChainHead]:
        """The lines of a block with their chain, and the head of the last line for `written`.

        Args:
            block: JSON objects that are not empty, each with a newline.
            first_seq: number of the first line.
        """
        suffix, previous, seq = self._suffix, self.head.chain.encode(), first_seq
        chained = []
        for seq, line in enumerate(block.split(b"\n")[:-1], first_seq):
            covered = b"%b%b%d" % (line[:-1], suffix, seq)
            previous = _digest(previous, covered).encode()
            chained.append(b'%b,"chain":"%b"}\n' % (covered, previous))
        return b"".join(chained), ChainHead(self.head.epoch, seq, previous.decode())

    def written(self, last: ChainHead) -> None:
        """Record that the block whose last line is `last` has been written to the file."""
        self.head = last


def chained_line(line: bytes) -> ChainedLine | None:
    """Parse a line of the log without its newline; None if the text is not a line of the log or has no chain."""
    split = len(line) - _TAIL_BYTES
    if split < 0 or not line.startswith(_CHAIN, split) or not line.endswith(_END):
        return None
    try:
        place = _place.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return ChainedLine(ChainHead(place.epoch, place.seq, place.chain), line[:split])


def _digest(previous: bytes, covered: bytes) -> str:
    return sha256(previous + covered).hexdigest()

"""Entries of the audit log and the chain that they form: each carries the hash of the one before. Pure.

Nobody can change, remove or put in an entry without every later hash changing. That the end was not cut off, or all of
it made anew, is known by whoever kept a hash from before: each is logged as it is made, and exports carry them.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec

BEFORE_THE_FIRST = "0" * 64
"""The hash that the first entry follows."""


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change. Fields are added with a default alone, so that the hashes of older entries stay what they are."""

    seq: int
    """From 1, without a gap."""
    at: float
    """Unix time (s) by the clock of the control plane that wrote it."""
    caller: str
    role: str
    """The caller's role then."""
    action: str
    """What was done, as `noun.verb`: `override.drain`, `policy.apply`."""
    target: str
    """What it was done to: a region, a revision, an override."""
    reason: str
    """The caller's own words."""
    previous: str
    """Hash of the entry before."""
    before: Any = None
    """The target as it was, as JSON; None where there was nothing."""
    after: Any = None
    """The target as it became, as JSON; None where there is nothing any more."""
    hash: str = ""
    """SHA-256, in lower-case hex, of all the other fields: see `entry_hash`."""


class AuditHead(msgspec.Struct, frozen=True):
    """The end of a chain."""

    seq: int = 0
    hash: str = BEFORE_THE_FIRST


BEGINNING = AuditHead()
"""What the first entry follows."""


class ChainFault(msgspec.Struct, frozen=True):
    """The first entry that does not fit."""

    seq: int
    """As the entry says itself, or the one that is missing."""
    problem: str


def entry_hash(entry: AuditEntry) -> str:
    """SHA-256 over the entry as JSON without `hash` and without null members, keys sorted, no white space."""
    plain = msgspec.structs.replace(entry, hash="")
    return sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def sealed(entry: AuditEntry) -> AuditEntry:
    """The entry with its hash."""
    return msgspec.structs.replace(entry, hash=entry_hash(entry))


def verify_chain(
    entries: Iterable[AuditEntry], *, after: AuditHead = BEGINNING, head: AuditHead | None = None
) -> ChainFault | None:
    """The first entry that is not what was written, or None.

    Args:
        entries: oldest first.
        after: what they follow; by default the beginning.
        head: where they must end, if that is known; None takes any end.
    """
    seq, previous = after.seq, after.hash
    for entry in entries:
        if entry.seq != seq + 1:
            return ChainFault(seq + 1, f"missing: entry {entry.seq} follows entry {seq}")
        if entry.hash != entry_hash(entry):
            return ChainFault(entry.seq, "changed: its content does not have its hash")
        if entry.previous != previous:
            return ChainFault(entry.seq, f"out of the chain: it does not follow the entry {seq} that is there")
        seq, previous = entry.seq, entry.hash
    if head is not None and (seq, previous) != (head.seq, head.hash):
        problem = "missing: the chain ends before it" if seq < head.seq else "not the entry that the chain ended with"
        return ChainFault(min(seq + 1, head.seq), problem)
    return None

"""Entries of the audit log and their hash chain: each entry contains the hash of the previous one. Pure.

A changed, removed or inserted entry changes every later hash. A truncated or rewritten chain is detected by comparison
with a hash that was kept elsewhere: each hash is logged when its entry is made, and exports contain the hashes.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec

BEFORE_THE_FIRST = "0" * 64
"""Value of `previous` in the first entry."""


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change. New fields must have a default, so that the hashes of older entries remain valid."""

    seq: int
    """Number of the entry, from 1 without gaps."""
    at: float
    """Unix time (s) by the clock of the control plane that wrote it."""
    caller: str
    role: str
    """The caller's role at the time of the change."""
    action: str
    """The action, as `noun.verb`: `override.drain`, `policy.apply`."""
    target: str
    """The object of the action: a region, a revision, an override."""
    reason: str
    """The reason that the caller gave."""
    previous: str
    """Hash of the previous entry."""
    before: Any = None
    """The target before the change, as JSON; None if it did not exist."""
    after: Any = None
    """The target after the change, as JSON; None if it no longer exists."""
    hash: str = ""
    """SHA-256, in lower-case hex, of all the other fields: see `entry_hash`."""


class AuditHead(msgspec.Struct, frozen=True):
    """Number and hash of the last entry of a chain."""

    seq: int = 0
    hash: str = BEFORE_THE_FIRST


BEGINNING = AuditHead()
"""The head of a chain without entries."""


class ChainFault(msgspec.Struct, frozen=True):
    """An entry that breaks the chain."""

    seq: int
    """The entry's own number, or the number of the missing entry."""
    problem: str


class RemovedEntries(msgspec.Struct, frozen=True):
    """States that the oldest entries of a chain were removed. An export has it in their place."""

    removed_up_to: int
    """Number of the last removed entry; 0: none was removed."""
    hash: str
    """Hash of the last removed entry, which the next one follows."""


NONE_REMOVED = RemovedEntries(0, BEFORE_THE_FIRST)


def entry_hash(entry: AuditEntry) -> str:
    """Return the SHA-256 of the entry as JSON: without `hash` and null fields, keys sorted, no white space."""
    plain = msgspec.structs.replace(entry, hash="")
    return sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def sealed(entry: AuditEntry) -> AuditEntry:
    """Return the entry with its hash."""
    return msgspec.structs.replace(entry, hash=entry_hash(entry))


def verify_chain(
    entries: Iterable[AuditEntry | ChainFault | RemovedEntries],
    *,
    after: AuditHead = BEGINNING,
    head: AuditHead | None = None,
) -> ChainFault | None:
    """Return the first entry that breaks the chain, or None.

    Args:
        entries: oldest first, with a fault in place of each entry that cannot be read. Removed entries are accepted at
            the beginning, and where the entries before them end with the last removed one.
        after: the head that the entries follow; by default the beginning.
        head: the head that the entries must end with; None accepts any.
    """
    seq, previous = after.seq, after.hash
    is_first = after == BEGINNING
    for entry in entries:
        if isinstance(entry, RemovedEntries):
            if not is_first and (entry.removed_up_to, entry.hash) != (seq, previous):
                return ChainFault(entry.removed_up_to, f"removed, and not the entry {seq} that precedes it here")
            seq, previous, is_first = entry.removed_up_to, entry.hash, False
            continue
        is_first = False
        if entry.seq != seq + 1:
            return ChainFault(seq + 1, f"missing: entry {entry.seq} follows entry {seq}")
        if isinstance(entry, ChainFault):
            return entry
        if entry.hash != entry_hash(entry):
            return ChainFault(entry.seq, "changed: its content does not have its hash")
        if entry.previous != previous:
            return ChainFault(entry.seq, f"out of the chain: it does not follow the entry {seq} that is there")
        seq, previous = entry.seq, entry.hash
    if head is not None and (seq, previous) != (head.seq, head.hash):
        problem = "missing: the chain ends before it" if seq < head.seq else "not the entry that the chain ended with"
        return ChainFault(min(seq + 1, head.seq), problem)
    return None

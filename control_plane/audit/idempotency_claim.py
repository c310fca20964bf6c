"""The claim on an Idempotency-Key: a change, and the mark that it was made, are written in one transaction.

Another process may take over a claim that has timed out. The earlier holder then cannot write changes,
because each transaction requires that the claim is unchanged (see `AuditLog.record`).
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import StrEnum

import msgspec

from adapters.store.codec import encode
from adapters.store.config_store import Put, Unchanged


class Phase(StrEnum):
    """The progress of a request with an Idempotency-Key."""

    CLAIMED = "claimed"
    """A process handles the request, or crashed while handling it; no change was written."""
    MADE = "made"
    """The change was written; its response is not stored yet."""
    ANSWERED = "answered"


class IdempotencyRecord(msgspec.Struct, frozen=True):
    """The stored state of one request."""

    fingerprint: str
    """Digest of the request without caller, method, path and key."""
    by: str
    """Name of the control plane that claimed the request."""
    at: float
    """Unix time (s) of the claim."""
    phase: Phase = Phase.CLAIMED
    audit: int = 0
    """Number of the last audit entry of the change; 0 before the first."""
    status: int = 0
    """HTTP status of the response."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of the response."""
    body: bytes = b""
    """Body of the response."""


class ClaimLost(Exception):
    """Another process has taken over the claim; the change was not written."""


class Claim:
    """A claim that this process holds.

    Args:
        key: key in the store.
        record: the value at `key`.
        lease_id: lease of `key`.
        revision: revision of the last write of `key`.
    """

    def __init__(self, key: str, record: IdempotencyRecord, lease_id: int, revision: int) -> None:
        self.key = key
        self.record = record
        self.lease_id = lease_id
        self.revision = revision

    @property
    def unchanged(self) -> Unchanged:
        """The precondition of every transaction under the claim."""
        return Unchanged(self.key, self.revision)

    def mark_made(self, audit: int) -> tuple[IdempotencyRecord, Put]:
        """Return the record of a change with this audit entry, and the write to include in the change's transaction."""
        record = msgspec.structs.replace(self.record, phase=Phase.MADE, audit=audit)
        return record, self.put(record)

    def put(self, record: IdempotencyRecord) -> Put:
        """Return the write of a record."""
        return Put(self.key, encode(record), self.lease_id)

    def written(self, record: IdempotencyRecord, revision: int) -> None:
        """Set the record and the revision at which it was written."""
        self.record, self.revision = record, revision


current: ContextVar[Claim | None] = ContextVar("claim", default=None)
"""The claim of the request in progress; None for a request without a claim. Applies to all changes of the request."""

"""The claim on an Idempotency-Key: a change and the mark that it was made are written in one transaction.

Another process may take over a claim whose holder seems dead. The earlier holder then cannot write changes, since each
transaction expects the claim to be unchanged (see `AuditLog.record`).
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


class Kept(msgspec.Struct, frozen=True):
    """What the store keeps of one request."""

    fingerprint: str
    """Of everything in the request that matters besides caller, method, path and key."""
    by: str
    """The control plane that claimed it."""
    at: float
    """Unix time (s) of the claim."""
    phase: Phase = Phase.CLAIMED
    audit: int = 0
    """Last audit entry of the change; 0 before there is one."""
    status: int = 0
    """Of the answer, with the next two."""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class ClaimLost(Exception):
    """Another process has taken over the claim; the change was not written."""


class Claim:
    """A claim that this process holds.

    Args:
        key: in the store.
        kept: what stands there.
        lease_id: what the key dies with.
        revision: of its last write.
    """

    def __init__(self, key: str, kept: Kept, lease_id: int, revision: int) -> None:
        self.key = key
        self.kept = kept
        self.lease_id = lease_id
        self.revision = revision

    @property
    def unchanged(self) -> Unchanged:
        """What every transaction under the claim expects."""
        return Unchanged(self.key, self.revision)

    def made(self, audit: int) -> tuple[Kept, Put]:
        """What the store is to keep once a change is made, and the write of it that belongs into its transaction."""
        kept = msgspec.structs.replace(self.kept, phase=Phase.MADE, audit=audit)
        return kept, self.put(kept)

    def put(self, kept: Kept) -> Put:
        """A write of the claim."""
        return Put(self.key, encode(kept), self.lease_id)

    def wrote(self, kept: Kept, revision: int) -> None:
        """Note that `kept` was written at `revision`."""
        self.kept, self.revision = kept, revision


current: ContextVar[Claim | None] = ContextVar("claim", default=None)
"""The claim of the request that is being handled; None without one. Every change of a request falls under it, however
deep below the route it is written."""

"""Revocations of browser sessions: of one session at sign-out, or of all sessions of a caller by an admin.

A revocation is in the store, so that every control plane learns of it and a restart forgets none, until the sessions
that it concerns have expired. Each process also keeps it in memory, where a deletion in the store has no effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

import msgspec

from adapters.access.callers import Caller
from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Put, StoreError, Unchanged
from adapters.store.informer import Mirror
from control_plane.audit.audit_log import AuditedAction, AuditLog
from control_plane.ui.browser_sessions import LIFETIME_S, Session

MAX_SESSIONS = 32
"""Maximum number of revoked sessions of one caller that are stored. Above that, every session that the caller has begun
so far is revoked."""

CLOCK_DIFFERENCE_S = 5.0
"""Maximum difference (s) of the clocks of two control planes."""

TRIES = 5
"""Maximum number of tries to store a revocation while other control planes change those of the same caller."""

Change = Callable[["RevokedSessions"], "RevokedSessions"]


class RevokedSessions(msgspec.Struct, frozen=True):
    """The revoked sessions of one caller."""

    caller: str
    before: float = 0.0
    """Unix time (s): every session that began until then is revoked."""
    sessions: tuple[str, ...] = ()
    """Identifiers of further revoked sessions."""
    until: float = 0.0
    """Unix time (s) at which all of these sessions have expired."""

    def has(self, session: Session) -> bool:
        """Whether a session of the caller is revoked."""
        return session.began_at <= self.before or session.id in self.sessions

    def with_session(self, id: str, now: float) -> RevokedSessions:
        """Return the revocations with another session."""
        if len(self.sessions) >= MAX_SESSIONS:
            return RevokedSessions(self.caller, now, (), now + LIFETIME_S)
        return RevokedSessions(self.caller, self.before, (*self.sessions, id), now + LIFETIME_S)

    def with_all(self, now: float) -> RevokedSessions:
        """Return the revocation of every session that the caller has begun, by the clock of any control plane."""
        before = now + CLOCK_DIFFERENCE_S
        return RevokedSessions(self.caller, before, (), before + LIFETIME_S)

    def merged(self, other: RevokedSessions) -> RevokedSessions:
        """Return the revocations of both."""
        sessions = tuple(dict.fromkeys((*self.sessions, *other.sessions)))
        before, until = max(self.before, other.before), max(self.until, other.until)
        return RevokedSessions(self.caller, before, sessions, until)


class SessionRevocations:
    """Reads and makes revocations.

    Args:
        store: the store.
        audit: the audit log, for revocations by admins.
        rng: source of jitter.
        clock: Unix time, in seconds; the clock by which sessions begin.
    """

    def __init__(
        self, store: ConfigStore, audit: AuditLog, *, rng: Random, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._audit = audit
        self._clock = clock
        self._started_at = clock()
        self._known: dict[str, RevokedSessions] = {}
        """By caller, from the store and from this process."""
        self._mirror = Mirror(store, keys.REVOKED_SESSIONS, RevokedSessions, rng=rng, on_change=self._learn)
        self.informer = self._mirror.informer

    def is_revoked(self, session: Session) -> bool | None:
        """Whether a session is revoked.

        None for a session from before the start of this process until the revocations in the store are read.
        """
        known = self._known.get(session.caller)
        if known is not None and known.has(session):
            return True
        return None if session.began_at < self._started_at and not self.informer.synced else False

    async def revoke(self, session: Session) -> None:
        """Revoke a session: at this control plane at once, and in the store.

        Raises:
            StoreError: the store did not answer; the revocation may be forgotten at a restart.
        """
        now = self._clock()

        def change(known: RevokedSessions) -> RevokedSessions:
            return known if known.has(session) else known.with_session(session.id, now)

        self._keep(change(self._known.get(session.caller) or RevokedSessions(session.caller)))
        for _ in range(TRIES):
            revision, put, lease_id = await self._changed(session.caller, change)
            if (await self._store.commit([Unchanged(put.key, revision)], [put])).succeeded:
                await self._release(lease_id)
                return
            await self._release(put.lease_id)
        raise StoreError(f"the sessions of {session.caller} are revoked elsewhere at the same time")

    async def revoke_all(self, author: Caller, caller: str, reason: str) -> None:
        """Revoke every session that a caller has begun.

        Args:
            author: the admin.
            caller: name of the caller.
            reason: the admin's reason, for the audit log.

        Raises:
            StoreError: the store did not answer; whether the revocation was made is unknown.
            ChangeRefused: another control plane changed the revocations of the caller meanwhile.
        """
        now = self._clock()
        revision, put, lease_id = await self._changed(caller, lambda known: known.with_all(now))
        made = AuditedAction(author, "session.revoke", caller, reason)
        await self._audit.record(made, expect=[Unchanged(put.key, revision)], do=[put])
        self._keep(decode(put.value, RevokedSessions))
        await self._release(lease_id)

    async def _changed(self, caller: str, change: Change) -> tuple[int, Put, int]:
        """Return the revision of the stored revocations of a caller, the changed value, and the lease that ends."""
        key = keys.revoked_sessions(caller)
        item = await self._store.get(key)
        stored = RevokedSessions(caller)
        if item is not None:
            # A value that is not readable is replaced; what this process knows of it is kept.
            with suppress(CodecError):
                stored = decode(item.value, RevokedSessions)
        known = self._known.get(caller)
        after = change(stored.merged(known) if known is not None else stored)
        lease_id = await self._store.grant_lease(int(LIFETIME_S + CLOCK_DIFFERENCE_S) + 1)
        revision, before = (item.mod_revision, item.lease_id) if item is not None else (0, 0)
        return revision, Put(key, encode(after), lease_id), before

    async def _release(self, lease_id: int) -> None:
        """Revoke the lease of a replaced value; an unused lease expires by itself."""
        if lease_id:
            with suppress(StoreError):
                await self._store.revoke_lease(lease_id)

    def _learn(self) -> None:
        for revoked in self._mirror.values.values():
            self._keep(revoked)

    def _keep(self, revoked: RevokedSessions) -> None:
        now = self._clock()
        known = self._known.get(revoked.caller)
        self._known[revoked.caller] = revoked.merged(known) if known is not None else revoked
        self._known = {caller: kept for caller, kept in self._known.items() if now < kept.until}

"""A configuration store in which every value is signed by the process that wrote it (ADR 15).

Write access to etcd alone permits the deletion of values, but not the forgery of values: a value is read as empty
bytes, which readers reject, unless a process of the fleet that may write its key has signed it. The last good value
stays in force.

The signature covers the name and the prefix of the writer's fleet (ADR 19), so that a value of another fleet of the
same authority is rejected, wherever it is copied to.

A stored value is one line with the writer's certificate, the time of signing, the signature and the prefix, then the
payload, so that `etcdctl get` still shows the payload readably.
"""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from adapters.store import keys
from adapters.store.config_store import (
    Changed,
    Committed,
    ConfigStore,
    Delete,
    KeyValue,
    Listing,
    Put,
    SameKey,
    StoreError,
    Unchanged,
)
from penstock.wire.identity import BadIdentity, Peer, ProcessRole, SpiffeId
from penstock.wire.peer_keys import Keyring

MARK = b"penstock-signed-2"
"""First word of a signed value, with the version of this format."""

_WORDS = 5
"""Number of words of the first line."""

_MARK_OF_ANY_VERSION = re.compile(rb"penstock-signed-([0-9]{1,9})")

MAX_CLOCK_SKEW_S = 300.0
"""Maximum time (s) by which a time of signing may be in the future; values above that are rejected."""

MAX_READ_S = 30.0
"""Maximum time (s) by which a response may arrive after a newer value of another response, such as of a watch."""

VERIFIED_IN_TURN = 16
"""Number of values that are verified in one turn of the event loop."""

UNAUTHENTIC = b""
"""The value that is read in place of a value whose signature is missing or invalid."""

A = TypeVar("A")
B = TypeVar("B")

_log = structlog.get_logger(__name__)


class BadValue(Exception):
    """A stored value is not authentic; the message states the reason."""


class _Opened(NamedTuple):
    """An authentic value."""

    payload: bytes
    at_ms: int
    """Time of signing (Unix time, ms)."""
    writer: Peer


class _Newest(NamedTuple):
    """The newest authentic value that was read under a key."""

    at_ms: int
    """Time of signing (Unix time, ms)."""
    mod_revision: int
    seen_at: float
    """Unix time (s) at which the value was read."""

    def overtook(self, item: KeyValue, now: float) -> bool:
        """Whether `item` has an older revision, and its response was delayed by no more than MAX_READ_S."""
        return item.mod_revision < self.mod_revision and now - self.seen_at <= MAX_READ_S


class SignedStore:
    """Signs every value that this process writes, and verifies the signature of every value that it reads.

    Under keys that are overwritten (`keys.is_replaceable`), a value that was signed before the newest value read under
    the same key is rejected too, so that an attacker cannot replay an old plan or override.

    Args:
        store: the store of the signed values.
        keyring: holds the identity of this process.
        prefix: prefix of every key in `store`, in place of `keys.DEFAULT_PREFIX`; fleets that share an etcd cluster use
            different prefixes.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        store: ConfigStore,
        keyring: Keyring,
        *,
        prefix: str = keys.DEFAULT_PREFIX,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._keyring = keyring
        self._prefix = prefix
        self._clock = clock
        self._newest: dict[str, _Newest] = {}
        """The newest authentic value that was read under each replaceable key."""
        self.rejected = 0
        """Number of values that were not authentic, since the start."""

    async def get(self, key: str) -> KeyValue | None:
        """See `ConfigStore.get`; a value that is not authentic is empty."""
        item = await self._store.get(self._stored_key(key))
        return None if item is None else self._checked(item)

    async def list(self, prefix: str, *, values: bool = True) -> Listing:
        """See `ConfigStore.list`; values that are not authentic are empty."""
        listing = await self._store.list(self._stored_key(prefix), values=values)
        if not values:
            return Listing(tuple(map(self._renamed, listing.items)), listing.revision)
        return Listing(await self.verify(listing.items), listing.revision)

    async def verify(self, items: Sequence[KeyValue]) -> tuple[KeyValue, ...]:
        """Return items of a store, or of a copy of its content; values that are not authentic are empty."""
        return tuple(await _in_turns(self._checked, items))

    async def commit(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Committed:
        """See `ConfigStore.commit`; every value is signed.

        Raises:
            StoreError: the certificate of this process is not valid now: every reader would reject the new value, and
                the previous value would be lost.
        """
        return await self._store.commit(
            [msgspec.structs.replace(condition, key=self._stored_key(condition.key)) for condition in expect],
            [self._signed(write) for write in do],
        )

    async def grant_lease(self, ttl_s: int) -> int:
        """See `ConfigStore.grant_lease`."""
        return await self._store.grant_lease(ttl_s)

    async def keep_alive(self, lease_id: int) -> None:
        """See `ConfigStore.keep_alive`."""
        await self._store.keep_alive(lease_id)

    def renew_lease(self, lease_id: int, timeout_s: float) -> None:
        """See `ConfigStore.renew_lease`."""
        self._store.renew_lease(lease_id, timeout_s)

    async def revoke_lease(self, lease_id: int) -> None:
        """See `ConfigStore.revoke_lease`."""
        await self._store.revoke_lease(lease_id)

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[tuple[Changed, ...], None]:
        """See `ConfigStore.watch`; values that are not authentic are empty."""
        changes = self._store.watch(self._stored_key(prefix), after_revision)
        try:
            async for batch in changes:
                yield tuple(await _in_turns(self._changed, batch))
        finally:
            await changes.aclose()

    async def close(self) -> None:
        """See `ConfigStore.close`."""
        await self._store.close()

    def _stored_key(self, key: str) -> str:
        return self._prefix + key.removeprefix(keys.DEFAULT_PREFIX)

    def _renamed(self, item: KeyValue) -> KeyValue:
        return msgspec.structs.replace(item, key=keys.DEFAULT_PREFIX + item.key.removeprefix(self._prefix))

    def _changed(self, change: Changed) -> Changed:
        key = keys.DEFAULT_PREFIX + change.key.removeprefix(self._prefix)
        return Changed(key, None if change.now is None else self._checked(change.now), change.revision)

    def _signed(self, write: Put | Delete) -> Put | Delete:
        if isinstance(write, Delete):
            return Delete(self._stored_key(write.key))
        at_ms = self._time_of_signing(write.key)
        identity, stored_key = self._keyring.identity, self._stored_key(write.key)
        signature = identity.sign(_message(identity.id.trust_domain, stored_key, at_ms, write.value))
        words = (MARK, b64encode(identity.peer.certificate), b"%d" % at_ms, b64encode(signature), self._prefix.encode())
        head = b" ".join(words)
        return Put(stored_key, head + b"\n" + write.value, write.lease_id)

    def _time_of_signing(self, key: str) -> int:
        """Return the time (Unix time, ms) with which a value is signed: after that of the newest value.

        Raises:
            StoreError: the certificate of this process is not valid then.
        """
        peer, now_ms = self._keyring.identity.peer, int(self._clock() * 1000)
        newest = self._newest.get(key) if _may_be_ahead(key) else self._newest_of(key)
        if newest is not None and newest.at_ms >= now_ms:
            # The clock is behind, or that of the last writer was ahead: others would reject an earlier time.
            with suppress(BadIdentity):
                peer.check_valid_at((newest.at_ms + 1) / 1000)
                return newest.at_ms + 1
        try:
            peer.check_valid_at(now_ms / 1000)
        except BadIdentity as error:
            raise StoreError(f"{key} is not written: {error}; renew the certificate of this process") from None
        return now_ms

    def _newest_of(self, key: str) -> _Newest | None:
        """Return the newest value that was read under a key, if any.

        A value with a time of signing in the future is ignored: it was read while the clock of this process was ahead.
        """
        newest = self._newest.get(key)
        return None if newest is None or self._is_in_the_future(newest.at_ms) else newest

    def _is_in_the_future(self, at_ms: int) -> bool:
        return at_ms / 1000 > self._clock() + MAX_CLOCK_SKEW_S

    def _checked(self, item: KeyValue) -> KeyValue:
        item = self._renamed(item)
        try:
            payload, at_ms, writer = self._opened(item.key, item.value)
            newest = self._newest_of(item.key)
            is_older = newest is not None and at_ms < newest.at_ms
            if newest is not None and is_older and not newest.overtook(item, self._clock()):
                raise BadValue(f"{writer.id} signed it before a value that was in force here already")
        except BadValue as reason:
            self.rejected += 1
            _log.warning("stored value ignored: it is not authentic", key=item.key, reason=str(reason))
            payload = UNAUTHENTIC
        else:
            if keys.is_replaceable(item.key) and not is_older:
                self._newest[item.key] = _Newest(at_ms, item.mod_revision, self._clock())
        return msgspec.structs.replace(item, value=payload)

    def _opened(self, key: str, value: bytes) -> _Opened:
        """Returns the content of a stored value; raises BadValue."""
        head, _, payload = value.partition(b"\n")
        parts = head.split(b" ")
        mark, identity = parts[0], self._keyring.identity
        if mark != MARK or len(parts) != _WORDS or not parts[2].isdigit() or len(parts[2]) > 15:
            other = _MARK_OF_ANY_VERSION.fullmatch(mark)
            if other is not None and mark != MARK:
                raise BadValue(f"it is signed in format {int(other[1])}, this process reads 2: run the same release")
            raise BadValue("it is not signed")
        if parts[4] != self._prefix.encode():
            raise BadValue(
                f"it was signed for the fleet with prefix {parts[4][:80].decode('ascii', 'replace')} and copied to"
                f" {self._prefix}; restrict write access to etcd, and delete or restore the key"
            )
        try:
            certificate, signature = b64decode(parts[1], validate=True), b64decode(parts[3], validate=True)
        except (Base64Error, ValueError):
            raise BadValue("its signature is not base64") from None
        at_ms = int(parts[2])
        if self._is_in_the_future(at_ms) and not _may_be_ahead(key):
            raise BadValue("it was signed in the future; check that the clocks are synchronised")
        try:
            # A value may outlive the certificate of its writer, so the certificate must have been valid at the time of
            # signing, and must not be revoked.
            writer = identity.trust.verify(certificate, at_ms / 1000)
        except BadIdentity as error:
            raise BadValue(str(error)) from None
        if not may_write(writer.id, key):
            raise BadValue(f"{writer.id} may not write it")
        message = _message(writer.id.trust_domain, self._stored_key(key), at_ms, payload)
        if not writer.has_signed(message, signature):
            raise BadValue("its content is not what was signed")
        return _Opened(payload, at_ms, writer)


async def _in_turns(verify: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """Verify items, and yield to the event loop regularly: a fleet has thousands of values, and each takes 0.2 ms."""
    verified = []
    for number, item in enumerate(items, 1):
        verified.append(verify(item))
        if number % VERIFIED_IN_TURN == 0:
            await asyncio.sleep(0)
    return verified


def _may_be_ahead(key: str) -> bool:
    """Whether a value counts although the clock of its writer is ahead of this one, or this one behind.

    A signature of any process of the fleet identifies the fleet. No control plane could change anything after an end of
    the audit log that does not count. Revoked keys and tenants are merged with those that are known, so that a
    revocation counts by any clock and an earlier value changes nothing.
    """
    return key in (keys.FLEET, keys.AUDIT_HEAD, keys.REVOKED_KEYS) or key.startswith((keys.AUDIT, keys.TENANTS))


def may_write(writer: SpiffeId, key: str) -> bool:
    """Whether a process may write a key.

    An agent may write its own registration. A control plane may write its own registration, and every key that is not a
    registration.
    """
    if writer.role is ProcessRole.AGENT:
        return key == keys.agent(writer.region, writer.name)
    if key.startswith(keys.CONTROL_PLANES):
        return key == keys.control_plane(writer.name)
    return not key.startswith(keys.AGENTS)


def _message(fleet: str, stored_key: str, at_ms: int, payload: bytes) -> bytes:
    return b"penstock/store/2\n%b\n%b\n%d\n%b" % (fleet.encode(), stored_key.encode(), at_ms, payload)

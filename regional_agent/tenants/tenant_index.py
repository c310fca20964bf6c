"""The tenants that the API created, in memory: found by the digest of a key, by the identifier of a key, or by name.

The shards are kept encoded, as they were read, and a key is found by decoding the shard of its tenant: 50,000 tenants
with 100,000 keys take 24 MB in this form, the values of the store included, and 70 MB as objects. What is decoded is
cached by the caller, see `Keyring`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from adapters.store.codec import decode, encode
from penstock.policy.revoked_keys import ID_CHARS
from penstock.tenancy.created_tenants.shard_merge import merged
from penstock.tenancy.tenant_record import TenantKey, TenantRecord, TenantShard, shard_of
from regional_agent.tenants.principal import Principal

ID_BYTES: Final = ID_CHARS // 2
"""Bytes of a key's digest by which the key is indexed, as between agents."""

MAX_CHANGED: Final = 16_384
"""Maximum number of tenants whose last change is remembered. Above it, every tenant counts as changed once."""

MAX_WITHDRAWN: Final = 65_536
"""Maximum number of removed keys that are remembered; the oldest are forgotten first."""


class FoundKey(NamedTuple):
    """A key, and the tenant that has it."""

    tenant: TenantRecord
    key: TenantKey


class TenantIndex:
    """The tenants of all shards. `version` grows with each change of a tenant."""

    __slots__ = ("_changed", "_floor", "_keys", "_shards", "_tenants", "_withdrawn", "version")

    def __init__(self) -> None:
        """Create an empty index."""
        self.version = 0
        self._shards: dict[int, bytes] = {}
        """The shards with tenants, encoded."""
        self._keys: dict[int, int] = {}
        """The number of the shard of each key, by the first ID_BYTES of the key's digest."""
        self._tenants = 0
        self._changed: dict[str, int] = {}
        """The version at which each tenant changed last."""
        self._floor = 0
        """The version before which the changes are not remembered."""
        self._withdrawn: dict[int, None] = {}
        """Keys that were removed."""

    @property
    def tenants(self) -> int:
        """Number of tenants."""
        return self._tenants

    @property
    def keys(self) -> int:
        """Number of keys, revoked and expired ones included."""
        return len(self._keys)

    def shard(self, number: int) -> TenantShard:
        """Return the tenants of a shard."""
        encoded = self._shards.get(number)
        return TenantShard() if encoded is None else decode(encoded, TenantShard)

    def put(self, number: int, read: TenantShard, encoded: bytes = b"") -> TenantShard | None:
        """Combine a shard that was read with the known one. Returns the shard that is kept; None if nothing changed.

        Args:
            encoded: the shard as it stands in the store, which the caller keeps; the index then needs no copy.
        """
        known = self.shard(number)
        shard = merged(known, read)
        if encoded and shard == read:
            self._shards[number] = encoded
        before = {tenant.name: tenant for tenant in known.tenants}
        after = {tenant.name: tenant for tenant in shard.tenants}
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        if not changed:
            return None
        self._note_changes(changed)
        for name in changed:
            self._index(number, before.get(name), after.get(name))
        self._tenants += _existing(after.values()) - _existing(before.values())
        if not encoded or shard != read:
            self._shards[number] = encode(shard)
        return shard

    def find_key(self, digest: bytes) -> FoundKey | None:
        """Return the key with a digest (SHA-256), and its tenant; None if no tenant has it."""
        number = self._keys.get(int.from_bytes(digest[:ID_BYTES], "big"))
        for tenant in () if number is None else self.shard(number).tenants:
            for key in tenant.keys:
                if key.digest == digest:
                    return FoundKey(tenant, key)
        return None

    def find_id(self, key_id: str) -> FoundKey | None:
        """Return the key with an identifier (the first ID_CHARS of its digest), and its tenant; None if none has it."""
        number = self._keys.get(_number_of(key_id))
        for tenant in () if number is None else self.shard(number).tenants:
            for key in tenant.keys:
                if key.digest.hex().startswith(key_id):
                    return FoundKey(tenant, key)
        return None

    def find_tenant(self, name: str) -> TenantRecord | None:
        """Return a tenant by its name; None if there is none, or it was deleted."""
        found = self.shard(shard_of(name)).find(name)
        return None if found is None or found.deleted_at is not None else found

    def is_withdrawn(self, key_id: str) -> bool:
        """Whether a key with this identifier was removed since the start."""
        return _number_of(key_id) in self._withdrawn

    def note_change(self, name: str) -> None:
        """Note a change of what identifies principals beside their tenant (`Principal.source`)."""
        self._note_changes([name])

    def confirms(self, principal: Principal) -> bool:
        """Whether the tenant of a principal, and the key of its token, are as when it was last confirmed."""
        known = principal.version
        changed = self._changed
        if known < self._floor or changed.get(principal.tenant.name, 0) > known:
            return False
        if principal.source and changed.get(principal.source, 0) > known:
            return False
        principal.version = self.version
        return True

    def _note_changes(self, names: list[str]) -> None:
        self.version += 1
        self._changed.update(dict.fromkeys(names, self.version))
        if len(self._changed) > MAX_CHANGED:
            self._changed.clear()
            self._floor = self.version

    def _index(self, number: int, before: TenantRecord | None, after: TenantRecord | None) -> None:
        """Index the keys of a tenant that has changed."""
        had = set() if before is None else {_key_number(key) for key in before.keys}
        has = set() if after is None else {_key_number(key) for key in after.keys}
        for key in had - has:
            if self._keys.get(key) == number:
                del self._keys[key]
            self._withdrawn[key] = None
        for key in has:
            self._keys[key] = number
            self._withdrawn.pop(key, None)
        while len(self._withdrawn) > MAX_WITHDRAWN:
            del self._withdrawn[next(iter(self._withdrawn))]


def _existing(tenants: Iterable[TenantRecord]) -> int:
    return sum(tenant.deleted_at is None for tenant in tenants)


def _key_number(key: TenantKey) -> int:
    return int.from_bytes(key.digest[:ID_BYTES], "big")


def _number_of(key_id: str) -> int:
    """Return the number under which the key with an identifier is indexed; -1 for an invalid identifier."""
    try:
        return int(key_id, 16) if len(key_id) == ID_CHARS else -1
    except ValueError:
        return -1

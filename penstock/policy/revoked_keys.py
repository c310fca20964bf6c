"""Revoked API keys of tenants: a list beside the policy, which applies to every policy, also to one rolled back to.

The list has an entry for each key that was revoked or whose revocation was lifted, with the time of that change. Two
lists are combined by taking the newer entry of each key (a last-writer-wins set), so that neither an older list nor a
lost one makes a revoked key valid: a revocation ends only with the entry that lifts it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.policy.policy import Policy

MAX_REVOKED_KEYS = 1000
"""Maximum number of entries; few enough for one value of the store."""

DIGEST_CHARS = 64
"""Characters of a key's SHA-256, in lower-case hexadecimal."""

ID_CHARS = 16
"""Characters of a digest that identify a key in the API, in messages and between agents: 64 bits."""

MAX_REASON_CHARS = 100
"""Maximum length of the reason in an entry, in characters; the audit log has the whole reason."""


class RevokedKey(msgspec.Struct, frozen=True):
    """The revocation of one API key, or the lift of a revocation."""

    digest: str
    """SHA-256 of the key, in lower-case hexadecimal."""
    at: float
    """Unix time (s) of the change."""
    author: str
    reason: str
    lifted: bool = False
    """Whether the key is valid again, where the policy in force has it."""

    @property
    def id(self) -> str:
        """The first ID_CHARS of the digest."""
        return self.digest[:ID_CHARS]


class TooManyRevokedKeys(Exception):
    """The list has MAX_REVOKED_KEYS revoked keys."""


class RevokedKeySet(msgspec.Struct, frozen=True):
    """All entries, by digest. The stored value, and the file of an agent."""

    keys: tuple[RevokedKey, ...] = ()

    def merged(self, others: Iterable[RevokedKey]) -> RevokedKeySet:
        """Returns the set with the newer entry of each key, or this set if `others` has none.

        Above MAX_REVOKED_KEYS the oldest lifted entries are removed; revoked ones never are.
        """
        newest = {entry.digest: entry for entry in self.keys}
        for entry in others:
            known = newest.get(entry.digest)
            if known is None or (entry.at, not entry.lifted) > (known.at, not known.lifted):
                newest[entry.digest] = entry
        spare = sorted((entry for entry in newest.values() if entry.lifted), key=lambda entry: (entry.at, entry.digest))
        for entry in spare[: max(0, len(newest) - MAX_REVOKED_KEYS)]:
            del newest[entry.digest]
        merged = RevokedKeySet(tuple(newest[digest] for digest in sorted(newest)))
        return self if merged == self else merged

    def changed(self, entry: RevokedKey) -> RevokedKeySet:
        """Returns the set with a new entry.

        Raises:
            TooManyRevokedKeys: the key is not in the set, and the set is full.
        """
        others = [known for known in self.keys if known.digest != entry.digest]
        if not entry.lifted and sum(not known.lifted for known in others) >= MAX_REVOKED_KEYS:
            raise TooManyRevokedKeys(
                f"{MAX_REVOKED_KEYS} keys are revoked, and no more are kept: remove revoked keys from the policy, and"
                " then lift their revocation"
            )
        return RevokedKeySet(tuple(others)).merged([entry])

    def find(self, id_or_digest: str) -> RevokedKey | None:
        """Returns the revoked key with this id or digest; None if there is none, or its revocation is lifted."""
        return next((entry for entry in self.revoked if id_or_digest in (entry.id, entry.digest)), None)

    @property
    def revoked(self) -> tuple[RevokedKey, ...]:
        """The entries of the keys that are revoked now."""
        return tuple(entry for entry in self.keys if not entry.lifted)

    @property
    def changed_at(self) -> float | None:
        """Unix time (s) of the newest entry; None without entries."""
        return max((entry.at for entry in self.keys), default=None)


def without_keys(policy: Policy, digests: frozenset[str]) -> Policy:
    """Returns a copy of a policy whose tenants do not have the API keys with these digests (SHA-256, hexadecimal).

    The copy is known by the digest of the policy. It is a new object even if no tenant has one of the keys, so that
    what was decided under the policy is decided again.
    """
    tenants = {
        name: msgspec.structs.replace(
            tenant, key_digests=tuple(digest for digest in tenant.key_digests if digest not in digests)
        )
        if not digests.isdisjoint(tenant.key_digests)
        else tenant
        for name, tenant in policy.tenants.items()
    }
    ids = frozenset(digest[:ID_CHARS] for digest in digests)
    return msgspec.structs.replace(policy, tenants=tenants).named(policy.digest()).revoking(ids)

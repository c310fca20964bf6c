"""Follows the public keys of identity providers: watched in the store, and kept on disk for starts without it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import structlog

from adapters.store import keys
from adapters.store.config_store import ConfigStore
from penstock.policy.kinds.issuers import Issuer
from penstock.tenancy.tokens.issuer_keys import IssuerKeySet, PublicKey, UsableKeys, other_name, usable_keys
from regional_agent.config.followed_values import FollowedValues
from regional_agent.config.last_known_good import StateFile
from regional_agent.tenants.tenant_index import TenantIndex

ANSWER_S = 3.0
"""Time (s) after a question for new keys for which requests wait for them."""

ASK_APART_S = 5.0
"""Minimum time (s) between two questions for the keys of one issuer."""

log = structlog.get_logger()


class IssuerKeySets(msgspec.Struct, frozen=True):
    """The keys of all issuers, as stored on disk."""

    sets: tuple[IssuerKeySet, ...] = ()


class IssuerRegistry:
    """The keys of identity providers, as last published. A removed key is noted in the index as a change."""

    def __init__(
        self,
        store: ConfigStore,
        state_dir: Path,
        index: TenantIndex,
        rng: Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty registry; `start` loads it.

        Args:
            state_dir: directory in which the registry keeps its file.
            index: invalidates what was identified by a key that changes.
            rng: adds jitter to reconnects.
            clock: monotonic time (s).
        """
        self.on_asked: Callable[[], None] = lambda: None
        """Called when the leader should learn of `asked` at once."""
        self._clock = clock
        self._asked_at: dict[str, float] = {}
        """Time (s) of the last question, by issuer."""
        self._changed = asyncio.Event()
        """Set, and replaced, when keys change."""
        self._index = index
        self._file = StateFile(state_dir / "issuer-keys", IssuerKeySets)
        self._values = FollowedValues(store, keys.ISSUERS, IssuerKeySet, self._on_published, rng)
        self.wait_read = self._values.wait_read
        self.stop = self._values.stop
        self._sets: dict[str, IssuerKeySet] = {}
        """By the names under which they are published."""
        self._keys: dict[str, UsableKeys] = {}

    def start(self) -> None:
        """Load the stored keys and start to follow the store."""
        stored = self._file.load()
        for key_set in () if stored is None else stored.sets:
            # The set of the policy in force is the first one of an issuer, as it was published.
            known = self._sets.get(key_set.issuer)
            name = key_set.issuer if known is None else other_name(key_set.issuer, key_set.jwks_url)
            self._use(name, key_set)
        self._values.start()

    def find(self, issuer: Issuer, kid: str | None) -> tuple[PublicKey, ...]:
        """Return the keys of an issuer that a token may have, by its identifier; all keys for a token without one."""
        for name in (issuer.name, other_name(issuer.name, issuer.jwks_url)):
            key_set = self._sets.get(name)
            if key_set is not None and key_set.jwks_url == issuer.jwks_url:
                break
        else:
            return ()
        return self._keys[name].find(kid)

    def ask(self, issuer: Issuer) -> bool:
        """Ask the leader to fetch the keys of an issuer, since a token has an unknown one; returns whether an answer
        may still come. Tokens with invented identifiers cause one question in ASK_APART_S."""
        now = self._clock()
        if now - self._asked_at.get(issuer.name, -inf) >= ASK_APART_S:
            self._asked_at[issuer.name] = now
            self.on_asked()
        return now - self._asked_at[issuer.name] < ANSWER_S

    def asked(self) -> tuple[str, ...]:
        """The issuers whose keys the leader is asked to fetch."""
        earliest = self._clock() - ANSWER_S
        return tuple(name for name, asked_at in self._asked_at.items() if asked_at > earliest)

    async def wait_changed(self) -> None:
        """Wait until keys of any issuer change, or no answer to a question can come any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(self._asked_at.values(), default=-inf) + ANSWER_S - self._clock()):
                await self._changed.wait()

    def status(self) -> dict[str, Any]:
        """Return the number of keys of each issuer, when they changed (Unix time, s), and the age (s) of all."""
        sets = {name: {"keys": len(each.keys), "changed_at": each.changed_at} for name, each in self._sets.items()}
        return {"age_s": self._values.age_s, "issuers": sets}

    def _on_published(self, name: str, published: IssuerKeySet, _: bytes) -> None:
        names = published.issuer, other_name(published.issuer, published.jwks_url)
        if name in names and self._use(name, published):
            self._values.save(self._file.save(IssuerKeySets(tuple(self._sets.values()))))

    def _use(self, name: str, key_set: IssuerKeySet) -> bool:
        """Use the keys of one issuer, published under a name; returns whether they have changed."""
        before = self._sets.get(name)
        if key_set == before:
            return False
        try:
            usable = usable_keys(list(key_set.keys))
        except ValueError as error:
            log.error("keys of an issuer are not used", issuer=name, reason=str(error))
            return False
        self._sets[name], self._keys[name] = key_set, usable
        if key_set.issuer in self._asked_at:
            # Answered: the leader is asked no more.
            self._asked_at[key_set.issuer] = min(self._asked_at[key_set.issuer], self._clock() - ANSWER_S)
        self._changed.set()
        self._changed = asyncio.Event()
        for jwk in () if before is None else before.keys:
            if jwk not in key_set.keys or (before is not None and before.jwks_url != key_set.jwks_url):
                self._index.note_change(key_source(key_set.issuer, jwk.get("kid", "")))
        return True


def key_source(issuer: str, kid: str) -> str:
    """The name by which the index knows a key of an issuer; no tenant has such a name."""
    return f"{issuer}/{kid}"

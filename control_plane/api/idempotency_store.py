"""Answers to changes, kept in the store, so that a change sent again is recognised at any control plane.

A request is claimed before it is handled, marked as made in the transaction of its change, and answered at the end.
Whatever dies in between, the change is never made twice under one key: what is marked is not made again, and a claim
that is taken over fences whoever had it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from adapters.store import keys
from adapters.store.claim import Claim, Kept, Phase
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Delete, Put, StoreError, Unchanged

KEPT_S = 3600
"""How long (s) an answer is kept."""

CLAIM_S = 30.0
"""A claim this old (s) without a change is taken over: no request is handled for so long by anybody alive."""

MAX_KEPT = 1_000
"""Requests kept; beyond it the oldest go."""

MAX_REMOVED = 100
"""At a time, of those that are too many."""

MAX_ANSWER_BYTES = 16 * 1024
"""A larger one is not kept; that its change was made is."""

_log = structlog.get_logger(__name__)


class KeptAnswers:
    """Claims requests and keeps their answers.

    Args:
        store: the fleet's configuration store.
        name: of this control plane.
        clock: Unix time, in seconds.
    """

    def __init__(self, store: ConfigStore, name: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._name = name
        self._clock = clock

    async def claim(self, name: str, fingerprint: str) -> Claim | Kept:
        """The claim to handle a request, or what is kept of it where it was handled or is under way.

        Args:
            name: of the request: caller, method, path and key in one.
            fingerprint: of the rest of it.

        Raises:
            StoreError: the store is away, or what is kept cannot be read; handle nothing.
        """
        key = keys.answer(name)
        item = await self._store.get(key)
        if item is None:
            await self._make_room()
        else:
            there = _decoded(item.value)
            if there.phase is not Phase.CLAIMED or self._clock() - there.at < CLAIM_S:
                return there
        mine = Kept(fingerprint, self._name, self._clock())
        lease_id = await self._store.grant_lease(KEPT_S)
        expected = Unchanged(key, item.mod_revision if item is not None else 0)
        done = await self._store.commit([expected], [Put(key, encode(mine), lease_id)])
        if done.succeeded:
            return Claim(key, mine, lease_id, done.revision)
        await self._end(lease_id)
        item = await self._store.get(key)
        # Gone again already: whoever was first was refused, and may be asked for the reason once more.
        return _decoded(item.value) if item is not None else mine

    async def answered(self, claim: Claim, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        """Keep the answer of a request that succeeded; with the store away, only that its change was made is kept."""
        kept = msgspec.structs.replace(claim.kept, phase=Phase.ANSWERED, status=status, headers=headers, body=body)
        try:
            done = await self._store.commit([claim.unchanged], [claim.put(kept)])
        except StoreError as error:
            _log.warning("an answer is not kept", reason=str(error))
            return
        if done.succeeded:
            claim.wrote(kept, done.revision)

    async def release(self, claim: Claim) -> None:
        """End a claim under which nothing was changed, so that the request is judged anew when it comes again.

        A change whose fate is unknown is either marked by now, and then this does nothing, or never will be made.
        """
        if claim.kept.phase is not Phase.CLAIMED:
            return
        with suppress(StoreError):
            if (await self._store.commit([claim.unchanged], [Delete(claim.key)])).succeeded:
                await self._end(claim.lease_id)

    async def _make_room(self) -> None:
        items = (await self._store.list(keys.ANSWERS, values=False)).items
        over = len(items) - MAX_KEPT + 1
        if over > 0:
            oldest = sorted(items, key=lambda item: item.create_revision)[: min(over, MAX_REMOVED)]
            await self._store.commit((), [Delete(item.key) for item in oldest])

    async def _end(self, lease_id: int) -> None:
        with suppress(StoreError):
            await self._store.revoke_lease(lease_id)


def _decoded(value: bytes) -> Kept:
    try:
        return decode(value, Kept)
    except CodecError as error:
        raise StoreError(f"what is kept of a request cannot be read: {error}") from error

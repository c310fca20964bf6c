"""What became of the last revisions of the policy source, kept in the store by whoever led when it was judged."""

from __future__ import annotations

from collections import deque

import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Delete, Put, SameKey, Unchanged
from control_plane.policy.source.revision import Revision, RevisionResult

MAX_REVISIONS = 100
"""Revisions that are kept."""

_log = structlog.get_logger(__name__)


class RevisionStore:
    """Reads and records revisions."""

    def __init__(self, store: ConfigStore) -> None:
        self._store = store

    async def newest_first(self) -> list[Revision]:
        """Every revision that is kept.

        Raises:
            StoreError: the store cannot be read.
        """
        found = []
        for item in (await self._store.list(keys.REVISIONS)).items:
            try:
                found.append(decode(item.value, Revision))
            except CodecError as error:
                _log.warning("revision cannot be read", key=item.key, reason=str(error))
        return sorted(found, key=lambda one: -one.number)

    async def record(self, judged: deque[RevisionResult], epoch: int) -> None:
        """Record for the leader of `epoch` what was judged, and take it out; what is recorded already is not again.

        Raises:
            StoreError: the store refuses or cannot be reached; what is not recorded yet stays.
        """
        while judged:
            known = await self.newest_first()
            if not _is_known(judged[0], known):
                number = known[0].number + 1 if known else 1
                one = judged[0]
                revision = Revision(number, one.at, one.digest, one.provenance, one.errors)
                expect: list[SameKey | Unchanged] = [
                    SameKey(keys.LEADER, epoch),
                    Unchanged(keys.revision(number), 0),
                ]
                do: list[Put | Delete] = [Put(keys.revision(number), encode(revision))]
                do += [Delete(keys.revision(old.number)) for old in known[MAX_REVISIONS - 1 :]]
                if not (await self._store.commit(expect, do)).succeeded:
                    return
            judged.popleft()


def _is_known(one: RevisionResult, known: list[Revision]) -> bool:
    """Whether the result is recorded: a commit's in any revision, a folder's in the newest revision only."""
    candidates = known if one.provenance is not None else known[:1]
    return any(
        (one.digest, one.provenance, one.errors) == (two.digest, two.provenance, two.errors) for two in candidates
    )

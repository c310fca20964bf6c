"""Recent revisions of the policy source with their results, recorded in the store by the leader."""

from __future__ import annotations

from collections import deque

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Delete, Put, SameKey, Unchanged
from control_plane.policy.source.revision import Revision, RevisionResult

MAX_REVISIONS = 100
"""Maximum number of revisions that are kept; older revisions are deleted."""

_log = structlog.get_logger(__name__)


class RevisionStore:
    """Reads and records revisions."""

    def __init__(self, store: ConfigStore) -> None:
        self._store = store

    async def newest_first(self) -> list[Revision]:
        """Return every recorded revision.

        Raises:
            StoreError: the store cannot be read.
        """
        found = []
        for item in (await self._store.list(keys.REVISIONS)).items:
            try:
                found.append(decode(item.value, Revision))
            except CodecError as error:
                _log.warning("stored revision cannot be decoded", key=item.key, reason=str(error))
        return sorted(found, key=lambda revision: -revision.number)

    async def record(self, results: deque[RevisionResult], epoch: int) -> None:
        """Record results as the leader of `epoch`, and remove them from `results`; each is recorded once.

        Raises:
            StoreError: the store refuses or cannot be reached; results that are not recorded remain.
        """
        while results:
            result = results[0]
            recorded = await self.newest_first()
            if not _is_recorded(result, recorded):
                number = recorded[0].number + 1 if recorded else 1
                revision = Revision(**msgspec.structs.asdict(result), number=number)
                expect: list[SameKey | Unchanged] = [
                    SameKey(keys.LEADER, epoch),
                    Unchanged(keys.revision(number), 0),
                ]
                do: list[Put | Delete] = [Put(keys.revision(number), encode(revision))]
                do += [Delete(keys.revision(old.number)) for old in recorded[MAX_REVISIONS - 1 :]]
                if not (await self._store.commit(expect, do)).succeeded:
                    return
            # A result that arrived meanwhile may have displaced the recorded result from a full deque.
            if results[0] is result:
                results.popleft()


def _is_recorded(result: RevisionResult, recorded: list[Revision]) -> bool:
    """Whether the result is recorded already: of a commit as any revision, of a folder as the newest revision."""
    candidates = recorded if result.provenance is not None else recorded[:1]
    return any(
        (result.digest, result.provenance, result.errors) == (revision.digest, revision.provenance, revision.errors)
        for revision in candidates
    )

"""The policy to plan by: the newest good state of a folder or repository, else what the fleet obeys already."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import ConfigStore, StoreError
from adapters.store.stored_policies import FromNewerRelease, read_policy
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.source.readers import Bundle, BundleReader, Unreadable
from control_plane.policy.source.revision import MAX_ERRORS, Origin, RevisionResult
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance

MAX_JUDGEMENTS = 20
"""Revisions judged lately that nobody has recorded yet."""

_log = structlog.get_logger(__name__)


class PolicySource:
    """Looks at a bundle now and then; a bad state of it changes nothing but `refused`.

    Args:
        reader: reads the bundle.
        on_stale: called when what was read may be outdated; must not block.
    """

    def __init__(self, reader: BundleReader, on_stale: Callable[[], None] = lambda: None) -> None:
        self._reader = reader
        self._on_doubt = on_stale
        self._judged: Bundle | None = None
        self._before: Bundle | None = None
        self._doubts = 0
        self._dispelled = -1
        self.current: Policy | None = None
        self.origin: Origin | None = None
        self.provenance: Provenance | None = None
        """Of `current`."""
        self.refused: tuple[str, ...] = ()
        """What is wrong with the source as it is now; empty when it is accepted."""
        self.refused_provenance: Provenance | None = None
        self.unreadable = ""
        """Why the source could not be read the last time; empty when it could."""
        self.results: deque[RevisionResult] = deque(maxlen=MAX_JUDGEMENTS)
        """Oldest first; whoever records one takes it out."""

    @property
    def poll_s(self) -> float:
        """Time (s) between two looks."""
        return self._reader.poll_s

    @property
    def fresh(self) -> bool:
        """Whether a look that began after the last `doubt` has ended well."""
        return self._dispelled >= self._doubts

    def mark_stale(self) -> None:
        """What was read so far may be old: another control plane may have seen more."""
        self._doubts += 1
        self._on_doubt()

    async def load(self) -> None:
        """Judge the source as it is."""
        bundle = await self._look()
        if bundle is not None:
            await self._judge(bundle)

    async def poll(self) -> None:
        """Judge the source if it changed; a folder when two polls in a row found it alike, so not while written."""
        before = self._before
        bundle = await self._look()
        if bundle is not None and (self._reader.atomic or bundle == before) and bundle != self._judged:
            await self._judge(bundle)

    async def close(self) -> None:
        """Let go of the source; what is in force stays."""
        await self._reader.close()

    async def adopt(self, store: ConfigStore) -> None:
        """Without any good policy since the start, take the one that the plan in force names.

        Raises:
            StoreError: the store cannot be read.
        """
        if self.current is not None:
            return
        found = await _in_force(store)
        if found is not None and self.current is None:
            self.current, self.provenance = found
            self.origin = Origin.STORE
            _log.warning("policy taken from the store, since the source has none", digest=self.current.digest())

    async def _look(self) -> Bundle | None:
        doubts = self._doubts
        try:
            bundle = await self._reader.read()
        except Unreadable as error:
            if str(error) != self.unreadable:
                _log.warning("policy source cannot be read", reason=str(error))
            self.unreadable = str(error)
            return None
        if self.unreadable:
            _log.info("policy source can be read again", source=self._reader.place)
        self.unreadable = ""
        self._before = bundle
        self._dispelled = doubts
        return bundle

    async def _judge(self, bundle: Bundle) -> None:
        self._judged = bundle
        try:
            if bundle.errors:
                raise PolicyRefused(bundle.errors)
            # In a thread, since a large bundle takes longer than a lease may wait to be renewed.
            policy = await asyncio.to_thread(compile_bundle, bundle.files)
        except PolicyRefused as refused:
            self._refuse([str(error) for error in refused.errors], bundle.provenance)
        else:
            self._accept(policy, bundle.provenance)

    def _accept(self, policy: Policy, provenance: Provenance | None) -> None:
        self.current, self.provenance = policy, provenance
        self.origin = Origin.REPOSITORY if provenance is not None else Origin.FOLDER
        self.refused, self.refused_provenance = (), None
        digest = policy.digest()
        self.results.append(RevisionResult(digest, provenance, time.time()))
        _log.info("policy accepted", digest=digest, source=self._reader.place, commit=_commit(provenance))

    def _refuse(self, errors: list[str], provenance: Provenance | None) -> None:
        self.refused, self.refused_provenance = tuple(errors[:MAX_ERRORS]), provenance
        self.results.append(RevisionResult("", provenance, time.time(), self.refused))
        kept = self.current.digest() if self.current is not None else None
        for error in self.refused:
            _log.error("policy refused", error=error, source=self._reader.place, commit=_commit(provenance), kept=kept)


def _commit(provenance: Provenance | None) -> str | None:
    return str(provenance) if provenance is not None else None


async def _in_force(store: ConfigStore) -> tuple[Policy, Provenance | None] | None:
    """The policy that the newest plan in the store names and where it is from, if both can be read."""
    plans = []
    for item in (await store.list(keys.PLANS)).items:
        try:
            plans.append(decode(item.value, RegionPlan))
        except CodecError as error:
            _log.warning("plan in force cannot be read", key=item.key, reason=str(error))
    if not plans:
        return None
    newest = max(plans, key=lambda plan: (plan.epoch, plan.generation))
    policy = await stored_policy(store, newest.policy_digest)
    return None if policy is None else (policy, newest.provenance)


class NotForUs(StoreError):
    """A policy in the store is whole and not readable here: a release wrote it that knows more than this one."""


async def stored_policy(store: ConfigStore, digest: str) -> Policy | None:
    """The policy that the store keeps under `digest`; None where it has none, or not that one.

    Raises:
        NotForUs: it is for newer releases.
        StoreError: the store cannot be read.
    """
    stored = await store.get(keys.policy(digest))
    if stored is None:
        return None
    try:
        return read_policy(stored.value, digest)
    except FromNewerRelease as error:
        raise NotForUs(f"policy {digest[:12]} cannot be read by this release: {error}") from None
    except CodecError as error:
        _log.warning("stored policy cannot be read", digest=digest, reason=str(error))
        return None

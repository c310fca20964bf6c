"""The policy source: the newest valid revision of a folder or repository, else the policy of the published plan."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import ConfigStore, StoreError
from adapters.store.stored_policies import FromNewerRelease, read_policy
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import CompiledBundle, compile_revision
from control_plane.policy.source.readers import Bundle, BundleReader, SourceUnreadable
from control_plane.policy.source.revision import MAX_ERRORS, Origin, RevisionResult
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance

MIN_POLL_INTERVAL_S = 0.5
"""Minimum time (s) between the starts of two polls, requested ones included."""

RETRY_INTERVAL_S = 5.0
"""Time (s) after which an unreadable source is polled again, where that is less than its polling interval."""

MAX_UNRECORDED = 20
"""Maximum number of results that are held until the leader records them; beyond it, the oldest are dropped."""

_log = structlog.get_logger(__name__)


class PolicySource:
    """Polls a bundle and compiles it. An invalid revision changes only `refused`; the policy in force stays.

    Args:
        reader: reads the bundle.
        on_stale: called when the last read may be outdated; must not block.
    """

    def __init__(self, reader: BundleReader, on_stale: Callable[[], None] = lambda: None) -> None:
        self._reader = reader
        self._on_stale = on_stale
        self._checked: Bundle | None = None
        self._last_read: Bundle | None = None
        self._stale_marks = 0
        self._marks_at_read = -1
        """Value of `_stale_marks` when the last successful read began."""
        self.current: Policy | None = None
        self.origin: Origin | None = None
        self.provenance: Provenance | None = None
        """Commit of `current`; None where it is from a folder."""
        self.refused: tuple[str, ...] = ()
        """Errors of the newest revision; empty where it is accepted."""
        self.accepted_removals: Mapping[str, Collection[str]] = {}
        """Names of documents that the bundle of `current` no longer has on purpose, by kind."""
        self.withheld: tuple[str, ...] = ()
        """Why the leader does not roll out `current`, although it is valid; empty at other control planes."""
        self._refused_provenance: Provenance | None = None
        self.unreadable = ""
        """Why the last read failed; empty where it succeeded."""
        self.results: deque[RevisionResult] = deque(maxlen=MAX_UNRECORDED)
        """Results that the leader has not recorded yet, oldest first."""

    @property
    def poll_s(self) -> float:
        """Time (s) between two polls."""
        return self._reader.poll_s

    @property
    def fresh(self) -> bool:
        """Whether a read that began after the last `mark_stale` has succeeded."""
        return self._marks_at_read >= self._stale_marks

    @property
    def errors(self) -> tuple[str, ...]:
        """Why the newest revision is not rolled out; empty if it is."""
        return self.refused or self.withheld

    @property
    def refused_provenance(self) -> Provenance | None:
        """Commit of the revision that is not rolled out."""
        return self.provenance if self.withheld and not self.refused else self._refused_provenance

    def withhold(self, errors: tuple[str, ...]) -> None:
        """Record why the leader does not roll out `current`, or with no errors that it does."""
        if errors and errors != self.withheld and self.current is not None:
            digest = self.current.digest()
            if self.results and self.results[-1].digest == digest:
                self.results.pop()
            self.results.append(RevisionResult(digest, self.provenance, time.time(), errors))
            for error in errors:
                _log.error("policy not rolled out", error=error, digest=digest, commit=_commit(self.provenance))
        self.withheld = errors

    def mark_stale(self) -> None:
        """Mark everything read so far as outdated: another control plane may have read a newer revision."""
        self._stale_marks += 1
        self._on_stale()

    async def load(self) -> None:
        """Read and check the source, at the start."""
        bundle = await self._read()
        if bundle is not None:
            await self._check(bundle)

    async def poll(self) -> None:
        """Check the source if it changed. A folder is checked once two polls in a row read the same content."""
        before = self._last_read
        bundle = await self._read()
        if bundle is not None and (self._reader.atomic or bundle == before) and bundle != self._checked:
            await self._check(bundle)

    async def close(self) -> None:
        """Close the reader; the policy in force stays."""
        await self._reader.close()

    async def adopt(self, store: ConfigStore) -> None:
        """Use the published plan's policy, if the source has had no valid policy since the start."""
        if self.current is not None:
            return
        try:
            found = await _in_force(store)
        except StoreError as error:
            _log.warning("cannot read the policy from the store", reason=str(error))
            return
        if found is not None and self.current is None:
            self.current, self.provenance = found
            self.origin = Origin.STORE
            _log.warning("source has no valid policy, using the policy in the store", digest=self.current.digest())

    async def _read(self) -> Bundle | None:
        marks = self._stale_marks
        try:
            bundle = await self._reader.read()
        except SourceUnreadable as error:
            if str(error) != self.unreadable:
                _log.warning("policy source cannot be read", reason=str(error))
            self.unreadable = str(error)
            return None
        if self.unreadable:
            _log.info("policy source can be read again", source=self._reader.place)
        self.unreadable = ""
        self._last_read = bundle
        self._marks_at_read = marks
        return bundle

    async def _check(self, bundle: Bundle) -> None:
        try:
            if bundle.errors:
                raise PolicyRefused(bundle.errors)
            # Compiling a large bundle takes seconds, so it runs in a thread.
            compiled = await asyncio.to_thread(compile_revision, bundle.files)
        except PolicyRefused as refused:
            self._refuse([str(error) for error in refused.errors], bundle.provenance)
        except Exception as defect:
            # Reported once, since the policy in force stays meanwhile; the next poll repeats the check.
            problem = f"the control plane cannot check the bundle ({type(defect).__name__}); its log has details"
            if self.refused != (problem,):
                _log.exception("policy not checked", source=self._reader.place, commit=_commit(bundle.provenance))
                self._refuse([problem], bundle.provenance)
            return
        else:
            self._accept(compiled, bundle.provenance)
        self._checked = bundle

    def _accept(self, compiled: CompiledBundle, provenance: Provenance | None) -> None:
        policy = compiled.policy
        self.current, self.provenance, self.accepted_removals = policy, provenance, compiled.accepted_removals
        self.origin = Origin.REPOSITORY if provenance is not None else Origin.FOLDER
        self.refused, self.withheld, self._refused_provenance = (), (), None
        digest = policy.digest()
        self.results.append(RevisionResult(digest, provenance, time.time()))
        _log.info("policy accepted", digest=digest, source=self._reader.place, commit=_commit(provenance))

    def _refuse(self, errors: list[str], provenance: Provenance | None) -> None:
        self.refused, self._refused_provenance = tuple(errors[:MAX_ERRORS]), provenance
        self.results.append(RevisionResult("", provenance, time.time(), self.refused))
        kept = self.current.digest() if self.current is not None else None
        for error in self.refused:
            _log.error("policy refused", error=error, source=self._reader.place, commit=_commit(provenance), kept=kept)


def _commit(provenance: Provenance | None) -> str | None:
    return str(provenance) if provenance is not None else None


async def _in_force(store: ConfigStore) -> tuple[Policy, Provenance | None] | None:
    """Return the policy that the newest plan in the store names, with its commit; None if either cannot be read."""
    plans = []
    for item in (await store.list(keys.PLANS)).items:
        try:
            plans.append(decode(item.value, RegionPlan))
        except CodecError as error:
            _log.warning("stored plan cannot be decoded", key=item.key, reason=str(error))
    if not plans:
        return None
    newest = max(plans, key=lambda plan: (plan.epoch, plan.generation))
    policy = await stored_policy(store, newest.policy_digest)
    return None if policy is None else (policy, newest.provenance)


class PolicyFromNewerRelease(StoreError):
    """A newer release wrote the stored policy, and this release cannot decode it."""


async def stored_policy(store: ConfigStore, digest: str) -> Policy | None:
    """Return the policy stored under `digest`; None where there is none, or its content does not match the digest.

    Raises:
        PolicyFromNewerRelease: a newer release wrote it.
        StoreError: the store cannot be read.
    """
    stored = await store.get(keys.policy(digest))
    if stored is None:
        return None
    try:
        return read_policy(stored.value, digest)
    except FromNewerRelease as error:
        raise PolicyFromNewerRelease(f"policy {digest[:12]} cannot be decoded by this release: {error}") from None
    except CodecError as error:
        _log.warning("stored policy cannot be decoded", digest=digest, reason=str(error))
        return None

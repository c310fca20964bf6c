"""Publishes plans to the store: one key a region, written only if it is unchanged since the leader's last write.

Every write is conditional on the leader key of the writer's epoch, so that a former leader's late write has no effect.
The policy that a plan names is stored before the plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode, is_as_written
from adapters.store.config_store import ConfigStore, Delete, KeyValue, Put, SameKey, StoreError, Unchanged
from control_plane.metrics import PublishOutcome
from control_plane.planning.plan_epoch import PlanEpoch
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy

REFRESH_S = 5.0
"""Time (s) after which an unchanged slice is written again, so that agents can detect that planning continues."""

MAX_UNUSED_POLICIES = 20
"""Maximum number of unused policies that are retained, for agents that lag behind and for rollbacks."""

_log = structlog.get_logger(__name__)


class Fenced(Exception):
    """The leader key does not have this epoch: the write had no effect, and further writes are not permitted."""


class StoredSlice(msgspec.Struct, frozen=True):
    """A region's slice as the store has it."""

    plan: RegionPlan | None
    """None if the stored slice cannot be decoded."""
    mod_revision: int
    written_at: float
    """Unix time (s) when this control plane wrote the slice; -inf if another process wrote it."""


class PlanPublisher:
    """Writes plans while this control plane leads; each leadership begins with `adopt`."""

    def __init__(self, store: ConfigStore) -> None:
        self.store = store
        self._epoch = 0
        self._slices: dict[str, StoredSlice] = {}
        self._stored: set[str] = set()
        self.pinned: frozenset[str] = frozenset()
        """Digests of policies to retain although no plan names them."""
        self.plan_epoch = PlanEpoch(store)
        """The epoch of published plans."""
        self.uncertain = True
        """Whether the store may differ from the slices held here, so that `adopt` is due before the next plan."""

    @property
    def in_force(self) -> dict[str, RegionPlan]:
        """The slices in the store, by region."""
        return {region: stored.plan for region, stored in self._slices.items() if stored.plan is not None}

    @property
    def generation(self) -> int:
        """The largest generation in the store; 0 before the first plan."""
        return max((plan.generation for plan in self.in_force.values()), default=0)

    async def adopt(self, epoch: int) -> None:
        """Begin a leadership of `epoch` with the slices in the store.

        Raises:
            StoreError: the store cannot be read; call again.
        """
        self._epoch = epoch
        self._stored = set()
        self._slices = {}
        await self.plan_epoch.adopt(epoch)
        for item in (await self.store.list(keys.PLANS)).items:
            self._slices[item.key.removeprefix(keys.PLANS)] = StoredSlice(
                _decoded(item), item.mod_revision, float("-inf")
            )
        self.uncertain = False

    async def publish(self, plans: Mapping[str, RegionPlan], policy: Policy, now: float) -> PublishOutcome:
        """Write slices that changed or are due for a refresh, and remove slices of regions without a plan.

        Raises:
            Fenced: another control plane leads.
            StoreError: the store refuses or cannot be reached; which slices were written is unknown.
        """
        due = [plan for plan in plans.values() if self._is_due(plan, now)]
        removed = [region for region in self._slices if region not in plans]
        if not due and not removed:
            return PublishOutcome.UNCHANGED
        self.uncertain = True
        await self.store_policy(policy)
        # All writes are awaited, so that none of them takes effect after the next read of the store.
        done = await asyncio.gather(
            *(self._write(plan, now) for plan in due),
            *(self._remove(region) for region in removed),
            return_exceptions=True,
        )
        for result in done:
            if isinstance(result, BaseException):
                raise result
        if not all(done):
            await self.check_leadership()
            return PublishOutcome.CONFLICT
        self.uncertain = False
        return PublishOutcome.PUBLISHED

    def _is_due(self, plan: RegionPlan, now: float) -> bool:
        before = self._slices.get(plan.region)
        if before is None or before.plan is None:
            return True
        return _content(before.plan) != _content(plan) or now - before.written_at >= REFRESH_S

    async def _write(self, plan: RegionPlan, now: float) -> bool:
        key = keys.plan(plan.region)
        before = self._slices.get(plan.region)
        done = await self._commit(Unchanged(key, before.mod_revision if before else 0), Put(key, encode(plan)))
        if done:
            self._slices[plan.region] = StoredSlice(plan, done, now)
        return bool(done)

    async def _remove(self, region: str) -> bool:
        """Remove the slice of a region that the policy does not have any more."""
        key = keys.plan(region)
        done = await self._commit(Unchanged(key, self._slices[region].mod_revision), Delete(key))
        if done:
            del self._slices[region]
        return bool(done)

    async def store_policy(self, policy: Policy) -> None:
        """Store the policy unless it is stored already, before a plan or a rollout names it.

        Raises:
            Fenced: another control plane leads.
            StoreError: the store refuses or cannot be reached.
        """
        digest = policy.digest()
        if digest in self._stored:
            return
        key = keys.policy(digest)
        stored = await self.store.get(key)
        if stored is None or not is_as_written(stored.value, digest):
            if not await self._commit(Unchanged(key, stored.mod_revision if stored else 0), Put(key, encode(policy))):
                await self.check_leadership()
                raise StoreError("another control plane wrote the policy concurrently")
            _log.info("policy published", digest=digest)
        await self._remove_unused_policies(keep=digest)
        self._stored.add(digest)

    async def _remove_unused_policies(self, keep: str) -> None:
        """Remove policies that are not in use, except for the newest MAX_UNUSED_POLICIES."""
        used = {keep, *self.pinned, *(plan.policy_digest for plan in self.in_force.values())}
        stored = (await self.store.list(keys.POLICIES)).items
        newest = sorted(stored, key=lambda item: item.create_revision, reverse=True)
        unused = [item.key for item in newest if item.key.removeprefix(keys.POLICIES) not in used]
        for key in unused[MAX_UNUSED_POLICIES:]:
            await self.store.commit([SameKey(keys.LEADER, self._epoch)], [Delete(key)])
            self._stored.discard(key.removeprefix(keys.POLICIES))

    async def _commit(self, expect: Unchanged, do: Put | Delete) -> int:
        """Write if this leadership continues and `expect` holds; return the revision, 0 where nothing was written."""
        committed = await self.store.commit([SameKey(keys.LEADER, self._epoch), expect], [do])
        return committed.revision if committed.succeeded else 0

    async def check_leadership(self) -> None:
        """Check after a failed write whether this control plane still leads.

        Raises:
            Fenced: another control plane leads, or none leads.
        """
        leader = await self.store.get(keys.LEADER)
        if leader is None or leader.create_revision != self._epoch:
            raise Fenced(f"epoch {self._epoch} is over")


def _content(plan: RegionPlan) -> RegionPlan:
    """Return a slice without the fields that differ in every plan."""
    return msgspec.structs.replace(plan, generation=0, made_at=0.0)


def _decoded(item: KeyValue) -> RegionPlan | None:
    try:
        return decode(item.value, RegionPlan)
    except CodecError as error:
        _log.warning("stored plan cannot be decoded", key=item.key, reason=str(error))
        return None

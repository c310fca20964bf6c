"""The plan into the store: one key a region, each changed only as its leader left it, and only while it leads.

Every write expects the leader key to be the one of the writer's epoch, so that a former leader's late write does
nothing. The policy that a plan names is there before the plan.
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
"""An unchanged slice is written again after this long (s), so that agents see that somebody still plans."""

KEPT_POLICIES = 20
"""Policies that are kept besides those in use: for agents that are a little behind, and for people."""

_log = structlog.get_logger(__name__)


class Fenced(Exception):
    """The leader key is not the one of this epoch any more: nothing was written, and nothing may be."""


class StoredSlice(msgspec.Struct, frozen=True):
    """A region's slice as it is in the store."""

    plan: RegionPlan | None
    """None where it cannot be read."""
    mod_revision: int
    written_at: float
    """Our clock (s) when we wrote it; -inf where we did not."""


class PlanPublisher:
    """Writes plans for one leadership; begin each with `adopt`."""

    def __init__(self, store: ConfigStore) -> None:
        self._store = store
        self._epoch = 0
        self._slices: dict[str, StoredSlice] = {}
        self._stored: set[str] = set()
        self.pinned: frozenset[str] = frozenset()
        """Policies that are kept though no plan names them (yet)."""
        self.plan_epoch = PlanEpoch(store)
        """What the plans that are published carry."""
        self.uncertain = True
        """Whether the store may differ from what we know: `adopt` before planning any further."""

    @property
    def in_force(self) -> dict[str, RegionPlan]:
        """The slices in the store, by region."""
        return {region: one.plan for region, one in self._slices.items() if one.plan is not None}

    @property
    def generation(self) -> int:
        """The largest generation in the store; 0 before the first."""
        return max((plan.generation for plan in self.in_force.values()), default=0)

    async def adopt(self, epoch: int) -> None:
        """Begin to write under `epoch`, from whatever plan is in force.

        Raises:
            StoreError: the store cannot be read; begin again.
        """
        self._epoch = epoch
        self._stored = set()
        self._slices = {}
        await self.plan_epoch.adopt(epoch)
        for item in (await self._store.list(keys.PLANS)).items:
            self._slices[item.key.removeprefix(keys.PLANS)] = StoredSlice(
                _readable(item), item.mod_revision, float("-inf")
            )
        self.uncertain = False

    async def publish(self, plans: Mapping[str, RegionPlan], policy: Policy, now: float) -> PublishOutcome:
        """Write what changed, and what is due to be written again.

        Raises:
            Fenced: another leads.
            StoreError: the store refuses or cannot be reached, and what was written is uncertain.
        """
        due = [plan for plan in plans.values() if self._is_due(plan, now)]
        gone = [region for region in self._slices if region not in plans]
        if not due and not gone:
            return PublishOutcome.UNCHANGED
        self.uncertain = True
        await self.store_policy(policy)
        # Every write is seen to its end, so that none of them lands after the next look at the store.
        done = await asyncio.gather(
            *(self._write(plan, now) for plan in due),
            *(self._remove(region) for region in gone),
            return_exceptions=True,
        )
        for one in done:
            if isinstance(one, BaseException):
                raise one
        if not all(done):
            await self.check_office()
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
        """Take away the slice of a region that policy has no more."""
        key = keys.plan(region)
        done = await self._commit(Unchanged(key, self._slices[region].mod_revision), Delete(key))
        if done:
            del self._slices[region]
        return bool(done)

    async def store_policy(self, policy: Policy) -> None:
        """See to it that the policy is there whole, before a plan or a rollout names it.

        Raises:
            Fenced: another leads.
            StoreError: the store refuses or cannot be reached.
        """
        digest = policy.digest()
        if digest in self._stored:
            return
        key = keys.policy(digest)
        there = await self._store.get(key)
        if there is None or not is_as_written(there.value, digest):
            if not await self._commit(Unchanged(key, there.mod_revision if there else 0), Put(key, encode(policy))):
                await self.check_office()
                raise StoreError("somebody who does not lead wrote the policy at the same time")
            _log.info("policy published", digest=digest)
        await self._forget_policies(keep=digest)
        self._stored.add(digest)

    async def _forget_policies(self, keep: str) -> None:
        """Remove policies that no plan names, but for the last few."""
        used = {keep, *self.pinned, *(plan.policy_digest for plan in self.in_force.values())}
        stored = (await self._store.list(keys.POLICIES)).items
        newest = sorted(stored, key=lambda item: item.create_revision, reverse=True)
        unused = [item.key for item in newest if item.key.removeprefix(keys.POLICIES) not in used]
        for key in unused[KEPT_POLICIES:]:
            await self._store.commit([SameKey(keys.LEADER, self._epoch)], [Delete(key)])
            self._stored.discard(key.removeprefix(keys.POLICIES))

    async def _commit(self, expect: Unchanged, do: Put | Delete) -> int:
        """The revision of a fenced write; 0 where it was not done."""
        committed = await self._store.commit([SameKey(keys.LEADER, self._epoch), expect], [do])
        return committed.revision if committed.succeeded else 0

    async def check_office(self) -> None:
        """Tell a lost office from a key that was merely not as we left it.

        Raises:
            Fenced: the office is lost.
        """
        leader = await self._store.get(keys.LEADER)
        if leader is None or leader.create_revision != self._epoch:
            raise Fenced(f"epoch {self._epoch} is over")


def _content(plan: RegionPlan) -> RegionPlan:
    """A slice without what differs each time it is made."""
    return msgspec.structs.replace(plan, generation=0, made_at=0.0)


def _readable(item: KeyValue) -> RegionPlan | None:
    try:
        return decode(item.value, RegionPlan)
    except CodecError as error:
        _log.warning("plan in force cannot be read", key=item.key, reason=str(error))
        return None

"""The policy and the plan in force: watched in the store, applied together or not at all, stored on disk.

A plan contains the digest of its policy, so that both always match. An invalid update is rejected with a reason that
the next report contains, and the previous configuration stays in force.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, ConfigStore, KeyValue, StoreError
from adapters.store.informer import Informer
from adapters.store.stored_policies import read_policy
from penstock.planning.acceptance import refuse_plan, refuse_policy
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.routing.weighted_sampler import WeightedSampler, samplers_of
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.config.key_revocations import KeyRevocations
from regional_agent.config.last_known_good import StateFile
from regional_agent.result_cache.purge_follower import PurgeFollower
from regional_agent.tenants.issuer_registry import IssuerRegistry
from regional_agent.tenants.tenant_registry import TenantRegistry

FETCH_RETRY_S = 0.5
"""Interval (s) between two attempts to read a policy."""

log = structlog.get_logger()


class InForce(msgspec.Struct, frozen=True):
    """A policy and a plan made under it, as stored on disk."""

    policy: Policy
    plan: RegionPlan


class RejectedConfig(Exception):
    """The published configuration is invalid.

    Args:
        digest: digest of the policy; empty if it could not be read.
    """

    def __init__(self, reason: str, digest: str = "") -> None:
        super().__init__(reason)
        self.digest = digest


class ActiveConfig:
    """The region's current configuration from the control plane."""

    def __init__(
        self,
        region: str,
        store: ConfigStore,
        state_dir: Path,
        rng: Random,
        on_change: Callable[[Policy], None],
        on_plan: Callable[[RegionPlan], None] = lambda plan: None,
    ) -> None:
        """Create a configuration without a policy and a plan; `start` loads them.

        Args:
            region: the region whose plan is followed.
            state_dir: directory of the last known good configuration.
            rng: adds jitter to reconnects.
            on_change: called with each policy that comes into force.
            on_plan: called with each plan that comes into force.
        """
        self.policy: Policy | None = None
        self.policy_digest = ""
        self.plan: RegionPlan | None = None
        self.samplers: dict[tuple[str, str], WeightedSampler] = {}
        """The plan's sampler of each traffic class; created with each plan."""
        self.refused = ""
        """Why the newest published plan was rejected; empty if it is in force."""
        self.refused_digest = ""
        """Digest of the rejected policy. Empty if no policy is rejected, if the plan cannot be decoded, or if the store
        could not be read, which is retried."""
        self._region = region
        self._store = store
        self._on_change = on_change
        self._on_plan = on_plan
        self.revocations = KeyRevocations(store, state_dir, rng, self._apply_policy)
        """The revoked API keys; `policy` is the accepted policy without them."""
        self.registry = TenantRegistry(store, state_dir, rng)
        """Follows the tenants that the API creates."""
        self.tenants = self.registry.index
        self.issuers = IssuerRegistry(store, state_dir, self.tenants, rng)
        self.cache_purges = PurgeFollower(store, rng)
        self._accepted: Policy | None = None
        """The policy as it was published."""
        self._file = StateFile(state_dir / "in-force", InForce)
        self._informer = Informer(store, keys.plan(region), self._on_published, rng=rng)
        self._newest: KeyValue | None = None
        self._has_update = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Load the stored configuration and start to follow the store."""
        self.revocations.start()
        self.registry.start()
        self.issuers.start()
        self.cache_purges.start()
        stored = self._file.load()
        if stored is not None and stored.plan.region == self._region:
            try:
                _ = stored.policy.route_table
            except ValueError as error:
                log.error("the stored policy is not used", reason=f"a route cannot be used: {error}")
            else:
                self._put_in_force(stored)
        self._informer.start()
        self._task = keep_running("active configuration", self._follow_updates)

    async def stop(self) -> None:
        """Stop following the store; the configuration stays in force."""
        await self.revocations.stop()
        await self.registry.stop()
        await self.issuers.stop()
        await self.cache_purges.stop()
        await self._informer.stop()
        await cancel([task for task in (self._task, self._saving) if task is not None])
        self._task = self._saving = None

    def age_s(self) -> float:
        """Seconds since the store last confirmed the configuration; inf before the first confirmation."""
        return self._informer.age_s

    def status(self) -> dict[str, Any]:
        """Return the fields for the status page: the policy digest and plan in force, their age, a rejection, the
        revoked keys, and the tenants that the API created."""
        age_s = self.age_s()
        return {
            "policy_digest": self.policy_digest,
            "plan": self.plan,
            "config_age_s": round(age_s, 3) if age_s < math.inf else None,
            "refused_plan": self.refused,
            "revoked_keys": self.revocations.status(),
            "tenants": self.registry.status(),
            "issuers": self.issuers.status(),
        }

    def no_policy_reason(self) -> str:
        """Return why no policy is in force. Called only while none is in force."""
        reason = self.refused
        if not reason and self.age_s() == math.inf:
            reason = "the store has not been read; check the way to etcd, its certificate, and etcd_prefix"
        elif not reason and self._newest is None:
            reason = (
                f"the store has no plan for region {self._region}; check that the policy contains the region and that a"
                " control plane is the leader"
            )
        return f"no policy accepted yet: {reason}" if reason else "no policy accepted yet"

    def _on_published(self, change: Changed) -> None:
        # Deleting a plan leaves the current one in force: a region must not be disabled by removing a key.
        if change.key == keys.plan(self._region) and change.now is not None:
            self._newest = change.now
            self._has_update.set()

    async def _follow_updates(self) -> None:
        # Without a stored configuration, the policy must not come into force before the revoked keys are known, and not
        # before the tenants are, whose requests would be refused.
        if self._accepted is None:
            await self.revocations.wait_read()
            await self.registry.wait_read()
            await self.issuers.wait_read()
        while True:
            await self._has_update.wait()
            self._has_update.clear()
            newest = self._newest
            assert newest is not None
            try:
                await self._accept(newest)
            except RejectedConfig as error:
                if self.refused != str(error):
                    log.error("published plan rejected; the current one stays in force", reason=str(error))
                self.refused, self.refused_digest = str(error), error.digest
            except StoreError as error:
                self.refused, self.refused_digest = f"the policy could not be read yet: {error}", ""
                await asyncio.sleep(FETCH_RETRY_S)
                self._has_update.set()

    async def _accept(self, published: KeyValue) -> None:
        """Apply a published plan together with its policy."""
        try:
            plan = decode(published.value, RegionPlan)
        except CodecError as error:
            raise RejectedConfig(str(error)) from None
        if plan == self.plan:
            self.refused = self.refused_digest = ""
            return
        policy = self._accepted
        if policy is None or plan.policy_digest != self.policy_digest:
            policy = await self._fetch_policy(plan.policy_digest)
        reason = refuse_plan(plan, policy, self._region, self.plan)
        if reason is not None:
            raise RejectedConfig(reason, plan.policy_digest)
        in_force = InForce(policy, plan)
        self._put_in_force(in_force)
        self.refused = self.refused_digest = ""
        # A task, since a disk that stalls must not delay later plans.
        self._saving = asyncio.create_task(self._file.save(in_force))

    async def _fetch_policy(self, digest: str) -> Policy:
        item = await self._store.get(keys.policy(digest))
        if item is None:
            raise RejectedConfig(f"policy {digest[:12]} is not in the store", digest)
        try:
            policy = read_policy(item.value, digest)
        except CodecError as error:
            raise RejectedConfig(str(error), digest) from None
        reason = refuse_policy(policy, digest, self._region)
        if reason is not None:
            raise RejectedConfig(reason, digest)
        return policy

    def _put_in_force(self, in_force: InForce) -> None:
        self.plan = in_force.plan
        self.samplers = samplers_of(in_force.plan)
        self._on_plan(in_force.plan)
        if in_force.policy is not self._accepted:
            self._accepted = in_force.policy
            self.policy_digest = in_force.plan.policy_digest
            self._apply_policy()
            log.info("policy in force", digest=self.policy_digest[:12], generation=self.plan.generation)

    def _apply_policy(self) -> None:
        """Put the accepted policy in force, without the revoked keys; called when either has changed."""
        if self._accepted is not None:
            self.policy = self.revocations.applied_to(self._accepted)
            self._on_change(self.policy)

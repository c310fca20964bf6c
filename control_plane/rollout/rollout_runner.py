"""The leader's part in a rollout: what the source offers and agents say goes in, who plans by which policy comes out.

Nothing is remembered here that matters: every step begins with what the store has, and is written before it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec
import structlog

from adapters.store.config_store import ConfigStore, StoreError
from control_plane.planning.plan_publisher import PlanPublisher
from control_plane.policy.source.policy_source import NotForUs, PolicySource, stored_policy
from control_plane.policy.source.revision import Origin
from control_plane.policy.source.revision_store import RevisionStore
from control_plane.rollout.rollout_records import RolloutRecords, StoredRollout
from penstock.fleet.snapshot import Snapshot
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance
from penstock.rollout.evidence import Evidence, observations, observe
from penstock.rollout.shadow import Shadow
from penstock.rollout.state_machine import (
    IN_CANARY,
    IN_SHADOW,
    Phase,
    Rollout,
    RolloutEvent,
    begin,
    first_rollout,
    on_source_policy,
    transition,
)

MAX_TRIES = 3
"""Of a step, while an operator's command comes between."""

_log = structlog.get_logger(__name__)


class PolicyVersion(msgspec.Struct, frozen=True):
    """A policy and where it is from."""

    policy: Policy
    digest: str
    provenance: Provenance | None


class ActivePolicies(msgspec.Struct, frozen=True):
    """What to plan by."""

    rollout: Rollout
    main: PolicyVersion
    """What regions obey but for those that try the candidate."""
    candidate: PolicyVersion | None
    """What is in shadow or tried; None where every region obeys the same."""

    @property
    def tried_in(self) -> tuple[str, ...]:
        """Regions that obey the candidate."""
        return self.rollout.canary if self.rollout.phase in IN_CANARY else ()

    @property
    def in_shadow(self) -> bool:
        """Whether the candidate's plan is only compared."""
        return self.rollout.phase in IN_SHADOW


class RolloutRunner:
    """Steps rollouts for one leadership at a time.

    Args:
        store: where rollouts and policies are.
        source: what there is to roll out.
        publisher: keeps the policies that are needed.
    """

    def __init__(self, store: ConfigStore, source: PolicySource, publisher: PlanPublisher) -> None:
        self._store = store
        self._source = source
        self._publisher = publisher
        self._records = RolloutRecords(store)
        self._revisions = RevisionStore(store)
        self._known: dict[str, Policy] = {}
        self.staged: ActivePolicies | None = None
        """What the last step came to; None while another leads."""
        self.shadow: Shadow | None = None
        """What the candidate's plan would change, as last compared; None where nothing was."""

    @property
    def policy(self) -> Policy | None:
        """What most regions obey; None while another leads."""
        return self.staged.main.policy if self.staged is not None else None

    def leave(self) -> None:
        """Another may lead: what was known is known no more, and the source may have more than we saw."""
        self.staged = self.shadow = None
        self._source.mark_stale()

    async def adopt(self) -> None:
        """Begin to lead with what regions obey: whose reports count, and whom to wait for, goes by that.

        The source may have a candidate already that has other regions. What cannot be read the first step sees to.
        """
        with suppress(StoreError):
            stored = await self._records.newest()
            if stored.rollout is not None:
                self.staged = await self._staged(stored.rollout)

    async def step(self, epoch: int, now: float, snapshot: Snapshot, *, receiving_since: float) -> ActivePolicies:
        """One step of the leader of `epoch`.

        Args:
            now: our clock, in seconds.
            receiving_since: when we began to hear agents, by it.

        Raises:
            Fenced: another leads.
            StoreError: the store refuses or cannot be reached.
        """
        await self._revisions.record(self._source.results, epoch)
        for _ in range(MAX_TRIES):
            stored = await self._records.newest()
            states = await self._offered(stored, now)
            states[-1] = await self._observed(states[-1], now, snapshot, receiving_since)
            newest = states[-1]
            if len(states) == 1 and newest == stored.rollout:
                break
            if await self._records.write(states, stored.revision, epoch):
                _tell(stored.rollout, states)
                break
            await self._publisher.check_office()
        else:
            raise StoreError("the rollout is changed by others all the time")
        self.staged = await self._staged(newest)
        return self.staged

    async def _offered(self, stored: StoredRollout, now: float) -> list[Rollout]:
        """The states that what the source has leads to; the last is the newest."""
        source = self._offer()
        newest = stored.rollout
        if newest is not None and await self._policy(newest.stable) is None:
            _log.error("the stable policy is not in the store: what the source has is in force", digest=newest.stable)
            newest = None
        if newest is None:
            # Whatever agents obey is what a first candidate is compared with.
            newest = await self._inherited(now)
            if newest is None:
                held = source or self._held()
                await self._keep(held)
                return [first_rollout(held.digest, held.provenance, now)]
        if source is None:
            return [newest]
        if newest.is_over and source.digest == newest.stable and source.provenance != newest.stable_provenance:
            # Another commit with the same content: nothing is rolled out, and plans tell of the newer one.
            told = source.provenance
            of_candidate = told if newest.candidate == newest.stable else newest.provenance
            return [msgspec.structs.replace(newest, provenance=of_candidate, stable_provenance=told)]
        after, may_begin = on_source_policy(newest, source.digest, now)
        if not may_begin:
            return [after]
        await self._keep(source)
        began = begin(after, source.digest, source.provenance, await self._canary(after.stable, source.policy), now)
        return [began] if after == stored.rollout else [after, began]

    async def _observed(self, rollout: Rollout, now: float, snapshot: Snapshot, receiving_since: float) -> Rollout:
        if rollout.is_over:
            return rollout
        stable = await self._policy(rollout.stable)
        assert stable is not None
        try:
            candidate = await self._policy(rollout.candidate)
        except NotForUs as error:
            return transition(rollout, RolloutEvent.ROLL_BACK, now, why=str(error))
        if candidate is None:
            return transition(rollout, RolloutEvent.ROLL_BACK, now, why="its policy is not in the store")
        moved = self.shadow.moved_share if self.shadow is not None and self.shadow.number == rollout.number else None
        return observe(rollout, stable.rollout, Evidence(observations(snapshot, now), moved, receiving_since), now)

    async def _staged(self, rollout: Rollout) -> ActivePolicies:
        stable = await self._accepted(rollout.stable, rollout.stable_provenance)
        self._publisher.pinned = frozenset({rollout.stable, rollout.candidate})
        if rollout.is_over:
            return ActivePolicies(rollout, stable, None)
        candidate = await self._accepted(rollout.candidate, rollout.provenance)
        if rollout.phase is Phase.WATCH:
            return ActivePolicies(rollout, candidate, None)
        return ActivePolicies(rollout, stable, candidate)

    def _offer(self) -> PolicyVersion | None:
        """What the source has, unless that is not known for sure."""
        return self._held() if self._source.fresh and self._source.origin is not Origin.STORE else None

    def _held(self) -> PolicyVersion:
        policy = self._source.current
        assert policy is not None
        digest = policy.digest()
        self._remember(digest, policy)
        return PolicyVersion(policy, digest, self._source.provenance)

    async def _inherited(self, now: float) -> Rollout | None:
        """The policy of the plan in force, where a fleet has one that nobody rolled out."""
        plans: Mapping[str, RegionPlan] = self._publisher.in_force
        newest = max(plans.values(), key=lambda plan: (plan.epoch, plan.generation), default=None)
        if newest is None or await self._policy(newest.policy_digest) is None:
            return None
        return first_rollout(newest.policy_digest, newest.provenance, now)

    async def _canary(self, stable: str, candidate: Policy) -> tuple[str, ...]:
        """The regions that the stable policy names, where both have them."""
        policy = await self._policy(stable)
        assert policy is not None
        return tuple(
            name for name in policy.rollout.canary_regions if name in policy.regions & candidate.regions.keys()
        )

    async def _accepted(self, digest: str, provenance: Provenance | None) -> PolicyVersion:
        policy = await self._policy(digest)
        if policy is None:
            raise StoreError(f"policy {digest[:12]} is not in the store (any more)")
        return PolicyVersion(policy, digest, provenance)

    async def _policy(self, digest: str) -> Policy | None:
        if digest not in self._known:
            policy = await stored_policy(self._store, digest)
            if policy is None:
                return None
            self._remember(digest, policy)
        return self._known[digest]

    def _remember(self, digest: str, policy: Policy) -> None:
        self._known.pop(digest, None)
        self._known = {**dict(list(self._known.items())[-3:]), digest: policy}

    async def _keep(self, one: PolicyVersion) -> None:
        """See to it that a policy is in the store before anything names it."""
        await self._publisher.store_policy(one.policy)


def _tell(before: Rollout | None, states: list[Rollout]) -> None:
    for one in states:
        if before is None or (one.number, one.phase) != (before.number, before.phase):
            _log.info("rollout", number=one.number, phase=one.phase.value, candidate=one.candidate[:12], why=one.why)

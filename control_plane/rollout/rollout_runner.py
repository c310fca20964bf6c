"""The leader's rollout step: derives the policies for plans from the source's policy and the agents' reports.

The state is only in the store: each step reads the state, and writes the new state before a plan depends on it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import msgspec
import structlog

from adapters.store.config_store import ConfigStore, StoreError
from control_plane.planning.plan_publisher import PlanPublisher
from control_plane.policy.source.policy_source import PolicyFromNewerRelease, PolicySource, stored_policy
from control_plane.policy.source.revision import Origin
from control_plane.policy.source.revision_store import RevisionStore
from control_plane.rollout.model_rollouts import ModelRollouts
from control_plane.rollout.rollout_store import RolloutStore, StoredRollout
from penstock.fleet.snapshot import Snapshot
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance
from penstock.policy.removal_guard import REMEDY, unaccepted_removals
from penstock.rollout.canary_analysis import Evidence, observations, observe, phase_facts
from penstock.rollout.policy_rollout import (
    IN_CANARY,
    IN_SHADOW,
    OfferedPolicy,
    Phase,
    Rollout,
    RolloutEvent,
    begin,
    first_rollout,
    on_source_policy,
    transition,
)
from penstock.rollout.rollout_progress import Condition, RolloutOutlook, conditions, outlook
from penstock.rollout.shadow import Shadow

MAX_TRIES = 3
"""Maximum number of tries of one step while operators change the rollout concurrently."""

_log = structlog.get_logger(__name__)


class PolicyVersion(msgspec.Struct, frozen=True):
    """A policy, its digest, and the commit that it is from."""

    policy: Policy
    digest: str
    provenance: Provenance | None


class ActivePolicies(msgspec.Struct, frozen=True):
    """The policies in force in a rollout's current phase."""

    rollout: Rollout
    main: PolicyVersion
    """The policy in force in every region outside `canary_regions`."""
    candidate: PolicyVersion | None
    """The policy in its shadow or canary phase; None if one policy is in force in every region."""

    @property
    def canary_regions(self) -> tuple[str, ...]:
        """Regions in which the candidate is in force."""
        return self.rollout.canary if self.rollout.phase in IN_CANARY else ()

    @property
    def in_shadow(self) -> bool:
        """Whether the candidate's plan is compared and not published."""
        return self.rollout.phase in IN_SHADOW


class RolloutRunner:
    """Advances rollouts while this control plane leads.

    Args:
        store: the fleet's configuration store.
        source: the policy source.
        publisher: stores policies, and retains those that a rollout names.
        models: the rollouts of versions of models, under the policy in force.
    """

    def __init__(
        self, store: ConfigStore, source: PolicySource, publisher: PlanPublisher, models: ModelRollouts
    ) -> None:
        self._store = store
        self._source = source
        self.publisher = publisher
        self.models = models
        self._rollouts = RolloutStore(store)
        self._revisions = RevisionStore(store)
        self._cache: dict[str, Policy] = {}
        self.active: ActivePolicies | None = None
        """The result of the last step; None while another control plane leads."""
        self.shadow: Shadow | None = None
        """The last shadow comparison of plans; None before the first comparison."""
        self.outlook: RolloutOutlook | None = None
        """What the rollout waits for, as of the last step; None while another control plane leads."""

    @property
    def policy(self) -> Policy | None:
        """The policy in force in most regions; None while another control plane leads."""
        return self.active.main.policy if self.active is not None else None

    @property
    def newest_policy(self) -> Policy | None:
        """The policy in force in most regions or, until it is known, the source's policy; None before the first."""
        return self.policy or self._source.current

    def reset(self) -> None:
        """Discard all state at a change of leadership, and mark the last read of the source as stale."""
        self.active = self.shadow = self.outlook = None
        self.models.reset()
        self._source.withhold(())
        self._source.mark_stale()

    async def adopt(self) -> None:
        """Load the policies in force at the start of a leadership; only reports from regions of `main` are accepted.

        The source may already have a candidate with other regions. If the store cannot be read, the first step retries.
        """
        with suppress(StoreError):
            stored = await self._rollouts.newest()
            if stored.rollout is not None:
                self.active = await self._active(stored.rollout)

    async def step(self, epoch: int, now: float, snapshot: Snapshot, *, receiving_since: float) -> ActivePolicies:
        """Advance the rollout by one step as the leader of `epoch`.

        Args:
            now: Unix time, in seconds.
            receiving_since: Unix time (s) since which agents report to this control plane.

        Raises:
            Fenced: another control plane leads.
            StoreError: the store refuses or cannot be reached.
        """
        for _ in range(MAX_TRIES):
            stored = await self._rollouts.newest()
            states = await self._with_source(stored, now)
            await self._revisions.record(self._source.results, epoch)
            states[-1] = await self._with_evidence(states[-1], now, snapshot, receiving_since)
            newest = states[-1]
            if len(states) == 1 and newest == stored.rollout:
                break
            if await self._rollouts.write(states, stored.revision, epoch):
                _log_phases(stored.rollout, states)
                break
            await self.publisher.check_leadership()
        else:
            raise StoreError(f"the rollout changed concurrently in each of {MAX_TRIES} tries")
        self.active = await self._active(newest)
        await self.models.step(epoch, now, snapshot, self.active.main.policy, may_forget=newest.is_over)
        self.outlook = await self._outlook(newest, now, snapshot, receiving_since)
        return self.active

    async def _outlook(
        self, rollout: Rollout, now: float, snapshot: Snapshot, receiving_since: float
    ) -> RolloutOutlook:
        found: tuple[Condition, ...] = ()
        stable = await self._policy(rollout.stable)
        if not rollout.is_over and stable is not None:
            facts = phase_facts(rollout, stable.rollout, self._evidence(rollout, now, snapshot, receiving_since))
            found = conditions(rollout, stable.rollout, facts, now)
        fresh = self._source.fresh and self._source.origin is not Origin.STORE
        offered = self._source_version().digest if fresh else None
        of_policy = outlook(found, rollout, offered, self._source.withheld)
        return msgspec.structs.replace(of_policy, versions=self.models.outlooks)

    def _evidence(self, rollout: Rollout, now: float, snapshot: Snapshot, receiving_since: float) -> Evidence:
        moved = self.shadow.moved_share if self.shadow is not None and self.shadow.number == rollout.number else None
        return Evidence(observations(snapshot, now), moved, receiving_since)

    async def _with_source(self, stored: StoredRollout, now: float) -> list[Rollout]:
        """Return the states that follow from the source's policy, the newest last."""
        fresh = self._source.fresh and self._source.origin is not Origin.STORE
        source = self._source_version() if fresh else None
        newest = stored.rollout
        if newest is not None and await self._policy(newest.stable) is None:
            _log.error("stable policy missing from the store: a first rollout begins", digest=newest.stable)
            newest = None
        if newest is None:
            # The stable policy of the published plan is the stable policy of the next rollout.
            newest = await self._from_plan(now)
            if newest is None:
                first = source or self._source_version()
                await self.publisher.store_policy(first.policy)
                return [first_rollout(first.digest, first.provenance, now)]
        if source is None:
            return [newest]
        if newest.is_over and source.digest == newest.stable and source.provenance != newest.stable_provenance:
            self._source.withhold(())
            # A newer commit with the same content: nothing is rolled out, but plans name the newer commit.
            of_candidate = source.provenance if newest.candidate == newest.stable else newest.provenance
            return [msgspec.structs.replace(newest, provenance=of_candidate, stable_provenance=source.provenance)]
        after, may_begin = on_source_policy(newest, source.digest, now)
        stable = await self._policy(after.stable)
        assert stable is not None
        removed = unaccepted_removals(stable, source.policy, self._source.accepted_removals) if may_begin else ()
        remedy = f"{REMEDY}, or use `penstock policy apply {source.digest[:12]} --allow-removal`"
        self._source.withhold(tuple(f"would remove the {removal}; {remedy}" for removal in removed))
        if removed:
            # Stored, so that an operator can apply it.
            await self.publisher.store_policy(source.policy)
            return [newest]
        if not may_begin:
            return [after]
        await self.publisher.store_policy(source.policy)
        began = begin(
            after,
            OfferedPolicy(source.digest, source.provenance),
            await self._canary(after.stable, source.policy),
            now,
        )
        return [began] if after == stored.rollout else [after, began]

    async def _with_evidence(self, rollout: Rollout, now: float, snapshot: Snapshot, receiving_since: float) -> Rollout:
        if rollout.is_over:
            return rollout
        stable = await self._policy(rollout.stable)
        assert stable is not None
        try:
            candidate = await self._policy(rollout.candidate)
        except PolicyFromNewerRelease as error:
            return transition(rollout, RolloutEvent.ROLL_BACK, now, why=str(error))
        if candidate is None:
            return transition(rollout, RolloutEvent.ROLL_BACK, now, why="the candidate is not in the store")
        return observe(rollout, stable.rollout, self._evidence(rollout, now, snapshot, receiving_since), now)

    async def _active(self, rollout: Rollout) -> ActivePolicies:
        stable = await self._version(rollout.stable, rollout.stable_provenance)
        self.publisher.pinned = frozenset({rollout.stable, rollout.candidate})
        if rollout.is_over:
            return ActivePolicies(rollout, stable, None)
        candidate = await self._version(rollout.candidate, rollout.provenance)
        if rollout.phase is Phase.WATCH:
            return ActivePolicies(rollout, candidate, None)
        return ActivePolicies(rollout, stable, candidate)

    def _source_version(self) -> PolicyVersion:
        policy = self._source.current
        assert policy is not None
        digest = policy.digest()
        self._remember(digest, policy)
        return PolicyVersion(policy, digest, self._source.provenance)

    async def _from_plan(self, now: float) -> Rollout | None:
        """Return a completed rollout of the published plan's stable policy, if the newest rollout cannot be read.

        The plan may be of a canary, in any number of regions. The stable policy of the last ended rollout is therefore
        used if a region applies it, and otherwise the policy of most regions.
        """
        plans = self.publisher.in_force.values()
        last = next(iter(await self._rollouts.ended()), None)
        digests = Counter(plan.policy_digest for plan in plans)
        if not digests:
            return None
        stable = last.stable if last is not None and last.stable in digests else digests.most_common(1)[0][0]
        if await self._policy(stable) is None:
            return None
        provenance = next(plan.provenance for plan in plans if plan.policy_digest == stable)
        first = first_rollout(stable, provenance, now)
        if last is None:
            return first
        return msgspec.structs.replace(first, number=last.number + 1, dismissed=last.dismissed)

    async def _canary(self, stable: str, candidate: Policy) -> tuple[str, ...]:
        """Return the stable policy's canary regions that both policies have."""
        policy = await self._policy(stable)
        assert policy is not None
        return tuple(
            name for name in policy.rollout.canary_regions if name in policy.regions & candidate.regions.keys()
        )

    async def _version(self, digest: str, provenance: Provenance | None) -> PolicyVersion:
        policy = await self._policy(digest)
        if policy is None:
            raise StoreError(f"policy {digest[:12]} is not in the store")
        return PolicyVersion(policy, digest, provenance)

    async def _policy(self, digest: str) -> Policy | None:
        if digest not in self._cache:
            policy = await stored_policy(self._store, digest)
            if policy is None:
                return None
            self._remember(digest, policy)
        return self._cache[digest]

    def _remember(self, digest: str, policy: Policy) -> None:
        self._cache.pop(digest, None)
        self._cache = {**dict(list(self._cache.items())[-3:]), digest: policy}


def _log_phases(before: Rollout | None, states: list[Rollout]) -> None:
    for rollout in states:
        if before is None or (rollout.number, rollout.phase) != (before.number, before.phase):
            _log.info(
                "rollout entered phase",
                number=rollout.number,
                phase=rollout.phase.value,
                candidate=rollout.candidate[:12],
                reason=rollout.why,
            )

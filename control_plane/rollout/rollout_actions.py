"""Operator actions on rollouts. Each is written with its audit entry, if the rollout has not changed since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adapters.access.callers import Caller
from adapters.store import keys
from adapters.store.config_store import ConfigStore, Unchanged
from control_plane.audit.audit_log import AuditedAction, AuditLog
from control_plane.policy.source.policy_source import PolicyFromNewerRelease, PolicySource, stored_policy
from control_plane.rollout.rollout_store import RolloutStore, StoredRollout, changes
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance
from penstock.policy.removal_guard import unaccepted_removals
from penstock.rollout.policy_rollout import OfferedPolicy, Rollout, RolloutEvent, begin, restore, transition

MAX_REASON = 500
"""Characters of a reason."""


class ActionRefused(Exception):
    """The action is not possible in the rollout's current state; the message has the reason."""


class PolicyNotStored(Exception):
    """The store does not have the policy, or this release cannot decode it."""


class RolloutActions:
    """Applies operator actions at any control plane; the leader continues from the stored state.

    Args:
        store: the fleet's configuration store.
        audit: records each action, its caller and its reason.
        source: the policy source; its policy does not replace a policy that an operator rolls out.
        clock: Unix time, in seconds.
    """

    def __init__(self, store: ConfigStore, audit: AuditLog, source: PolicySource, clock: Callable[[], float]) -> None:
        self._store = store
        self._audit = audit
        self._source = source
        self._clock = clock
        self.rollouts = RolloutStore(store)

    async def policy(self, digest: str) -> Policy:
        """Return a policy from the store.

        Raises:
            PolicyNotStored: the store does not have it, or a newer release wrote it.
            StoreError: the store cannot be read.
        """
        try:
            policy = await stored_policy(self._store, digest)
        except PolicyFromNewerRelease as error:
            raise PolicyNotStored(str(error)) from None
        if policy is None:
            raise PolicyNotStored(f"the store has no policy {digest[:12]}")
        return policy

    async def advance(self, caller: Caller, seen: StoredRollout, event: RolloutEvent, reason: str) -> Rollout:
        """Halt, resume, promote or roll back the current rollout.

        Raises:
            ActionRefused: the rollout's phase does not allow the action.
            ChangeRefused: the rollout has changed since it was read.
            StoreError: the store refuses or cannot be reached.
        """
        before = _existing(seen)
        try:
            after = transition(before, event, self._clock(), why=reason, by=caller.name)
        except KeyError:
            verb = "be rolled back" if event is RolloutEvent.ROLL_BACK else event.value
            raise ActionRefused(f"rollout {before.number} is {before.phase.value}: it cannot {verb}") from None
        return await self._write(caller, seen, f"rollout.{event.value}", reason, [after])

    async def apply(
        self,
        caller: Caller,
        seen: StoredRollout,
        digest: str,
        provenance: Provenance | None,
        reason: str,
        *,
        allow_removal: bool = False,
    ) -> Rollout:
        """Roll out a stored policy, as if the policy source offered it now.

        Args:
            allow_removal: whether the policy may lack documents of the stable policy that a bundle may not remove
                without a word.

        Raises:
            PolicyNotStored: the store does not have the policy.
            ActionRefused: the policy is in force in every region already, its rollout is under way, or it would remove
                documents.
            ChangeRefused: the rollout has changed since it was read.
            StoreError: the store refuses or cannot be reached.
        """
        before, candidate = self._replaceable(seen, digest), await self.policy(digest)
        if digest == before.candidate and not before.is_over:
            raise ActionRefused(f"rollout {before.number} of this policy is under way already")
        now = self._clock()
        states, before = self._rolled_back(before, now, caller, reason)
        stable = await self.policy(before.stable)
        accepted = self._source.accepted_removals if digest == self._source_digest() else None
        removed = unaccepted_removals(stable, candidate, accepted)
        if removed and not allow_removal:
            listed = "; ".join(map(str, removed))
            raise ActionRefused(
                f"policy {digest[:12]} would remove: {listed}; confirm with --allow-removal (`allow_removal`)"
            )
        canary = tuple(
            name for name in stable.rollout.canary_regions if name in stable.regions and name in candidate.regions
        )
        offered = OfferedPolicy(digest, provenance, caller.name, reason, self._source_digest())
        after = begin(before, offered, canary, now)
        removes = {"removes": [str(removal) for removal in removed]} if removed else {}
        return await self._write(caller, seen, "policy.apply", reason, [*states, after], **removes)

    async def restore(
        self, caller: Caller, seen: StoredRollout, digest: str, provenance: Provenance | None, reason: str
    ) -> Rollout:
        """Restore a previously promoted policy in all regions at once; the source's policy does not replace it.

        Raises:
            PolicyNotStored: the store does not have the policy.
            ActionRefused: the policy is in force in every region already, or no rollout of it has completed.
            ChangeRefused: the rollout has changed since it was read.
            StoreError: the store refuses or cannot be reached.
        """
        before = self._replaceable(seen, digest)
        await self.policy(digest)
        if digest not in {before.stable, *(rollout.stable for rollout in await self.rollouts.ended())}:
            # A restore needs a lower role than a promotion, so it must not put an untested policy in force.
            raise ActionRefused(f"no rollout of policy {digest[:12]} has completed: roll it out with `apply`")
        now = self._clock()
        states, before = self._rolled_back(before, now, caller, reason)
        after = restore(before, OfferedPolicy(digest, provenance, caller.name, reason, self._source_digest()), now)
        return await self._write(caller, seen, "policy.rollback", reason, [*states, after])

    def _replaceable(self, seen: StoredRollout, digest: str) -> Rollout:
        before = _existing(seen)
        if digest == before.stable and before.is_over:
            raise ActionRefused("the policy is in force in every region already")
        return before

    def _rolled_back(self, rollout: Rollout, now: float, caller: Caller, reason: str) -> tuple[list[Rollout], Rollout]:
        """Roll back a rollout under way; return the states to write, and the rollout that is over."""
        if rollout.is_over:
            return [], rollout
        ended = transition(rollout, RolloutEvent.ROLL_BACK, now, why=reason, by=caller.name)
        return [ended], ended

    def _source_digest(self) -> str:
        return self._source.current.digest() if self._source.current is not None else ""

    async def _write(
        self,
        caller: Caller,
        seen: StoredRollout,
        action: str,
        reason: str,
        states: list[Rollout],
        **details: list[str],
    ) -> Rollout:
        await self._audit.record(
            AuditedAction(
                caller,
                action,
                f"policy {states[-1].candidate[:12]}",
                reason,
                _audited(_existing(seen)),
                _audited(states[-1]) | details,
            ),
            expect=[Unchanged(keys.ROLLOUT, seen.revision)],
            do=changes(states),
        )
        return states[-1]


def _existing(seen: StoredRollout) -> Rollout:
    if seen.rollout is None:
        raise ActionRefused("no policy has been rolled out yet")
    return seen.rollout


def _audited(rollout: Rollout) -> dict[str, Any]:
    """Return the fields of a rollout that an audit entry contains."""
    return {
        "rollout": rollout.number,
        "phase": rollout.phase.value,
        "candidate": rollout.candidate,
        "stable": rollout.stable,
    }

"""What operators order of rollouts: each written with its audit entry, and only if all is as they saw it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adapters.store import keys
from adapters.store.config_store import ConfigStore, Unchanged
from control_plane.audit.audit_log import AuditLog
from control_plane.auth.callers import Caller
from control_plane.policy.source.policy_source import NotForUs, PolicySource, stored_policy
from control_plane.rollout.rollout_records import RolloutRecords, StoredRollout, changes
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance
from penstock.rollout.state_machine import Rollout, RolloutEvent, begin, restore, transition

MAX_REASON = 500
"""Characters of a reason."""


class ActionRefused(Exception):
    """What is ordered makes no sense as things are; the message says why."""


class PolicyNotStored(Exception):
    """The store has no such policy (any more), or none that can be read here."""


class RolloutActions:
    """Takes orders, at any control plane: whoever leads does what the store says next.

    Args:
        store: where rollouts and policies are.
        audit: keeps who ordered what and why.
        source: whose policy is not to undo what an operator orders.
        clock: Unix time, in seconds.
    """

    def __init__(self, store: ConfigStore, audit: AuditLog, source: PolicySource, clock: Callable[[], float]) -> None:
        self._store = store
        self._audit = audit
        self._source = source
        self._clock = clock
        self.records = RolloutRecords(store)

    async def policy(self, digest: str) -> Policy:
        """A policy that the store keeps.

        Raises:
            NotKept: it keeps no such one, or one that is for newer releases.
            StoreError: the store cannot be read.
        """
        try:
            policy = await stored_policy(self._store, digest)
        except NotForUs as error:
            raise PolicyNotStored(str(error)) from None
        if policy is None:
            raise PolicyNotStored(f"no policy {digest[:12]} is kept")
        return policy

    async def advance(self, caller: Caller, seen: StoredRollout, event: RolloutEvent, reason: str) -> Rollout:
        """Halt, resume, promote or roll back what is under way.

        Raises:
            OrderRefused: in its phase it cannot be.
            ChangeRefused: it is not as it was seen any more.
            StoreError: the store refuses or cannot be reached.
        """
        before = _some(seen)
        try:
            after = transition(before, event, self._clock(), why=reason, by=caller.name)
        except KeyError:
            raise ActionRefused(f"rollout {before.number} is {before.phase.value}: it cannot {_verb(event)}") from None
        return await self._write(caller, seen, f"rollout.{event.value}", reason, [after])

    async def apply(
        self, caller: Caller, seen: StoredRollout, digest: str, provenance: Provenance | None, reason: str
    ) -> Rollout:
        """Begin to roll a kept policy out, as if the source had it now.

        Raises:
            NotKept: it is not kept.
            OrderRefused: every region obeys it, or it is under way.
            ChangeRefused, StoreError: as above.
        """
        before, candidate = _some(seen), await self.policy(digest)
        if digest == before.stable and before.is_over:
            raise ActionRefused("every region obeys it already")
        if digest == before.candidate and not before.is_over:
            raise ActionRefused(f"rollout {before.number} brings it already")
        now, states = self._clock(), []
        if not before.is_over:
            before = self._put_away(before, now, caller, reason)
            states.append(before)
        stable = await self.policy(before.stable)
        canary = tuple(
            name for name in stable.rollout.canary_regions if name in stable.regions and name in candidate.regions
        )
        after = begin(before, digest, provenance, canary, now, why=reason, by=caller.name, ignored=self._offered())
        return await self._write(caller, seen, "policy.apply", reason, [*states, after])

    async def restore(
        self, caller: Caller, seen: StoredRollout, digest: str, provenance: Provenance | None, reason: str
    ) -> Rollout:
        """Back to a policy that every region obeyed once, everywhere and at once; the source's does not come back by
        itself.

        Raises:
            NotKept: it is not kept.
            OrderRefused: every region obeys it, or no rollout of it ever came to its end.
            ChangeRefused, StoreError: as above.
        """
        before = _some(seen)
        await self.policy(digest)
        if digest == before.stable and before.is_over:
            raise ActionRefused("every region obeys it already")
        if digest not in {before.stable, *(one.stable for one in await self.records.ended())}:
            # It takes less to go back than to promote what nobody has tried.
            raise ActionRefused(f"no rollout of policy {digest[:12]} came to its end: roll it out with `apply`")
        now, states = self._clock(), []
        if not before.is_over:
            before = self._put_away(before, now, caller, reason)
            states.append(before)
        after = restore(before, digest, provenance, now, why=reason, by=caller.name, ignored=self._offered())
        return await self._write(caller, seen, "policy.rollback", reason, [*states, after])

    def _put_away(self, rollout: Rollout, now: float, caller: Caller, reason: str) -> Rollout:
        return transition(rollout, RolloutEvent.ROLL_BACK, now, why=reason, by=caller.name)

    def _offered(self) -> str:
        return self._source.current.digest() if self._source.current is not None else ""

    async def _write(
        self, caller: Caller, seen: StoredRollout, action: str, reason: str, states: list[Rollout]
    ) -> Rollout:
        await self._audit.record(
            caller,
            action,
            f"policy {states[-1].candidate[:12]}",
            reason,
            before=_told(_some(seen)),
            after=_told(states[-1]),
            expect=[Unchanged(keys.ROLLOUT, seen.revision)],
            do=changes(states),
        )
        return states[-1]


def _some(seen: StoredRollout) -> Rollout:
    if seen.rollout is None:
        raise ActionRefused("no policy has been rolled out yet")
    return seen.rollout


def _told(rollout: Rollout) -> dict[str, Any]:
    return {
        "rollout": rollout.number,
        "phase": rollout.phase.value,
        "candidate": rollout.candidate,
        "stable": rollout.stable,
    }


def _verb(event: RolloutEvent) -> str:
    return "be rolled back" if event is RolloutEvent.ROLL_BACK else event.value

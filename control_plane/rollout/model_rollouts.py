"""Rollouts of versions of models: stored by name, advanced by the leader, and changed by operators.

Each transition is written with its audit entry before the share that it causes is published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from msgspec import UNSET
from msgspec.structs import replace

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Delete, KeyValue, Put, SameKey, Unchanged
from control_plane.audit.audit_log import AuditedAction, AuditLog, ChangeRefused
from penstock.fleet.snapshot import Snapshot, pools
from penstock.planning.plan import VersionShare
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.model_versions import old_version
from penstock.policy.policy import Policy
from penstock.rollout.model_rollout import ModelEvent, ModelRolloutState, begin, transition
from penstock.rollout.rollout_progress import VersionOutlook
from penstock.rollout.version_analysis import evidence_of, observe, version_outlook, waits_s

_log = structlog.get_logger(__name__)


class NoSuchRollout(Exception):
    """The policy in force has no rollout of this name, or the leader has not begun it yet."""


class NotPossible(Exception):
    """The rollout's phase does not allow the action; the message has the reason."""


class StoredModelRollout(msgspec.Struct, frozen=True):
    """The state of a rollout as the store has it."""

    state: ModelRolloutState | None
    """None if the stored state cannot be decoded."""
    revision: int
    """Revision of its key; 0 if the key does not exist."""


class ModelRollouts:
    """Reads, advances and changes the rollouts.

    Args:
        store: the fleet's configuration store.
        audit: records each transition, in its transaction.
        leader: name of this control plane, which the entries of automatic transitions have.
    """

    def __init__(self, store: ConfigStore, audit: AuditLog, leader: str) -> None:
        self._store = store
        self._audit = audit
        self._caller = Caller(leader, Role.OPERATOR)
        self.states: dict[str, ModelRolloutState] | None = None
        """The states in the store as of the last step, by name; None while another control plane leads."""

        self.outlooks: tuple[VersionOutlook, ...] = ()
        """What the rollouts of the policy wait for, as of the last step."""

        self.waits_s: dict[tuple[str, str, str], float] = {}
        """The time (s) for which each has waited for more than time, by name, new version and phase."""

    def reset(self) -> None:
        """Discard the states at a change of leadership."""
        self.states, self.outlooks, self.waits_s = None, (), {}

    async def stored(self) -> dict[str, StoredModelRollout]:
        """Return every stored rollout by name.

        Raises:
            StoreError: the store cannot be read.
        """
        items = (await self._store.list(keys.MODEL_ROLLOUTS)).items
        return {
            item.key.removeprefix(keys.MODEL_ROLLOUTS): StoredModelRollout(_decoded(item), item.mod_revision)
            for item in items
        }

    async def step(self, epoch: int, now: float, snapshot: Snapshot, policy: Policy, *, may_forget: bool) -> None:
        """Advance the rollouts of a policy as the leader of `epoch`.

        Args:
            now: Unix time, in seconds.
            policy: the policy in force in most regions.
            may_forget: whether states without a document in the policy are removed; no while the policy may return to
                an earlier one.

        Raises:
            StoreError: the store refuses or cannot be reached.
        """
        configured = {} if policy.model_rollouts is UNSET else policy.model_rollouts
        if not configured and self.states == {}:
            return
        stored, seen = await self.stored(), pools(snapshot, now)
        states: dict[str, ModelRolloutState] = {}
        outlooks: list[VersionOutlook | None] = []
        self.waits_s = {}
        for name, rollout in configured.items():
            old, percent = old_version(policy.versions[name], rollout), _start_percent(policy, rollout)
            found = stored.get(name, StoredModelRollout(None, 0))
            before = found.state if found.state and (found.state.old, found.state.to) == (old, rollout.to) else None
            after = begin(rollout, old, percent, now) if before is None else replace(before, start_percent=percent)
            evidence = evidence_of(after, snapshot, seen, now)
            after = observe(after, rollout, evidence, now)
            if after != before and not await self._write(before, after, found.revision, epoch):
                # An operator has changed the rollout, or another control plane leads. The share of before remains
                # until the next step reads the change.
                if before is not None:
                    states[name] = before
                continue
            states[name] = after
            outlooks.append(version_outlook(after, rollout, evidence, now))
            self.waits_s[name, after.to, after.phase.value] = waits_s(after, rollout, now)
        self.outlooks = tuple(filter(None, outlooks))
        for name in stored.keys() - configured.keys():
            if may_forget:
                key = keys.model_rollout(name)
                unchanged = Unchanged(key, stored[name].revision)
                await self._store.commit([SameKey(keys.LEADER, epoch), unchanged], [Delete(key)])
            elif (state := stored[name].state) is not None:
                states[name] = state
        self.states = states

    def shares(self, policy: Policy) -> tuple[VersionShare, ...]:
        """Return the entries of a plan under a policy, which may be a candidate with other rollouts."""
        configured = {} if policy.model_rollouts is UNSET else policy.model_rollouts
        found = [
            state.share(configured[name])
            for name, state in sorted((self.states or {}).items())
            if name in configured and configured[name].to == state.to
        ]
        return tuple(share for share in found if share is not None)

    async def advance(
        self, caller: Caller, policy: Policy, seen: StoredModelRollout, event: ModelEvent, reason: str, now: float
    ) -> ModelRolloutState:
        """Halt, resume, promote or roll back a rollout.

        Args:
            policy: the policy in force.
            seen: the rollout as it was read.
            now: Unix time, in seconds.

        Raises:
            NoSuchRollout: the policy has no such rollout.
            NotPossible: the phase does not allow the action.
            ChangeRefused: the rollout has changed since it was read.
            StoreError: the store refuses or cannot be reached.
        """
        before = seen.state
        rollout = None if before is None or policy.model_rollouts is UNSET else policy.model_rollouts.get(before.name)
        if before is None or rollout is None or rollout.to != before.to:
            raise NoSuchRollout("the policy in force has no such rollout")
        try:
            after = transition(before, event, rollout, now, why=reason, by=caller.name)
        except KeyError:
            verb = "be rolled back" if event is ModelEvent.ROLL_BACK else event.value
            raise NotPossible(f"the rollout of {before.to} is {before.phase.value}: it cannot {verb}") from None
        await self._record(caller, event.value, before, after, [Unchanged(_key(after), seen.revision)])
        return after

    async def _write(
        self, before: ModelRolloutState | None, after: ModelRolloutState, revision: int, epoch: int
    ) -> bool:
        """Write a state as the leader; return False if it has changed, or the leadership has ended."""
        expect: list[SameKey | Unchanged] = [SameKey(keys.LEADER, epoch), Unchanged(_key(after), revision)]
        if before is not None and (before.phase, before.since) == (after.phase, after.since):
            return (await self._store.commit(expect, [Put(_key(after), encode(after))])).succeeded
        try:
            await self._record(self._caller, after.phase.value, before, after, expect)
        except ChangeRefused:
            return False
        _log.info(
            "rollout of a version",
            name=after.name,
            to=after.to,
            phase=after.phase.value,
            percent=after.percent,
            reason=after.why,
        )
        return True

    async def _record(
        self,
        caller: Caller,
        action: str,
        before: ModelRolloutState | None,
        after: ModelRolloutState,
        expect: Sequence[SameKey | Unchanged],
    ) -> None:
        made = AuditedAction(
            caller,
            f"model_rollout.{action}",
            f"{after.name} to {after.to}",
            after.why,
            None if before is None else _audited(before),
            _audited(after),
        )
        await self._audit.record(made, expect=expect, do=[Put(_key(after), encode(after))])


def _start_percent(policy: Policy, rollout: ModelRollout) -> float:
    """Return the share (0-100) of the new version in the policy."""
    return next(each.percent for each in policy.versions[rollout.name].versions if each.model == rollout.to)


def _key(state: ModelRolloutState) -> str:
    return keys.model_rollout(state.name)


def _audited(state: ModelRolloutState) -> dict[str, Any]:
    return {"phase": state.phase.value, "percent": state.percent, "old": state.old, "to": state.to}


def _decoded(item: KeyValue) -> ModelRolloutState | None:
    try:
        return decode(item.value, ModelRolloutState)
    except CodecError as error:
        _log.warning("stored rollout of a version cannot be decoded", key=item.key, reason=str(error))
        return None

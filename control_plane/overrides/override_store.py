"""The overrides in the store, all under one key, so that each new override is checked against all others.

A change reads the key, is checked, and is written with its audit entry only if the key has not changed since it was
read; otherwise it is checked again. Of two concurrent drains, at any control planes, the second is thus checked
against the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import msgspec

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Put, SameKey, StoreError
from adapters.store.informer import Mirror
from control_plane.audit.audit_log import AuditedAction, AuditLog
from control_plane.audit.kept_values import MAX_TRIES, write_if_unchanged
from penstock.overrides.maintenance import windows
from penstock.overrides.override_check import OverrideRejection, rejection
from penstock.overrides.override_effects import Interventions
from penstock.overrides.overrides import Override, OverrideSet, lifted
from penstock.policy.policy import Policy


class OverrideRefused(Exception):
    """The override is not set; the message has the reason."""

    def __init__(self, rejection: OverrideRejection) -> None:
        super().__init__(rejection.detail)
        self.rejection = rejection


class OverrideStore:
    """Sets, lifts and reads overrides; every control plane has an instance.

    Args:
        store: the fleet's configuration store.
        audit: records each change, in the same transaction.
        name: name of this control plane, which audit entries for expired and repaired overrides record as the caller.
        rng: source of the backoff's jitter.
        clock: Unix time, in seconds.
    """

    def __init__(
        self, store: ConfigStore, audit: AuditLog, name: str, *, rng: Random, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._audit = audit
        self._expiry_caller = Caller(name, Role.OPERATOR)
        self._clock = clock
        self.mirror = Mirror(store, keys.OVERRIDES, OverrideSet, rng=rng)

    @property
    def known(self) -> bool:
        """Whether the overrides have been read. Until then no plan may be made, because it would ignore overrides."""
        return self.mirror.informer.synced and not self.unreadable

    @property
    def unreadable(self) -> bool:
        """Whether the store has overrides that this control plane cannot decode, such as those of a newer release."""
        return self.mirror.has_key and self.mirror.seen("") is None

    @property
    def seen(self) -> OverrideSet:
        """The overrides as last read from the store."""
        stored = self.mirror.seen("")
        return stored.value if stored is not None else OverrideSet()

    def in_force(self, policy: Policy, now: float) -> tuple[Override, ...]:
        """Return all overrides and maintenance windows of the policy, including those still on the failback ramp."""
        ramp_s = policy.failover.failback_ramp_s
        return (*self.seen.without_ended(now, ramp_s).overrides, *windows(policy, now))

    def interventions(self, policy: Policy, now: float) -> Interventions:
        """Return the effect of all overrides and maintenance windows on a plan that is made at `now`."""
        return Interventions(self.in_force(policy, now), policy.failover.failback_ramp_s, now)

    async def read(self) -> OverrideSet:
        """Read the overrides from the store.

        Raises:
            StoreError: the overrides cannot be read.
        """
        return (await self._read())[0]

    async def begin(
        self,
        caller: Caller,
        wanted: Override,
        policy: Policy,
        capacity: Mapping[tuple[str, str], float],
        *,
        force: bool = False,
        epoch: int | None = None,
    ) -> Override:
        """Set an override, and return it; a repeated request returns the existing override, lifted or not.

        Args:
            wanted: the override, with the identifier that makes the request repeatable.
            capacity: current slots by (region, model); empty where no agent has reported to this control plane.
            force: whether to set the override although a guard rail objects, which the audit log records.
            epoch: fencing epoch of the leader that sets the override by itself; None if an operator sets it.

        Raises:
            OverrideRefused: the override is not set.
            StoreError: the leadership of `epoch` has ended; or the store is unavailable, and whether the override was
                set is unknown.
        """
        fence = () if epoch is None else (SameKey(keys.LEADER, epoch),)
        for _ in range(MAX_TRIES):
            before, revision = await self._read()
            now = self._clock()
            if (existing := before.find(wanted.id)) is not None and existing.set_by(wanted):
                return existing
            kept = before.without_ended(now, policy.failover.failback_ramp_s)
            refused = rejection(policy, kept.overrides, wanted, capacity, now)
            against = refused.objection if refused is not None else None
            if refused is not None and (against is None or not force):
                raise OverrideRefused(refused)
            action = f"override.{wanted.kind.value}"
            after = msgspec.to_builtins(wanted)
            if against is not None:
                after |= {"force": True, "against": against.detail}
            made = AuditedAction(caller, action, wanted.id, wanted.reason, after=after)
            if await self._write(made, kept.replaced(wanted), revision, *fence):
                return wanted
        ended = "" if epoch is None else f"the leadership of epoch {epoch} has ended, or "
        raise StoreError(f"{ended}overrides changed concurrently in each of {MAX_TRIES} tries to set one")

    async def lift(
        self, caller: Caller, override_id: str, reason: str, expected: Callable[[Override], None]
    ) -> Override:
        """End an override. An override that has ended already is returned unchanged.

        Args:
            expected: called with the current override; raises if the caller's request is based on another version.

        Raises:
            KeyError: no override has this id.
            StoreError: the store is unavailable; whether the override was lifted is unknown.
        """
        for _ in range(MAX_TRIES):
            before, revision = await self._read()
            current = before.find(override_id)
            if current is None:
                raise KeyError(override_id)
            expected(current)
            now = self._clock()
            if now >= current.ends_at:
                return current
            ended = lifted(current, caller.name, now)
            sides = msgspec.to_builtins(current), msgspec.to_builtins(ended)
            made = AuditedAction(caller, "override.lift", override_id, reason, *sides)
            if await self._write(made, before.replaced(ended), revision):
                return ended
        raise StoreError(f"overrides changed concurrently in each of {MAX_TRIES} tries to lift one")

    async def sweep(self, epoch: int, policy: Policy) -> None:
        """Remove overrides that are over, as the leader of `epoch`; no effect once that leadership has ended.

        Raises:
            StoreError: the store is unavailable.
        """
        ramp_s = policy.failover.failback_ramp_s
        if not any(override.over(self._clock(), ramp_s) for override in self.seen.overrides):
            return
        before, revision = await self._read()
        after = before.without_ended(self._clock(), ramp_s)
        removed = [override.id for override in before.overrides if after.find(override.id) is None]
        if removed:
            made = AuditedAction(
                self._expiry_caller,
                "override.expire",
                ", ".join(removed[:20]),
                "ended, and the regions have ramped back",
                {"overrides": len(before.overrides)},
                {"overrides": len(after.overrides)},
            )
            await self._write(made, after, revision, SameKey(keys.LEADER, epoch))

    async def repair(self, epoch: int) -> None:
        """Write the overrides again, as the leader of `epoch`, if the stored value is not authentic: a control plane
        that starts could not read them, and would not plan.

        Raises:
            StoreError: the store is unavailable.
        """
        stored = self.mirror.informer.items.get(keys.OVERRIDES)
        if stored is None or stored.value or self.mirror.seen("") is None:
            return
        before, revision = await self._read()
        counted = {"overrides": len(before.overrides)}
        reason = "the stored overrides were not authentic"
        made = AuditedAction(self._expiry_caller, "override.repair", "overrides", reason, {}, counted)
        await self._write(made, before, revision, SameKey(keys.LEADER, epoch))

    async def _read(self) -> tuple[OverrideSet, int]:
        item = await self._store.get(keys.OVERRIDES)
        if item is None:
            return OverrideSet(), 0
        if not item.value and (seen := self.mirror.seen("")) is not None:
            # The stored value is not authentic, so the next change replaces it, based on the last authentic value.
            return seen.value, item.mod_revision
        try:
            return decode(item.value, OverrideSet), item.mod_revision
        except CodecError as error:
            # A write over undecodable overrides would lift all of them.
            raise StoreError(f"overrides cannot be read, so none can be changed: {error}") from error

    async def _write(self, made: AuditedAction, overrides: OverrideSet, revision: int, *besides: SameKey) -> bool:
        """Write the overrides and the audit entry if the key still has `revision`; return whether they were written."""
        return await write_if_unchanged(self._audit, made, Put(keys.OVERRIDES, encode(overrides)), revision, *besides)

"""The leader's part of drills: observes the fleet, writes each step with its audit entry, and performs its effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.config_store import ConfigStore, SameKey, StoreError, Unchanged
from adapters.store.informer import Mirror
from adapters.store.members import Member
from control_plane.audit.audit_log import AuditedAction, AuditLog, ChangeRefused
from control_plane.drills.drill_store import DrillStore, StoredDrill, changes
from control_plane.leadership.leader_elector import LeaderElector
from control_plane.overrides.override_store import OverrideRefused, OverrideStore
from control_plane.status.fleet_view import FleetView
from penstock.drills.drill_preconditions import FleetBeforeDrill, missing_without, recent_objectives, refusal
from penstock.drills.drill_progress import Effect, LiftOverride, Observed, SetOverride, on_tick
from penstock.drills.drill_schedule import due, final_refusal, handled_after
from penstock.drills.drill_state import Drill, DrillEvent, DrillPhase, DrillRequest, DrillStep, first_phase, transition
from penstock.fleet.snapshot import pools
from penstock.health.region_health import RegionState
from penstock.policy.policy import Policy
from penstock.rollout.canary_analysis import observations, with_marks

TICK_S = 1.0
"""Time (s) between two steps: agents report about once a second."""

RETRY_S = 10.0
"""Time (s) after which the conditions of a scheduled drill that may not begin yet are evaluated again."""

_log = structlog.get_logger(__name__)


class DrillRefused(Exception):
    """The drill does not begin, or cannot be aborted; the message has the reason."""


class NoSuchDrill(Exception):
    """The store has no drill of this number."""


class LeaderNotReady(Exception):
    """This control plane does not lead, or the regions have not reported to it yet."""


class DrillRunner:
    """Begins, steps and aborts drills.

    Args:
        store: the fleet's configuration store.
        audit: records each step, in its transaction.
        elector: leadership of this control plane; a drill makes it step down.
        overrides: sets and lifts the drain of an evacuation, within the guard rails.
        view: provides policy, snapshot, the plan in force and whether a rollout is under way.
        members: the registered control planes.
    """

    def __init__(
        self,
        store: ConfigStore,
        audit: AuditLog,
        *,
        elector: LeaderElector,
        overrides: OverrideStore,
        view: FleetView,
        members: Mirror[Member],
    ) -> None:
        self._audit = audit
        self._elector = elector
        self._overrides = overrides
        self._view = view
        self._members = members
        self._stepping = asyncio.Lock()
        """Held during each step, and while an operator's drill begins, so that no two of them overlap."""
        self._tried: tuple[str, float] = ("", float("-inf"))
        """Name of the scheduled drill that was tried last, and the time (Unix time, s) of the try."""
        self._caller = Caller(elector.member.name, Role.OPERATOR)
        self.drills = DrillStore(store)

    async def begin(self, caller: Caller, request: DrillRequest, number: int | None = None) -> tuple[Drill, bool]:
        """Begin a drill, as the leader; return the drill, and whether it is new.

        Args:
            number: number of the drill, so that a repeated request returns the drill that it began; None: the next.

        Raises:
            DrillRefused: a condition does not hold.
            LeaderNotReady: this control plane does not lead, or the regions have not reported to it yet.
            UnreadableDrill: the newest drill cannot be decoded.
            StoreError: the store is unavailable; whether the drill began is unknown.
        """
        async with self._stepping:
            policy, epoch = self._ready()
            stored = await self.drills.newest()
            if number is not None:
                existing = (await self.drills.every()).get(number)
                if existing is not None and existing.request == request:
                    return existing, False
                if number != stored.next_number:
                    raise DrillRefused(f"the number of the next drill is {stored.next_number}, not {number}")
            why = await self._refusal(request, policy, stored)
            if why is not None:
                raise DrillRefused(why)
            drill = await self._first(request, policy, stored, epoch)
            if not await self._write(caller, drill, stored, epoch):
                raise DrillRefused("another drill began, or the leader changed, at the same time")
            return drill, True

    async def abort(self, caller: Caller, number: int, reason: str, expected: Callable[[Drill], None]) -> Drill:
        """Abort the drill under way; the leader ends it.

        Args:
            expected: called with the drill; raises if the caller may not abort it.

        Raises:
            NoSuchDrill: the newest drill has another number.
            DrillRefused: the drill is over or aborting already, or changed at the same time.
            UnreadableDrill: the newest drill cannot be decoded.
            StoreError: the store is unavailable.
        """
        stored = await self.drills.newest()
        drill = stored.drill
        if drill is None or drill.number != number:
            raise NoSuchDrill(f"drill {number} is not the newest one")
        expected(drill)
        try:
            after = transition(drill, DrillEvent.ABORT, self._view.now(), why=reason, by=caller.name)
        except KeyError:
            raise DrillRefused(f"drill {number} is {drill.phase.value.replace('_', ' ')} already") from None
        if not await self._write(caller, after, stored, None):
            raise DrillRefused("the drill changed at the same time: try again")
        return after

    async def tick(self) -> None:
        """Step the drill under way, or begin a scheduled drill. Store errors are logged; the next tick retries."""
        async with self._stepping:
            try:
                policy, epoch = self._ready()
                await self._step(policy, epoch)
            except LeaderNotReady:
                return
            except StoreError as error:
                _log.warning("drill not stepped", reason=str(error))

    def _ready(self) -> tuple[Policy, int]:
        policy, epoch = self._view.staged_policy, self._elector.epoch
        if policy is None or epoch is None or not self._view.has_full_snapshot:
            raise LeaderNotReady("regions have not reported to this control plane yet; try again")
        return policy, epoch

    async def _step(self, policy: Policy, epoch: int) -> None:
        stored = await self.drills.newest()
        drill, now = stored.drill, self._view.now()
        if drill is None or drill.is_over:
            if (request := due(policy, drill, now)) is not None:
                await self._begin_scheduled(request, policy, stored, epoch)
            return
        if not self._view.in_force:
            return
        after, effects = on_tick(drill, await self._observe(drill, policy, epoch), now)
        if after.phase is not drill.phase or after.marks.keys() != drill.marks.keys():
            if not await self._write(self._caller, after, stored, epoch):
                return
            _log.info("drill", number=after.number, phase=after.phase.value, reason=after.steps[-1].why)
        for effect in effects:
            await self._perform(effect, after, policy, epoch)

    async def _perform(self, effect: Effect, drill: Drill, policy: Policy, epoch: int) -> None:
        match effect:
            case SetOverride():
                try:
                    capacity = self._view.capacity() or {}
                    await self._overrides.begin(self._caller, effect.override, policy, capacity, epoch=epoch)
                except OverrideRefused as refused:
                    after = transition(drill, DrillEvent.REFUSE, self._view.now(), why=str(refused))
                    stored = await self.drills.newest()
                    # An operator may have aborted the drill meanwhile.
                    if stored.drill is not None and stored.drill.steps == drill.steps:
                        await self._write(self._caller, after, stored, epoch)
            case LiftOverride():
                # Not fenced: the stored phase requires the lift, whichever control plane leads.
                await self._overrides.lift(self._caller, effect.override_id, effect.reason[:500], lambda _: None)
            case _:
                self._elector.step_down()

    async def _begin_scheduled(self, request: DrillRequest, policy: Policy, stored: StoredDrill, epoch: int) -> None:
        """Begin a drill of the policy's schedule, or record why it does not begin."""
        now = self._view.now()
        name, tried_at = self._tried
        if name == request.schedule and now - tried_at < RETRY_S:
            return
        self._tried = request.schedule, now
        why = await self._refusal(request, policy, stored)
        refused = final_refusal(request, why, now)
        if why is not None and refused is None:
            return
        drill = await self._first(request, policy, stored, epoch)
        if refused is not None:
            steps = (DrillStep(DrillPhase.REFUSED, now, refused),)
            drill = msgspec.structs.replace(drill, steps=steps, marks={})
        if await self._write(self._caller, drill, stored, epoch):
            _log.info("scheduled drill", name=request.schedule, phase=drill.phase.value, reason=drill.steps[-1].why)

    async def _refusal(self, request: DrillRequest, policy: Policy, stored: StoredDrill) -> str | None:
        now, snapshot = self._view.now(), self._view.snapshot
        in_force = self._overrides.interventions(policy, now)
        situation = FleetBeforeDrill(
            newest=stored.drill,
            is_rolling_out=self._view.is_rolling_out,
            states=self._view.region_states(),
            withdrawn=tuple(sorted(in_force.drained)),
            control_planes=len(self._members.values),
            objectives=recent_objectives(snapshot),
        )
        why = refusal(request, policy, situation)
        if why is not None or request.region is None:
            return why
        # In a thread: planning for a large fleet would delay reports and requests.
        return await asyncio.to_thread(missing_without, policy, snapshot, request.region, in_force, now) or None

    async def _first(self, request: DrillRequest, policy: Policy, stored: StoredDrill, epoch: int) -> Drill:
        now = self._view.now()
        return Drill(
            number=stored.next_number,
            request=request,
            steps=(DrillStep(first_phase(request.exercise), now, request.reason),),
            epoch=epoch,
            leader=self._elector.member.name,
            plan_epoch=self._plan_epoch(),
            audit_seq=(await self._audit.head()).seq,
            handled=handled_after(policy, stored.drill, request),
            marks=with_marks(observations(self._view.snapshot, now), {}),
        )

    async def _observe(self, drill: Drill, policy: Policy, epoch: int) -> Observed:
        now, snapshot, region = self._view.now(), self._view.snapshot, drill.request.region
        states = self._view.region_states()
        mine = [seen.report for (place, _), seen in pools(snapshot, now).items() if place == region]
        shares = [
            arc.share
            for plan in self._view.in_force.values()
            for entry in plan.classes
            for arc in entry.arcs
            if arc.server == region
        ]
        newest = [held.received_at for held in snapshot.of(region)] if region is not None else []
        return Observed(
            epoch=epoch,
            leader=self._elector.member.name,
            plan_epoch=self._plan_epoch(),
            audit_seq=(await self._audit.head()).seq,
            agents=observations(snapshot, now),
            failed=tuple(sorted(name for name, state in states.items() if state is RegionState.FAILED)),
            ramp_s=policy.failover.failback_ramp_s,
            override=(await self._overrides.read()).find(drill.override_id),
            share=max(shares, default=0.0),
            in_flight=sum(report.in_flight for report in mine),
            reported_at=min(newest, default=0.0),
            is_healthy=region is None or states.get(region) is RegionState.HEALTHY,
        )

    def _plan_epoch(self) -> int:
        return min((plan.epoch for plan in self._view.in_force.values()), default=0)

    async def _write(self, caller: Caller, drill: Drill, stored: StoredDrill, epoch: int | None) -> bool:
        """Write a drill and its audit entry. Return False, with nothing written, if the drill has changed since
        `stored` was read, or the leadership of `epoch` has ended."""
        try:
            await self._audit.record(
                AuditedAction(
                    caller,
                    f"drill.{drill.phase.value}",
                    f"drill {drill.number}",
                    drill.steps[-1].why,
                    _audited(stored.drill),
                    _audited(drill),
                ),
                expect=[
                    Unchanged(keys.DRILL, stored.revision),
                    *([SameKey(keys.LEADER, epoch)] if epoch is not None else []),
                ],
                do=changes(drill),
            )
        except ChangeRefused:
            return False
        return True


def _audited(drill: Drill | None) -> dict[str, Any] | None:
    """Return the fields of a drill that an audit entry contains."""
    if drill is None:
        return None
    request = drill.request
    return {
        "drill": drill.number,
        "phase": drill.phase.value,
        "exercise": request.exercise.value,
        "region": request.region,
        "author": request.author,
        "requests": drill.requests.ended,
        "failed_requests": drill.requests.failed,
    }

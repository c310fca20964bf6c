"""From looking at the state now and then to events: what differs from the last look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from control_plane.audit.chain import AuditEntry
from control_plane.client.members import Member
from control_plane.events import EventLog, Kind
from control_plane.plan_history import PlanHistory
from control_plane.status import PolicyStatus
from penstock.plan import RegionPlan
from penstock.region_health import RegionState
from penstock.rollout import Rollout

LOOK_S = 0.5
"""Time (s) between two looks: as often as regions are judged and plans are made."""

MOST_ERRORS = 20
"""Of a refused policy that an event tells."""


class Glimpse(msgspec.Struct, frozen=True):
    """As much of the state as events tell of: the whole status takes tens of milliseconds in a large fleet."""

    epoch: int | None
    """Under which this control plane leads; None while it does not."""
    leader: Member | None
    policy: PolicyStatus
    in_force: str | None
    """Digest of the policy that most regions obey; a rollout brings them to the newest one in steps."""
    rollout: Rollout | None
    regions: dict[str, RegionState]
    """Empty where agents report to another control plane."""
    plans: Mapping[str, RegionPlan]
    """The slices in the store, by region."""


class Noticing:
    """Looks, and publishes what is new.

    Args:
        events: where to.
        history: takes in each plan.
        glimpse: the state now.
    """

    def __init__(self, events: EventLog, history: PlanHistory, glimpse: Callable[[], Glimpse]) -> None:
        self._events = events
        self._history = history
        self._glimpse = glimpse
        self._regions: dict[str, RegionState] = {}
        self._told: dict[Kind, Any] = {}

    async def look(self) -> None:
        """Publish what changed since the last look. A coroutine, so that the scheduler runs it on the event loop."""
        now = self._glimpse()
        leader = msgspec.to_builtins(now.leader)
        self._tell(Kind.LEADERSHIP, {"leading": now.epoch is not None, "epoch": now.epoch or 0, "leader": leader})
        policy = now.policy
        told = {
            "in_force": now.in_force,
            "accepted": policy.digest,
            "provenance": msgspec.to_builtins(policy.provenance),
            "refused": policy.refused[:MOST_ERRORS],
            "refused_provenance": msgspec.to_builtins(policy.refused_provenance),
        }
        if Kind.POLICY in self._told or policy.digest is not None or policy.refused:
            self._tell(Kind.POLICY, told)
        if now.rollout is not None:
            one = now.rollout
            told = {"number": one.number, "phase": one.phase.value, "candidate": one.candidate, "stable": one.stable}
            self._tell(Kind.ROLLOUT, told | {"why": one.why, "by": one.by})
        self._look_at_regions(now.regions)
        plan = self._history.note(now.plans)
        if plan is not None:
            told = {"generation": plan.generation, "epoch": plan.epoch, "policy_digest": plan.policy_digest}
            self._events.publish(Kind.PLAN, told | {"changes": len(plan.changes)})

    def audited(self, entry: AuditEntry) -> None:
        """Publish an entry of the audit log."""
        self._events.publish(Kind.AUDIT, msgspec.to_builtins(entry))

    def _look_at_regions(self, regions: dict[str, RegionState]) -> None:
        for region, state in regions.items():
            before = self._regions.get(region, RegionState.UNKNOWN)
            if state is not before:
                told = {"region": region, "before": before.value, "after": state.value}
                self._events.publish(Kind.REGION, told)
        self._regions = regions

    def _tell(self, kind: Kind, data: Any) -> None:
        """Publish what differs from what was last told of this kind."""
        if self._told.get(kind) != data:
            self._told[kind] = data
            self._events.publish(kind, data)

"""From looking at the state now and then to events: what differs from the last look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from control_plane.audit.chain import AuditEntry
from control_plane.events import EventLog, Kind
from control_plane.plan_history import PlanHistory
from control_plane.status import Status
from penstock.plan import RegionPlan
from penstock.region_health import RegionState

LOOK_S = 0.5
"""Time (s) between two looks: as often as regions are judged and plans are made."""

MOST_ERRORS = 20
"""Of a refused policy that an event tells."""


class Noticing:
    """Looks, and publishes what is new.

    Args:
        events: where to.
        history: takes in each plan.
        status: everything, as operators see it.
        plans: the slices in the store, by region.
    """

    def __init__(
        self,
        events: EventLog,
        history: PlanHistory,
        status: Callable[[], Status],
        plans: Callable[[], Mapping[str, RegionPlan]],
    ) -> None:
        self._events = events
        self._history = history
        self._status = status
        self._plans = plans
        self._regions: dict[str, RegionState] = {}
        self._told: dict[Kind, Any] = {}

    async def look(self) -> None:
        """Publish what changed since the last look. A coroutine, so that the scheduler runs it on the event loop."""
        status = self._status()
        leader = {"name": status.leader.name, "url": status.leader.url} if status.leader else None
        self._tell(Kind.LEADERSHIP, {"leading": status.leading, "epoch": status.epoch, "leader": leader})
        policy = status.policy
        told = {
            "digest": policy.digest,
            "provenance": msgspec.to_builtins(policy.provenance),
            "refused": policy.refused[:MOST_ERRORS],
            "refused_provenance": msgspec.to_builtins(policy.refused_provenance),
        }
        if Kind.POLICY in self._told or policy.digest is not None or policy.refused:
            self._tell(Kind.POLICY, told)
        self._look_at_regions(status)
        plan = self._history.note(self._plans())
        if plan is not None:
            told = {"generation": plan.generation, "epoch": plan.epoch, "policy_digest": plan.policy_digest}
            self._events.publish(Kind.PLAN, told | {"changes": len(plan.changes)})

    def audited(self, entry: AuditEntry) -> None:
        """Publish an entry of the audit log."""
        self._events.publish(Kind.AUDIT, msgspec.to_builtins(entry))

    def _look_at_regions(self, status: Status) -> None:
        for region in status.regions:
            before = self._regions.get(region.name, RegionState.UNKNOWN)
            if region.state is not before:
                told = {"region": region.name, "before": before.value, "after": region.state.value}
                self._events.publish(Kind.REGION, told)
        self._regions = {region.name: region.state for region in status.regions}

    def _tell(self, kind: Kind, data: Any) -> None:
        """Publish what differs from what was last told of this kind."""
        if self._told.get(kind) != data:
            self._told[kind] = data
            self._events.publish(kind, data)

"""Change detection: the leader compares the state with the journal periodically and writes the differences as events.

The journal is the only record of the events written so far, so that a new leader writes the missing events and repeats
none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from adapters.store.config_store import StoreError
from adapters.store.members import Member
from control_plane.audit.audit_log import AuditLog
from control_plane.events.event_log import EventKind, EventLog, FleetEvent, event_id
from control_plane.events.journal import Journal, JournalEntry
from control_plane.status.status import PolicyStatus
from penstock.health.region_health import RegionState
from penstock.log_chains.audit_log_chain import AuditEntry
from penstock.overrides.overrides import Override
from penstock.planning.plan import RegionPlan
from penstock.planning.plan_history import PlanHistory, PlanStep
from penstock.rollout.policy_rollout import Rollout

DETECTION_INTERVAL_S = 0.5
"""Time (s) between two comparisons: the interval of region health evaluation and planning."""

MAX_ERRORS = 20
"""Maximum number of errors of a refused policy in an event."""

MAX_ERROR = 300
"""Maximum length (characters) of each error, and of the description of an override in a plan step."""

MAX_AUDITED = 20
"""Maximum number of events for audit entries in one comparison; older entries are only in the audit log."""

MAX_AUDITED_BYTES = 4 * 1024
"""Size (bytes) of an audit entry above which its event omits `before` and `after`."""

_TRANSIENT = frozenset({RegionState.SUSPECT})
"""Transient states that cause no event: they resolve within about a second."""

_ORDINARY = frozenset({RegionState.HEALTHY, RegionState.SUSPECT})
"""Region states that are not circumstances of a plan step."""


class StateSnapshot(msgspec.Struct, frozen=True):
    """The part of the state from which events are derived; building the whole status takes much longer."""

    at: float
    """Unix time (s)."""
    epoch: int | None
    """Fencing epoch under which this control plane leads; None while it does not lead."""
    member: Member
    """This control plane."""
    why: str
    """Reason of this control plane's current role in the election."""
    policy: PolicyStatus
    in_force: str | None
    """Digest of the policy in force in most regions; None if unknown. During a rollout, regions differ."""
    rollout: Rollout | None
    regions: Mapping[str, RegionState]
    """Empty until the snapshot is complete."""
    overrides: tuple[Override, ...]
    """The active overrides."""
    plans: Mapping[str, RegionPlan]
    """The slices in force, by region; empty while slices are being written."""
    audited: AuditEntry | None
    """The last audit entry; None if there is none, or before it was read."""


class ChangeDetector:
    """Compares the state with the journal, and writes the differences.

    Args:
        events: receives the journal's entries.
        history: receives the journal's plan steps.
        audit: the log that audit entries are read from.
        current_state: returns the current state.
    """

    def __init__(
        self, events: EventLog, history: PlanHistory, audit: AuditLog, current_state: Callable[[], StateSnapshot]
    ) -> None:
        self._events = events
        self._history = history
        self._audit = audit
        self._current_state = current_state
        self._last: dict[EventKind, Any] = {}
        """Data of the last entry in the journal, by kind."""
        self._regions: dict[str, str] = {}
        """State of each region according to the journal."""
        self._led = False

    async def detect(self, journal: Journal) -> None:
        """Write the changes since the journal's last entries, if this control plane leads.

        Changes that cannot be written now are found again by the next call. When this control plane no longer
        leads, a local event is added to the event log only.
        """
        now = self._current_state()
        if now.epoch is None:
            if self._led:
                self._events.add_local(EventKind.LEADERSHIP, {"leader": None, "epoch": 0, "why": now.why})
            self._led = False
            return
        self._led = True
        if not journal.informer.synced:
            return
        try:
            events = [*self._decisions(now), *await self._audit_events(now.audited)]
            events += [*self._region_events(now), *self._plan_events(now)]
            if events:
                await journal.write(events, now.epoch, now.at)
        except StoreError:
            return

    def apply(self, entry: JournalEntry) -> None:
        """Apply an entry of the journal."""
        self._last[entry.kind] = entry.data
        if entry.kind is EventKind.REGION:
            self._regions[entry.data["region"]] = entry.data["after"]
        elif entry.kind is EventKind.PLAN:
            self._history.keep(entry.number, msgspec.convert(entry.data, PlanStep))
        self._events.add(FleetEvent(event_id(entry.epoch, entry.number), entry.at, entry.kind, entry.data))

    def _decisions(self, now: StateSnapshot) -> list[tuple[EventKind, Any]]:
        events: list[tuple[EventKind, Any]] = []
        if self._last.get(EventKind.LEADERSHIP, {}).get("epoch") != now.epoch:
            events.append((EventKind.LEADERSHIP, {"leader": now.member, "epoch": now.epoch, "why": now.why}))
        policy = now.policy
        data = {
            "in_force": now.in_force or self._last.get(EventKind.POLICY, {}).get("in_force"),
            "accepted": policy.digest,
            "provenance": policy.provenance,
            "refused": [error[:MAX_ERROR] for error in policy.refused[:MAX_ERRORS]],
            "refused_provenance": policy.refused_provenance,
        }
        if EventKind.POLICY in self._last or policy.digest is not None or policy.refused:
            events.append((EventKind.POLICY, data))
        if now.rollout is not None:
            fields = ("number", "phase", "candidate", "stable", "why", "by")
            events.append((EventKind.ROLLOUT, {field: getattr(now.rollout, field) for field in fields}))
        events = [(kind, msgspec.json.decode(msgspec.json.encode(data))) for kind, data in events]
        return [(kind, data) for kind, data in events if self._last.get(kind) != data]

    async def _audit_events(self, newest: AuditEntry | None) -> list[tuple[EventKind, Any]]:
        written: int = self._last.get(EventKind.AUDIT, {}).get("seq", 0)
        if newest is None or newest.seq <= written:
            return []
        entries = [newest]
        if newest.seq > written + 1:
            earlier = await self._audit.page(max(written, newest.seq - MAX_AUDITED) + 1, newest.seq - 1)
            # An unreadable entry has no event; verification of the log reports it.
            entries = [*(entry for entry in earlier if isinstance(entry, AuditEntry)), newest]
        return [(EventKind.AUDIT, msgspec.to_builtins(_brief(entry))) for entry in entries]

    def _region_events(self, now: StateSnapshot) -> list[tuple[EventKind, Any]]:
        events: list[tuple[EventKind, Any]] = []
        for region, state in now.regions.items():
            before = self._regions.get(region, RegionState.UNKNOWN.value)
            if state.value != before and state not in _TRANSIENT:
                events.append((EventKind.REGION, {"region": region, "before": before, "after": state.value}))
        return events

    def _plan_events(self, now: StateSnapshot) -> list[tuple[EventKind, Any]]:
        step = self._history.next_step(now.plans, now.at, now.member.name, _circumstances(now))
        return [(EventKind.PLAN, msgspec.to_builtins(step))] if step is not None else []


def _circumstances(now: StateSnapshot) -> list[str]:
    """Return the regions that are neither healthy nor suspect, and the overrides, as phrases."""
    states = [f"{region} is {state.value}" for region, state in now.regions.items() if state not in _ORDINARY]
    overrides = [
        f"{override.kind.value} of {override.region or 'the fleet'} by {override.author}: {override.reason}"[:MAX_ERROR]
        for override in now.overrides
    ]
    return states + overrides


def _brief(entry: AuditEntry) -> AuditEntry:
    if len(msgspec.json.encode(entry)) <= MAX_AUDITED_BYTES:
        return entry
    return msgspec.structs.replace(entry, before=None, after=None)

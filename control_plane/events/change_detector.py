"""Change detection: the leader compares the state with the journal periodically and writes the differences as events.

The journal is the only record of the events written so far, so that the next leader writes the missing events and none
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from adapters.store.codec import CodecError
from adapters.store.config_store import StoreError
from adapters.store.members import Member
from control_plane.audit.audit_chain import AuditEntry
from control_plane.audit.audit_log import AuditLog
from control_plane.events.event_log import EventKind, EventLog, FleetEvent, event_id
from control_plane.events.journal import Journal, JournalEntry
from control_plane.planning.plan_history import PlanHistory, PlanStep
from control_plane.status.status import PolicyStatus
from penstock.health.region_health import RegionState
from penstock.overrides.overrides import Override
from penstock.planning.plan import RegionPlan
from penstock.rollout.state_machine import Rollout

LOOK_S = 0.5
"""Time (s) between two comparisons: the interval of region health evaluation and planning."""

MAX_ERRORS = 20
"""Errors of a refused policy that an event contains."""

MAX_ERROR = 300
"""Characters of each error."""

MAX_AUDITED = 20
"""Audit entries that become events in one comparison; where there are more, the older ones are only in the log."""

MAX_AUDITED_BYTES = 4 * 1024
"""The event of a larger audit entry omits `before` and `after`."""

_PASSING = frozenset({RegionState.SUSPECT})
"""Transient states that cause no event: they resolve within about a second."""


class StateSnapshot(msgspec.Struct, frozen=True):
    """As much of the state as events tell of: the whole status takes tens of milliseconds in a large fleet."""

    at: float
    """Unix time (s)."""
    epoch: int | None
    """Fencing epoch under which this control plane leads; None while it does not."""
    member: Member
    """This control plane."""
    why: str
    """What made it lead, or not."""
    policy: PolicyStatus
    in_force: str | None
    """Digest of the policy that most regions obey: a rollout brings them to the newest one in steps. None: unknown."""
    rollout: Rollout | None
    regions: Mapping[str, RegionState]
    """Empty where that is not known for sure (yet)."""
    overrides: tuple[Override, ...]
    """Those that hold."""
    plans: Mapping[str, RegionPlan]
    """The slices in force, by region; empty while some are being written."""
    audited: AuditEntry | None
    """The last audit entry; None where there is none, or it is not known."""


class ChangeDetector:
    """Compares the state with the journal, and writes the differences.

    Args:
        events: receives the journal's entries.
        history: receives the journal's plan steps.
        audit: the log that audit entries are read from.
        glimpse: returns the current state.
    """

    def __init__(
        self, events: EventLog, history: PlanHistory, audit: AuditLog, glimpse: Callable[[], StateSnapshot]
    ) -> None:
        self._events = events
        self._history = history
        self._audit = audit
        self._glimpse = glimpse
        self._told: dict[EventKind, Any] = {}
        """Data of the journal's last entry of each kind."""
        self._regions: dict[str, str] = {}
        """State by region, by the journal's entries."""
        self._led = False

    async def look(self, journal: Journal) -> None:
        """Write the changes since the journal's last entries, if this control plane leads.

        Changes that cannot be written now are found again by the next call.
        """
        now = self._glimpse()
        if now.epoch is None:
            if self._led:
                self._events.tell(EventKind.LEADERSHIP, {"leader": None, "epoch": 0, "why": now.why})
            self._led = False
            return
        self._led = True
        if not journal.informer.synced:
            return
        try:
            news = [*self._decisions(now), *await self._audited(now.audited), *self._regions_news(now)]
            news += self._plan_news(now, at_once=any(kind is EventKind.REGION for kind, _ in news))
            if news:
                await journal.write(news, now.epoch, now.at)
        except StoreError:
            return

    def take_in(self, entry: JournalEntry) -> None:
        """Apply an entry of the journal."""
        self._told[entry.kind] = entry.data
        if entry.kind is EventKind.REGION:
            self._regions[entry.data["region"]] = entry.data["after"]
        elif entry.kind is EventKind.PLAN:
            self._history.keep(entry.number, msgspec.convert(entry.data, PlanStep))
        self._events.add(FleetEvent(event_id(entry.epoch, entry.number), entry.at, entry.kind, entry.data))

    def _decisions(self, now: StateSnapshot) -> list[tuple[EventKind, Any]]:
        news: list[tuple[EventKind, Any]] = []
        if self._told.get(EventKind.LEADERSHIP, {}).get("epoch") != now.epoch:
            news.append((EventKind.LEADERSHIP, {"leader": now.member, "epoch": now.epoch, "why": now.why}))
        policy = now.policy
        told = {
            "in_force": now.in_force or self._told.get(EventKind.POLICY, {}).get("in_force"),
            "accepted": policy.digest,
            "provenance": policy.provenance,
            "refused": [one[:MAX_ERROR] for one in policy.refused[:MAX_ERRORS]],
            "refused_provenance": policy.refused_provenance,
        }
        if EventKind.POLICY in self._told or policy.digest is not None or policy.refused:
            news.append((EventKind.POLICY, told))
        if now.rollout is not None:
            one = now.rollout
            told = {"number": one.number, "phase": one.phase.value, "candidate": one.candidate, "stable": one.stable}
            news.append((EventKind.ROLLOUT, told | {"why": one.why, "by": one.by}))
        news = [(kind, msgspec.json.decode(msgspec.json.encode(data))) for kind, data in news]
        return [(kind, data) for kind, data in news if self._told.get(kind) != data]

    async def _audited(self, newest: AuditEntry | None) -> list[tuple[EventKind, Any]]:
        told: int = self._told.get(EventKind.AUDIT, {}).get("seq", 0)
        if newest is None or newest.seq <= told:
            return []
        entries = [newest]
        if newest.seq > told + 1:
            # An unreadable entry must not block the events after it; verification of the log reports it.
            with suppress(CodecError):
                entries = await self._audit.page(max(told, newest.seq - MAX_AUDITED) + 1, newest.seq)
        return [(EventKind.AUDIT, msgspec.to_builtins(_brief(entry))) for entry in entries]

    def _regions_news(self, now: StateSnapshot) -> list[tuple[EventKind, Any]]:
        news = []
        for region, state in now.regions.items():
            before = self._regions.get(region, RegionState.UNKNOWN.value)
            if state.value != before and state not in _PASSING:
                news.append((EventKind.REGION, {"region": region, "before": before, "after": state.value}))
        return news

    def _plan_news(self, now: StateSnapshot, *, at_once: bool) -> list[tuple[EventKind, Any]]:
        step = self._history.next_step(now.plans, now.at, now.member.name, _amid(now), at_once=at_once)
        return [(EventKind.PLAN, msgspec.to_builtins(step))] if step is not None else []


def _amid(now: StateSnapshot) -> list[str]:
    """Circumstances out of the ordinary, as sentences."""
    states = [f"{region} is {state.value}" for region, state in now.regions.items() if state not in _ORDINARY]
    orders = [
        f"{one.kind.value} of {one.region or 'the fleet'} by {one.author}: {one.reason}"[:MAX_ERROR]
        for one in now.overrides
    ]
    return states + orders


_ORDINARY = frozenset({RegionState.HEALTHY, RegionState.SUSPECT})


def _brief(entry: AuditEntry) -> AuditEntry:
    if len(msgspec.json.encode(entry)) <= MAX_AUDITED_BYTES:
        return entry
    return msgspec.structs.replace(entry, before=None, after=None)

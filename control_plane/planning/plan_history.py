"""The plans of late, as steps: which shares moved when, under whom, and amid what.

Whoever leads writes them into the journal; every control plane has them from there, so that they outlive leaders and
processes. Plans themselves are not kept: one of a large fleet has megabytes, and what an operator asks is what moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from penstock.planning.plan import Arc, ClassPlan, RegionPlan
from penstock.planning.plan_diff import ArcChange, ArcKey, arc_changes, arcs, composed, redone, undone
from penstock.policy.provenance import Provenance

MAX_CHANGES = 100
"""Arcs of one step; where more differ, the next steps tell of them."""

MAX_AMID = 20
"""Circumstances of one step."""

BURST, BURST_S = 5, 50.0
"""At most so many steps within so long (s): shares that go on moving are told of together. What follows the loss of a
region, another policy or another leader is told at once."""


class PlanStep(msgspec.Struct, frozen=True):
    """How the plan differs from the one that was told of before: what the journal keeps."""

    generation: int
    """The largest of its slices'."""
    epoch: int
    """The epoch that it carries: of the leader that made it."""
    policy_digest: str
    """What most regions obey."""
    made_at: float
    """Unix time (s) by that leader's clock."""
    leader: str
    """Its name."""
    after: int
    """Generation of the plan that was told of before; 0 where there is none."""
    changes: tuple[ArcChange, ...] = ()
    """The arcs that differ from it, the largest differences first."""
    more: int = 0
    """Arcs that differ, too, for which there was no room: those of the steps that follow."""
    amid: tuple[str, ...] = ()
    """What was out of the ordinary then: regions that are not healthy, overrides."""
    provenance: Provenance | None = None
    """The commit that the policy is from; None where it is from a folder."""


class PastPlan(msgspec.Struct, frozen=True):
    """A plan over all regions, as it was in force, and how it came about."""

    step: PlanStep
    slices: dict[str, RegionPlan]
    """By region: its arcs. Fallbacks, failover tables and what was closed are not kept."""


class PlanSummary(msgspec.Struct, frozen=True):
    """A plan that was in force."""

    generation: int
    epoch: int
    """The epoch that it carries: of the leader that made it."""
    policy_digest: str
    made_at: float
    """Unix time (s) by that leader's clock."""
    changes: int
    """Arcs that differ from the plan before it."""
    leader: str = ""
    """Name of the control plane that made it."""
    amid: tuple[str, ...] = ()
    """What was out of the ordinary then: regions that are not healthy, overrides."""
    provenance: Provenance | None = None
    """The commit that the policy is from; None where it is from a folder."""


class PlanDiff(msgspec.Struct, frozen=True):
    """What differs between two plans."""

    before: PlanSummary
    after: PlanSummary
    changes: tuple[ArcChange, ...]
    """The largest first."""


class PlanHistory:
    """Knows the steps that are kept, and sees the next one."""

    def __init__(self) -> None:
        self._steps: dict[int, PlanStep] = {}
        self._told: dict[str, dict[ArcKey, Arc]] | None = None
        """The arcs of each origin as the last step has them; None until `begin`."""
        self._same: dict[str, tuple[ClassPlan, ...]] = {}
        """Entries of the slices that are as told, so that they need no second look."""

    @property
    def steps(self) -> dict[int, PlanStep]:
        """By number, oldest first."""
        return self._steps

    def begin(self, slices: Mapping[str, RegionPlan]) -> None:
        """Take the plan in force for what the last step has, where nothing better is known."""
        if self._told is None:
            self._told = {origin: arcs({origin: one}) for origin, one in slices.items()}
            self._same = {origin: one.classes for origin, one in slices.items()}

    def keep(self, number: int, step: PlanStep) -> None:
        """Take in the next step."""
        self._steps[number] = step
        if self._told is not None:
            for origin, changes in _by_origin(step.changes).items():
                self._told[origin] = redone(self._told.get(origin, {}), changes)
                self._same.pop(origin, None)

    def forget(self, number: int) -> None:
        """Let go of a step."""
        self._steps.pop(number, None)

    def find(self, generation: int) -> int | None:
        """The number of the step whose plan was in force at a generation; None where it is not known."""
        numbers = [number for number, step in self._steps.items() if step.generation <= generation]
        newest = next(reversed(self._steps.values()), None)
        return numbers[-1] if numbers and newest is not None and generation <= newest.generation else None

    def diff(self, before: int, after: int) -> PlanDiff:
        """What differs between the plans of two steps, whichever is the older."""
        first, last = min(before, after), max(before, after)
        between = [step.changes for number, step in self._steps.items() if first < number <= last]
        changes = composed(between)
        if after < before:
            changes = tuple(map(_reversed, changes))
        return PlanDiff(summary(self._steps[before]), summary(self._steps[after]), changes)

    def plan(self, number: int) -> PastPlan:
        """The plan of a step, by undoing those after it."""
        step, now = self._steps[number], self._told or {}
        since = _by_origin(composed(one.changes for at, one in self._steps.items() if at > number))
        there = {origin: undone(now.get(origin, {}), since.get(origin, ())) for origin in now.keys() | since.keys()}
        return PastPlan(step, {origin: _slice(origin, some, step) for origin, some in sorted(there.items())})

    def next_step(
        self, slices: Mapping[str, RegionPlan], now: float, leader: str, amid: Iterable[str], *, at_once: bool = False
    ) -> PlanStep | None:
        """What the leader is to tell of its plan; None where that is nothing, or can wait.

        Args:
            slices: in force.
            now: Unix time, in seconds.
            leader: its name.
            amid: what is out of the ordinary.
            at_once: whether something happened that people will look into.
        """
        if not slices or self._told is None:
            return None
        newest = max(slices.values(), key=lambda plan: (plan.epoch, plan.generation))
        digests = Counter(plan.policy_digest for plan in slices.values())
        digest = max(digests, key=lambda one: (digests[one], one))
        last = next(reversed(self._steps.values()), None)
        changes = self._changes(slices)
        if last is not None:
            same_rule = (last.policy_digest, last.epoch) == (digest, newest.epoch)
            if same_rule and not changes:
                return None
            if same_rule and not at_once and not self._has_room(now):
                return None
        told = next(plan for plan in slices.values() if plan.policy_digest == digest)
        return PlanStep(
            newest.generation,
            newest.epoch,
            digest,
            newest.made_at,
            leader,
            last.generation if last is not None else 0,
            changes[:MAX_CHANGES],
            len(changes[MAX_CHANGES:]),
            tuple(amid)[:MAX_AMID],
            told.provenance,
        )

    def _has_room(self, now: float) -> bool:
        late = list(self._steps.values())[-BURST:]
        return len(late) < BURST or abs(now - late[0].made_at) >= BURST_S

    def _changes(self, slices: Mapping[str, RegionPlan]) -> tuple[ArcChange, ...]:
        """How slices differ from what was told, looking only at those that changed since the last look."""
        told = self._told or {}
        doubtful = {region: one for region, one in slices.items() if self._same.get(region) != one.classes}
        before: dict[ArcKey, Arc] = {}
        for origin in doubtful.keys() | (told.keys() - slices.keys()):
            before |= told.get(origin, {})
        changes = arc_changes(before, arcs(doubtful))
        differing = {one.origin for one in changes}
        self._same |= {region: one.classes for region, one in doubtful.items() if region not in differing}
        return changes


def summary(step: PlanStep) -> PlanSummary:
    """A step in a list."""
    return PlanSummary(
        step.generation,
        step.epoch,
        step.policy_digest,
        step.made_at,
        len(step.changes) + step.more,
        step.leader,
        step.amid,
        step.provenance,
    )


def _by_origin(changes: Iterable[ArcChange]) -> dict[str, list[ArcChange]]:
    found: dict[str, list[ArcChange]] = {}
    for one in changes:
        found.setdefault(one.origin, []).append(one)
    return found


def _slice(origin: str, there: Mapping[ArcKey, Arc], step: PlanStep) -> RegionPlan:
    entries: dict[tuple[str, str], list[Arc]] = {}
    for (_, _, model, residency), arc in sorted(there.items()):
        entries.setdefault((model, residency), []).append(arc)
    return RegionPlan(
        origin,
        step.generation,
        step.epoch,
        step.policy_digest,
        step.made_at,
        tuple(ClassPlan(model, residency, tuple(some), ()) for (model, residency), some in entries.items()),
        provenance=step.provenance,
    )


def _reversed(change: ArcChange) -> ArcChange:
    return msgspec.structs.replace(
        change, before=change.after, after=change.before, why_before=change.why, why=change.why_before, detail=""
    )

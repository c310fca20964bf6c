"""Recent plans, as steps: the shares that moved, with the time, the leader and the circumstances.

The leader writes the steps into the journal, which every control plane reads, so that the history survives changes of
leader and restarts. Whole plans are not kept: a large fleet's plan has megabytes, and operators need the
differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from penstock.planning.plan import Arc, ClassPlan, RegionPlan
from penstock.planning.plan_diff import (
    ArcChange,
    ArcKey,
    apply_changes,
    arc_changes,
    arcs,
    compose_changes,
    revert_changes,
    traffic_classes,
)
from penstock.policy.provenance import Provenance

MAX_CHANGES = 100
"""Maximum number of arcs in one step; the following steps contain further arcs that differ."""

MAX_CIRCUMSTANCES = 20
"""Maximum number of circumstances of one step."""

BURST, BURST_S = 5, 50.0
"""Maximum number of steps, and the period (s) to which it applies: continued small movements of shares are merged into
one step. A step that follows a change of circumstances, of policy or of leader is written at once."""

SETTLING = 3
"""Number of steps that are written at once after a change of circumstances: the first plans can be ones that the leader
computed before the override was set or the region failed."""


class PlanStep(msgspec.Struct, frozen=True):
    """The difference of a plan from the plan of the previous step, as the journal stores it."""

    generation: int
    """The largest generation of the plan's slices."""
    epoch: int
    """Fencing epoch of the leader that made the plan."""
    policy_digest: str
    """Digest of the policy that applies in most regions."""
    made_at: float
    """Unix time (s) by that leader's clock."""
    leader: str
    """Name of the leader."""
    previous_generation: int
    """Generation of the previous step's plan; 0 for the first step."""
    changes: tuple[ArcChange, ...] = ()
    """The arcs that differ from the previous step's plan, the largest differences first."""
    more_changes: int = 0
    """Number of further arcs that differ and exceed MAX_CHANGES; the following steps contain them."""
    circumstances: tuple[str, ...] = ()
    """Regions that were not healthy, and overrides, at the time of the plan."""
    provenance: Provenance | None = None
    """The commit that the policy is from; None where it is from a folder."""


class PastPlan(msgspec.Struct, frozen=True):
    """A plan over all regions as it was in force, and the step that it results from."""

    step: PlanStep
    slices: dict[str, RegionPlan]
    """Arcs by region. Fallbacks, failover tables and closed classes are not kept."""


class PlanSummary(msgspec.Struct, frozen=True):
    """A plan that was in force."""

    generation: int
    epoch: int
    """Fencing epoch of the leader that made the plan."""
    policy_digest: str
    made_at: float
    """Unix time (s) by that leader's clock."""
    changes: int
    """Number of arcs that differ from the previous plan."""
    leader: str = ""
    """Name of the control plane that made the plan."""
    circumstances: tuple[str, ...] = ()
    """Regions that were not healthy, and overrides, at the time of the plan."""
    provenance: Provenance | None = None
    """The commit that the policy is from; None where it is from a folder."""


class PlanDiff(msgspec.Struct, frozen=True):
    """The difference between two plans."""

    before: PlanSummary
    after: PlanSummary
    changes: tuple[ArcChange, ...]
    """Arcs whose share differs, the largest differences first."""


class PlanHistory:
    """Holds the journal's steps, and computes the next step."""

    def __init__(self) -> None:
        self._steps: dict[int, PlanStep] = {}
        self._last_arcs: dict[str, dict[ArcKey, Arc]] | None = None
        """Arcs by origin, as of the last step; None until `begin`."""
        self._unchanged: dict[str, tuple[ClassPlan, ...]] = {}
        """Entries of the slices that equal the last step, by region; these slices are not compared again."""

    @property
    def steps(self) -> dict[int, PlanStep]:
        """Steps by number, oldest first."""
        return self._steps

    def begin(self, slices: Mapping[str, RegionPlan]) -> None:
        """Set the plan in force as the plan of the last step, unless a plan was set before."""
        if self._last_arcs is None:
            self._last_arcs = {origin: arcs({origin: plan}) for origin, plan in slices.items()}
            self._unchanged = {origin: plan.classes for origin, plan in slices.items()}

    def keep(self, number: int, step: PlanStep) -> None:
        """Append the next step."""
        self._steps[number] = step
        if self._last_arcs is not None:
            for origin, changes in _by_origin(step.changes).items():
                self._last_arcs[origin] = apply_changes(self._last_arcs.get(origin, {}), changes)
                self._unchanged.pop(origin, None)

    def forget(self, number: int) -> None:
        """Remove a step."""
        self._steps.pop(number, None)

    def find(self, generation: int) -> int | None:
        """Return the number of the step whose plan was in force at a generation; None if no stored step covers it."""
        numbers = [number for number, step in self._steps.items() if step.generation <= generation]
        newest = next(reversed(self._steps.values()), None)
        return numbers[-1] if numbers and newest is not None and generation <= newest.generation else None

    def diff(self, before: int, after: int) -> PlanDiff:
        """Return the difference between the plans of two steps, in either order."""
        first, last = min(before, after), max(before, after)
        between = [step.changes for number, step in self._steps.items() if first < number <= last]
        changes = compose_changes(between)
        if after < before:
            changes = tuple(map(_reversed, changes))
        return PlanDiff(summary(self._steps[before]), summary(self._steps[after]), changes)

    def plan(self, number: int) -> PastPlan:
        """Return the plan of a step, reconstructed by reverting the later steps."""
        step, now = self._steps[number], self._last_arcs or {}
        since = _by_origin(compose_changes(later.changes for at, later in self._steps.items() if at > number))
        arcs_then = {
            origin: revert_changes(now.get(origin, {}), since.get(origin, ())) for origin in now.keys() | since.keys()
        }
        return PastPlan(step, {origin: _slice(origin, then, step) for origin, then in sorted(arcs_then.items())})

    def next_step(
        self,
        slices: Mapping[str, RegionPlan],
        now: float,
        leader: str,
        circumstances: Iterable[str],
    ) -> PlanStep | None:
        """Return the next step for the journal; None if nothing changed or the change can wait.

        Args:
            slices: the slices in force, by region.
            now: Unix time, in seconds.
            leader: name of the leader.
            circumstances: regions that are not healthy, and overrides, as phrases.
        """
        if not slices or self._last_arcs is None:
            return None
        newest = max(slices.values(), key=lambda plan: (plan.epoch, plan.generation))
        digests = Counter(plan.policy_digest for plan in slices.values())
        digest = max(digests, key=lambda digest: (digests[digest], digest))
        last = next(reversed(self._steps.values()), None)
        changes = self._changes(slices)
        phrases = tuple(circumstances)[:MAX_CIRCUMSTANCES]
        if last is not None:
            same_rule = (last.policy_digest, last.epoch) == (digest, newest.epoch)
            if same_rule and not changes:
                return None
            if same_rule and not self._is_settling(phrases) and not self._has_room(now):
                return None
        example = next(plan for plan in slices.values() if plan.policy_digest == digest)
        return PlanStep(
            newest.generation,
            newest.epoch,
            digest,
            newest.made_at,
            leader,
            last.generation if last is not None else 0,
            changes[:MAX_CHANGES],
            len(changes[MAX_CHANGES:]),
            phrases,
            example.provenance,
        )

    def _is_settling(self, circumstances: tuple[str, ...]) -> bool:
        return any(step.circumstances != circumstances for step in list(self._steps.values())[-SETTLING:])

    def _has_room(self, now: float) -> bool:
        recent = list(self._steps.values())[-BURST:]
        return len(recent) < BURST or abs(now - recent[0].made_at) >= BURST_S

    def _changes(self, slices: Mapping[str, RegionPlan]) -> tuple[ArcChange, ...]:
        """Return the difference from the last step's plan; compares only slices that changed since the last call."""
        last = self._last_arcs or {}
        candidates = {region: plan for region, plan in slices.items() if self._unchanged.get(region) != plan.classes}
        before: dict[ArcKey, Arc] = {}
        for origin in candidates.keys() | (last.keys() - slices.keys()):
            before |= last.get(origin, {})
        changes = arc_changes(before, arcs(candidates), traffic_classes(candidates))
        differing = {change.origin for change in changes}
        self._unchanged |= {region: plan.classes for region, plan in candidates.items() if region not in differing}
        return changes


def summary(step: PlanStep) -> PlanSummary:
    """Return the summary of a step, for lists."""
    return PlanSummary(
        step.generation,
        step.epoch,
        step.policy_digest,
        step.made_at,
        len(step.changes) + step.more_changes,
        step.leader,
        step.circumstances,
        step.provenance,
    )


def _by_origin(changes: Iterable[ArcChange]) -> dict[str, list[ArcChange]]:
    found: dict[str, list[ArcChange]] = {}
    for change in changes:
        found.setdefault(change.origin, []).append(change)
    return found


def _slice(origin: str, arcs_then: Mapping[ArcKey, Arc], step: PlanStep) -> RegionPlan:
    entries: dict[tuple[str, str], list[Arc]] = {}
    for (_, _, model, residency), arc in sorted(arcs_then.items()):
        entries.setdefault((model, residency), []).append(arc)
    return RegionPlan(
        origin,
        step.generation,
        step.epoch,
        step.policy_digest,
        step.made_at,
        tuple(ClassPlan(model, residency, tuple(entry), ()) for (model, residency), entry in entries.items()),
        provenance=step.provenance,
    )


def _reversed(change: ArcChange) -> ArcChange:
    return msgspec.structs.replace(
        change, before=change.after, after=change.before, why_before=change.why, why=change.why_before, detail=""
    )

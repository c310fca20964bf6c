"""The plans of late, as they were in the store: what changed when. Bounded, and in memory alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import msgspec

from penstock.plan import RegionPlan
from penstock.plan_diff import ArcChange, plan_diff

MOST_PLANS = 200
"""Plans kept. An unchanged one that is written again is no new one."""


class PastPlan(msgspec.Struct, frozen=True):
    """A plan over all regions, as it was in force."""

    generation: int
    """The largest of its slices'."""
    epoch: int
    """The fencing epoch of the leader that made it."""
    policy_digest: str
    made_at: float
    """Unix time (s) by that leader's clock."""
    slices: dict[str, RegionPlan]
    """By region."""
    changes: tuple[ArcChange, ...]
    """What differs from the plan before it; empty for the first one seen."""


class PlanSummary(msgspec.Struct, frozen=True):
    """A plan that was in force."""

    generation: int
    epoch: int
    """The fencing epoch of the leader that made it."""
    policy_digest: str
    made_at: float
    """Unix time (s) by that leader's clock."""
    changes: int
    """Arcs that differ from the plan before it."""


class PlanDiff(msgspec.Struct, frozen=True):
    """What differs between two plans."""

    before: PlanSummary
    after: PlanSummary
    changes: tuple[ArcChange, ...]
    """The largest first."""


class PlanHistory:
    """Takes in what is in the store from time to time, and keeps what changed."""

    def __init__(self) -> None:
        self._plans: deque[PastPlan] = deque(maxlen=MOST_PLANS)
        self._newest = 0

    @property
    def plans(self) -> tuple[PastPlan, ...]:
        """Oldest first."""
        return tuple(self._plans)

    def find(self, generation: int) -> PastPlan | None:
        """The plan in force at a generation: one that is written again unchanged keeps the number it came with."""
        if generation > self._newest:
            return None
        return next((plan for plan in reversed(self._plans) if plan.generation <= generation), None)

    def note(self, slices: Mapping[str, RegionPlan]) -> PastPlan | None:
        """Take in the slices in force; the plan that they are, if it is another than the one before."""
        if not slices:
            return None
        newest = max(slices.values(), key=lambda plan: (plan.epoch, plan.generation))
        if newest.generation < self._newest:
            # The store was wiped: numbers begin anew, and what they meant before is no more.
            self._plans.clear()
        self._newest = newest.generation
        before = self._plans[-1].slices if self._plans else None
        if before is not None and _content(before) == _content(slices):
            return None
        # Slices of one generation come one by one: what comes later completes it.
        if self._plans and self._plans[-1].generation == newest.generation:
            self._plans.pop()
            before = self._plans[-1].slices if self._plans else None
        plan = PastPlan(
            generation=newest.generation,
            epoch=newest.epoch,
            policy_digest=newest.policy_digest,
            made_at=newest.made_at,
            slices=dict(slices),
            changes=plan_diff(before, slices) if before is not None else (),
        )
        self._plans.append(plan)
        return plan


def _content(slices: Mapping[str, RegionPlan]) -> dict[str, RegionPlan]:
    """Slices without what differs each time they are written."""
    return {
        region: msgspec.structs.replace(one, generation=0, made_at=0.0, health=None) for region, one in slices.items()
    }

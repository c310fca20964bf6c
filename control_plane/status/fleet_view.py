"""The state of the fleet that API routes read: policy in force, snapshot, published plan and available capacity."""

from __future__ import annotations

from collections.abc import Callable

from adapters.store.mirror import Mirror
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.planning.planning_loop import PlanningLoop
from control_plane.policy.source.policy_source import PolicySource
from control_plane.rollout.rollout_runner import RolloutRunner
from penstock.fleet.capacity import supply
from penstock.fleet.snapshot import Snapshot
from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.rollout.rollout_progress import RolloutOutlook


class FleetView:
    """Read access to the fleet's state on this control plane.

    Args:
        policies: the policy source.
        rollouts: the policy in force in most regions.
        fleet: the snapshot of agents' reports.
        planning: whether the snapshot is complete.
        plans: mirror of the published plan slices, by region.
        clock: Unix time (s), without jumps.
    """

    def __init__(
        self,
        policies: PolicySource,
        rollouts: RolloutRunner,
        fleet: FleetSnapshot,
        planning: PlanningLoop,
        plans: Mirror[RegionPlan],
        clock: Callable[[], float],
    ) -> None:
        self._policies = policies
        self._rollouts = rollouts
        self._fleet = fleet
        self._planning = planning
        self._plans = plans
        self._clock = clock

    def now(self) -> float:
        """Unix time (s) of the clock that ages are measured with."""
        return self._clock()

    @property
    def policy(self) -> Policy | None:
        """The policy in force in most regions or, until it is known, the source's policy; None before the first."""
        return self._rollouts.policy or self._policies.current

    @property
    def staged_policy(self) -> Policy | None:
        """The policy that most regions run, as the store has it; None until it has been read."""
        return self._rollouts.policy

    @property
    def outlook(self) -> RolloutOutlook | None:
        """What the rollout waits for; None while another control plane leads."""
        return self._rollouts.outlook

    @property
    def snapshot(self) -> Snapshot:
        """The fleet as last reported."""
        return self._fleet.snapshot

    @property
    def plans(self) -> dict[str, RegionPlan]:
        """The published plan slices, by region, as last read from the store."""
        return self._plans.values

    def capacity(self) -> dict[tuple[str, str], float] | None:
        """Available slots by (region, model); None on a follower and until the regions have reported."""
        policy = self.policy
        if policy is None or not self._planning.has_full_snapshot:
            return None
        now = self._clock()
        return {key: capacity.slots for key, capacity in supply(policy, self.snapshot, now).items()}

    def region_states(self) -> dict[str, RegionState]:
        """State of each region of the policy that most regions run; empty wherever `capacity` is None."""
        policy = self.staged_policy
        if policy is None or not self._planning.has_full_snapshot:
            return {}
        return {name: self.snapshot.state(name) for name in policy.regions}

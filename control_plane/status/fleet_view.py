"""The state of the fleet that API routes read: policy in force, snapshot, published plan and available capacity."""

from __future__ import annotations

from collections.abc import Callable

from adapters.store.informer import Mirror
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.planning.planning_loop import PlanningLoop
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
        rollouts: the policy in force in most regions, and the rollout under way.
        fleet: the snapshot of agents' reports.
        planning: the plan in force, and whether the snapshot is complete.
        plans: mirror of the published plan slices, by region.
        clock: Unix time (s), without jumps.
    """

    def __init__(
        self,
        rollouts: RolloutRunner,
        fleet: FleetSnapshot,
        planning: PlanningLoop,
        plans: Mirror[RegionPlan],
        clock: Callable[[], float],
    ) -> None:
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
        return self._rollouts.newest_policy

    @property
    def staged_policy(self) -> Policy | None:
        """The policy that most regions run, as the store has it; None until it has been read."""
        return self._rollouts.policy

    @property
    def has_full_snapshot(self) -> bool:
        """Whether this control plane leads and every live agent has had time to report to it."""
        return self._planning.has_full_snapshot

    @property
    def in_force(self) -> dict[str, RegionPlan]:
        """The plan slices of this leader; empty while they are being written, or another control plane leads."""
        return self._planning.in_force

    @property
    def is_rolling_out(self) -> bool:
        """Whether a rollout is under way, or unknown because another control plane leads."""
        active = self._rollouts.active
        return active is None or not active.rollout.is_over

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
        if policy is None or not self.has_full_snapshot:
            return None
        now = self._clock()
        return {key: capacity.slots for key, capacity in supply(policy, self.snapshot, now).items()}

    def region_states(self) -> dict[str, RegionState]:
        """State of each region of the policy that most regions run; empty wherever `capacity` is None."""
        policy = self.staged_policy
        if policy is None or not self.has_full_snapshot:
            return {}
        return {name: self.snapshot.state(name) for name in policy.regions}

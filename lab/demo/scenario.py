"""The schedule of the demo: its phases, its surge, and the times at which processes are killed and started."""

from __future__ import annotations

from enum import StrEnum

import msgspec

STEADY_S = 14.0
SURGE_S = 9.0
SETTLE_S = 15.0
"""Time (s) for spillover to end after the surge: demand is averaged, and shares change slowly."""

BEFORE_LOSS_S = 1.0
LOST_S = 8.0
RETURN_S = 19.0
"""Time (s) for a region to start, to complete its failback ramp, and to keep its share."""

TENANTS_S = 9.0
"""Time (s) for a flood of one tenant, a quiet tenant beside it, and the revocation of a key."""

ELECTION_S = 5.0
"""Time (s) from the kill of the leader to the kill of etcd, in which a new leader is elected."""

WITHOUT_ETCD_S = 3.0
WITHOUT_REDIS_S = 5.0


class PhaseName(StrEnum):
    """The phases of the demo, in order."""

    STEADY = "steady"
    SURGE = "surge"
    REGION_LOSS = "region_loss"
    TENANTS = "tenants"
    CONTROL_LOSS = "control_loss"


class Phase(msgspec.Struct, frozen=True):
    """One phase of the demo; times are seconds since the start of the schedule."""

    name: PhaseName
    title: str
    from_s: float
    to_s: float

    def covers(self, at_s: float) -> bool:
        """Whether the phase contains a request due at `at_s`."""
        return self.from_s <= at_s < self.to_s


class ActName(StrEnum):
    """The acts of the scenario."""

    SURGE_BEGINS = "surge_begins"
    SURGE_ENDS = "surge_ends"
    KILL_REGION = "kill_region"
    START_REGION = "start_region"
    TENANTS = "tenants"
    KILL_LEADER = "kill_leader"
    KILL_ETCD = "kill_etcd"
    KILL_REDIS = "kill_redis"


class Act(msgspec.Struct, frozen=True):
    """An act and its scheduled time (s)."""

    name: ActName
    at_s: float


class Scenario(msgspec.Struct, frozen=True):
    """The schedule of a run."""

    phases: tuple[Phase, ...]
    acts: tuple[Act, ...]
    surge_region: str
    surge_factor: float
    """Factor of the surge region's demand during the surge."""
    lost_region: str

    @property
    def duration_s(self) -> float:
        """Time (s) over which requests are due."""
        return self.phases[-1].to_s

    def phase(self, name: PhaseName) -> Phase:
        """Return the phase with a name."""
        return next(phase for phase in self.phases if phase.name is name)

    def phase_at(self, at_s: float) -> Phase:
        """Return the phase that contains `at_s`; the last phase for later times."""
        return next((phase for phase in self.phases if phase.covers(at_s)), self.phases[-1])

    def act_at_s(self, name: ActName) -> float:
        """Return the scheduled time (s) of an act."""
        return next(act.at_s for act in self.acts if act.name is name)

    def demand_factor(self, home: str, at_s: float) -> float:
        """Return the factor of the demand of the clients nearest to `home` at `at_s`."""
        surging = self.act_at_s(ActName.SURGE_BEGINS) <= at_s < self.act_at_s(ActName.SURGE_ENDS)
        return self.surge_factor if surging and home == self.surge_region else 1.0


def full_scenario(surge_region: str, surge_factor: float, lost_region: str, *, pace: float = 1.0) -> Scenario:
    """Return the scenario of the demo, which takes 90 s at `pace` 1.

    Args:
        surge_region: the region whose clients multiply their demand during the surge.
        surge_factor: factor of that demand.
        lost_region: the region that is killed and started again.
        pace: scales the durations except those of settling, ramp and election, which depend on the product.
    """
    parts = (
        (PhaseName.STEADY, "Steady state", STEADY_S * pace),
        (PhaseName.SURGE, "A surge and its end", SURGE_S * pace + SETTLE_S),
        (PhaseName.REGION_LOSS, "A region dies and returns", BEFORE_LOSS_S + LOST_S * pace + RETURN_S),
        (PhaseName.TENANTS, "A tenant floods, a key is revoked", TENANTS_S),
        (
            PhaseName.CONTROL_LOSS,
            "The control plane dies",
            BEFORE_LOSS_S + ELECTION_S + WITHOUT_ETCD_S + WITHOUT_REDIS_S,
        ),
    )
    phases, at_s = [], 0.0
    for name, title, length_s in parts:
        phases.append(Phase(name, title, at_s, at_s + length_s))
        at_s += length_s
    surge, loss, tenants, control = (phase.from_s for phase in phases[1:])
    killed, leaderless = loss + BEFORE_LOSS_S, control + BEFORE_LOSS_S
    acts = (
        Act(ActName.SURGE_BEGINS, surge),
        Act(ActName.SURGE_ENDS, surge + SURGE_S * pace),
        Act(ActName.KILL_REGION, killed),
        Act(ActName.START_REGION, killed + LOST_S * pace),
        Act(ActName.TENANTS, tenants),
        Act(ActName.KILL_LEADER, leaderless),
        Act(ActName.KILL_ETCD, leaderless + ELECTION_S),
        Act(ActName.KILL_REDIS, leaderless + ELECTION_S + WITHOUT_ETCD_S),
    )
    return Scenario(tuple(phases), acts, surge_region, surge_factor, lost_region)

"""The schedule of the story: which phase begins when, how much is asked of whom, and what dies at which second."""

from __future__ import annotations

from enum import StrEnum

import msgspec

STEADY_S = 14.0
SURGE_S = 9.0
CALM_S = 15.0
"""Time (s) after the surge until no request is served elsewhere: demand is averaged, and shares move slowly."""

BEFORE_LOSS_S = 1.0
LOST_S = 8.0
RETURN_S = 19.0
"""For a region to start, to ramp up, and to show that it stays."""

ELECTION_S = 5.0
"""Between the leader's death and etcd's, for another to be elected."""

WITHOUT_ETCD_S = 3.0
WITHOUT_REDIS_S = 5.0


class PhaseName(StrEnum):
    """The four parts of the story, in order."""

    STEADY = "steady"
    SURGE = "surge"
    REGION_LOSS = "region_loss"
    CONTROL_LOSS = "control_loss"


class Phase(msgspec.Struct, frozen=True):
    """One part of the story; times are seconds since the first request was due."""

    name: PhaseName
    title: str
    from_s: float
    to_s: float

    def covers(self, at_s: float) -> bool:
        """Whether a request due at `at_s` belongs to this phase."""
        return self.from_s <= at_s < self.to_s


class ActName(StrEnum):
    """What is done to the planet."""

    SURGE_BEGINS = "surge_begins"
    SURGE_ENDS = "surge_ends"
    KILL_REGION = "kill_region"
    START_REGION = "start_region"
    KILL_LEADER = "kill_leader"
    KILL_ETCD = "kill_etcd"
    KILL_REDIS = "kill_redis"


class Act(msgspec.Struct, frozen=True):
    """Something that is done to the planet at a moment."""

    name: ActName
    at_s: float


class Scenario(msgspec.Struct, frozen=True):
    """The whole schedule."""

    phases: tuple[Phase, ...]
    acts: tuple[Act, ...]
    surge_region: str
    surge_factor: float
    """How many times its usual demand the surged region's clients ask for."""
    lost_region: str

    @property
    def duration_s(self) -> float:
        """Time (s) over which requests are due."""
        return self.phases[-1].to_s

    def phase(self, name: PhaseName) -> Phase:
        """The phase of that name."""
        return next(phase for phase in self.phases if phase.name is name)

    def phase_at(self, at_s: float) -> Phase:
        """The phase that a request due at `at_s` belongs to; the last one owns everything after it."""
        return next((phase for phase in self.phases if phase.covers(at_s)), self.phases[-1])

    def act_at_s(self, name: ActName) -> float:
        """When that act is due."""
        return next(act.at_s for act in self.acts if act.name is name)

    def demand_factor(self, home: str, at_s: float) -> float:
        """How many times the usual demand the clients nearest to `home` ask for at `at_s`."""
        surging = self.act_at_s(ActName.SURGE_BEGINS) <= at_s < self.act_at_s(ActName.SURGE_ENDS)
        return self.surge_factor if surging and home == self.surge_region else 1.0


def full_scenario(surge_region: str, surge_factor: float, lost_region: str, *, pace: float = 1.0) -> Scenario:
    """The scenario as the demo runs it, 80 s at `pace` 1.

    Args:
        surge_region: whose clients ask for `surge_factor` times as much for a while.
        surge_factor: how many times as much.
        lost_region: what is killed, and comes back.
        pace: scales the parts in which nothing has to settle; the ends of surges, ramps and elections take their time.
    """
    parts = (
        (PhaseName.STEADY, "Steady state", STEADY_S * pace),
        (PhaseName.SURGE, "A surge and its end", SURGE_S * pace + CALM_S),
        (PhaseName.REGION_LOSS, "A region dies and returns", BEFORE_LOSS_S + LOST_S * pace + RETURN_S),
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
    surge, loss, control = (phase.from_s for phase in phases[1:])
    killed, leaderless = loss + BEFORE_LOSS_S, control + BEFORE_LOSS_S
    acts = (
        Act(ActName.SURGE_BEGINS, surge),
        Act(ActName.SURGE_ENDS, surge + SURGE_S * pace),
        Act(ActName.KILL_REGION, killed),
        Act(ActName.START_REGION, killed + LOST_S * pace),
        Act(ActName.KILL_LEADER, leaderless),
        Act(ActName.KILL_ETCD, leaderless + ELECTION_S),
        Act(ActName.KILL_REDIS, leaderless + ELECTION_S + WITHOUT_ETCD_S),
    )
    return Scenario(tuple(phases), acts, surge_region, surge_factor, lost_region)

"""The schedule of the story: which phase begins when, how much is asked of whom, and what dies at which second."""

from __future__ import annotations

from enum import StrEnum

import msgspec


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
    """The story as the demo tells it, 80 s at `pace` 1; a smaller pace shortens every part alike.

    Args:
        surge_region: whose clients ask for `surge_factor` times as much for a while.
        surge_factor: how many times as much.
        lost_region: what is killed, and comes back.
        pace: scales every duration; detection and ramps have lives of their own, so below 0.75 the story has no room.
    """
    lengths = {
        PhaseName.STEADY: ("Steady state", 14.0),
        PhaseName.SURGE: ("A surge and its end", 22.0),
        PhaseName.REGION_LOSS: ("A region dies and returns", 28.0),
        PhaseName.CONTROL_LOSS: ("The control plane dies", 16.0),
    }
    phases, at_s = [], 0.0
    for name, (title, length_s) in lengths.items():
        phases.append(Phase(name, title, at_s, at_s + length_s * pace))
        at_s += length_s * pace
    surge, loss, control = (phase.from_s for phase in phases[1:])
    acts = (
        Act(ActName.SURGE_BEGINS, surge),
        Act(ActName.SURGE_ENDS, surge + 9.0 * pace),
        Act(ActName.KILL_REGION, loss + 1.0 * pace),
        Act(ActName.START_REGION, loss + 9.0 * pace),
        Act(ActName.KILL_LEADER, control + 1.0 * pace),
        Act(ActName.KILL_ETCD, control + 6.0 * pace),
        Act(ActName.KILL_REDIS, control + 9.5 * pace),
    )
    return Scenario(tuple(phases), acts, surge_region, surge_factor, lost_region)

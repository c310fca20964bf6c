"""Targets of agent sessions over several regions: what homes of sessions spare, and what a change of shares moves.

Three regions are each the origin of sessions, of which the plan keeps 60 % and gives 40 % to another region. In the
middle of the run, ten points more go to the other region. Plans are fixed, and no request spills.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random
from statistics import fmean
from typing import Final

from lab.simulate.clock import VirtualClock
from lab.simulate.contenders import PENSTOCK
from lab.simulate.fleets import CHAT_COST, CHAT_MODEL, ChatFleet, EngineKind
from lab.simulate.penstock_agent import PenstockAgent
from lab.simulate.region import Region, Served
from lab.simulate.targets.comparison import Target, at_most, mean
from lab.simulate.targets.scenarios import Measures, RegionScenario, Runs, Scale, summary, values_of, versus
from lab.traces.agent_sessions import Turn, generate_session
from lab.traces.trace import TraceRequest
from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan
from penstock.policy.kinds.models import Model, Queueing
from penstock.policy.kinds.regions import Region as PolicyRegion
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.routing.affinity import session_key
from penstock.routing.reasons import Refusal
from penstock.routing.region_selection import RegionRequest, RegionView, draw, region_options

SAMPLED: Final = "by share for each request"
HELD: Final = "each session in one region"

PLACES: Final = {"eu-de": (50.1, 8.7), "eu-es": (40.4, -3.7), "eu-se": (59.3, 18.1)}
OTHER: Final = {"eu-de": "eu-es", "eu-es": "eu-se", "eu-se": "eu-de"}
"""The region to which the plan gives the rest of each origin's sessions."""

BEFORE, AFTER = 0.6, 0.5
"""Share of the origin before and after the middle of the run."""

BEGIN_S: Final = 60.0
"""Time (s) within which sessions begin."""

SHIFT_S: Final = 60.0
"""Time (s) of the change of shares."""

SAMPLE: Final = 4000
"""Number of session names whose homes are compared before and after the change."""

PERMITTED: Final = residency_class(frozenset(PLACES))


def _policy() -> Policy:
    regions = {name: PolicyRegion(name, "XX", *place) for name, place in PLACES.items()}
    return Policy(regions, {CHAT_MODEL: Model(CHAT_MODEL, 2.0)}, {}, ())


def _plan(origin: str, share: float) -> ClassPlan:
    arcs = Arc(origin, share, ArcReason.HOME), Arc(OTHER[origin], 1.0 - share, ArcReason.SPILLOVER)
    return ClassPlan(CHAT_MODEL, PERMITTED.name, arcs, ())


VIEWS: Final = {name: RegionView(RegionState.HEALTHY, ready=True) for name in PLACES}


def region_of(policy: Policy, origin: str, share: float, session: int | None, rng: Random) -> str:
    """Return the region that the product's selection gives to a request; `session` None for one without a session."""
    request = RegionRequest(origin, CHAT_MODEL, PERMITTED, session=session)
    options = region_options(policy, _plan(origin, share), request, VIEWS)
    assert not isinstance(options, Refusal)
    return draw(options, rng, session).region


class SessionRun:
    """One run of all regions with one contender."""

    def __init__(self, contender: str, kinds: tuple[EngineKind, ...], seed: int) -> None:
        """Create idle regions."""
        self.clock = VirtualClock()
        self.served: list[Served[TraceRequest]] = []
        self.fleets: list[ChatFleet] = []
        self._contender = contender
        self._rng = Random(seed)
        self._policy = _policy()
        self._left = 0
        self._regions: dict[str, Region[TraceRequest]] = {}
        for number, name in enumerate(PLACES):
            fleet = partial(ChatFleet, model=CHAT_MODEL, cost=CHAT_COST, kinds=kinds, known_lengths=False)
            region: Region[TraceRequest] = Region(fleet, 1, seed * 10 + number, clock=self.clock)
            region.set_agents([PenstockAgent(region, 0, Queueing())])
            self._regions[name] = region
            assert isinstance(region.fleet, ChatFleet)
            self.fleets.append(region.fleet)

    def run(self, sessions: Mapping[int, tuple[str, float, list[Turn]]]) -> None:
        """Run all sessions, given by origin, beginning (s) and turns, until the last response."""
        self._left = sum(len(turns) for _, _, turns in sessions.values())
        for number, (origin, begins_s, turns) in sessions.items():
            self.clock.at(begins_s, partial(self._send, number, origin, turns, 0))
        while self._left:
            self.clock.step()

    def _send(self, number: int, origin: str, turns: list[Turn], at: int) -> None:
        turn, sent_s = turns[at], self.clock.now
        server = self._server(number, origin)
        request = TraceRequest(sent_s, turn.prompt_tokens, turn.output_tokens, turn.prefix_blocks, str(number))
        trip_s = self._policy.round_trip_ms(origin, server) / 1000 if server != origin else 0.0

        def begin() -> None:
            served = self._regions[server].arrive(request, on_end=end)
            self.served.append(served)

        def end() -> None:
            self._left -= 1
            if at + 1 < len(turns):
                pause_s = turns[at + 1].pause_s
                self.clock.at(self.clock.now + pause_s, partial(self._send, number, origin, turns, at + 1))

        self.clock.at(sent_s + trip_s, begin)

    def _server(self, number: int, origin: str) -> str:
        key = None if self._contender == SAMPLED else session_key("", str(number).encode())
        is_before = self._contender == HELD or self.clock.now < SHIFT_S
        return region_of(self._policy, origin, BEFORE if is_before else AFTER, key, self._rng)


class SessionScenario(RegionScenario, frozen=True, kw_only=True):
    """Agent sessions over three regions, whose shares change by ten points."""

    def measure(self, contender: str, scale: Scale, seed: int) -> Measures:
        """As `Scenario.measure`."""
        rng = Random(seed)
        origins = [origin for origin in PLACES for _ in range(scale.sessions)]
        sessions = {
            number: (origin, rng.uniform(0.0, BEGIN_S), generate_session(number, rng))
            for number, origin in enumerate(origins)
        }
        run = SessionRun(contender, self.kinds, seed)
        run.run(sessions)
        first_s = [served.first_s for served in run.served if served.first_s is not None]
        computed = sum(fleet.prefill_tokens for fleet in run.fleets)
        moved = moved_part(seed) if contender == PENSTOCK else 0.0
        return {"prefill_tokens": float(computed), "moved": moved} | summary("ttft", first_s)


def moved_part(seed: int) -> float:
    """Return the part (0-1) of SAMPLE session names whose region the change of shares moves."""
    policy, rng = _policy(), Random(seed)
    keys = [session_key("", b"%d/%d" % (seed, number)) for number in range(SAMPLE)]
    regions = [[region_of(policy, "eu-de", share, key, rng) for key in keys] for share in (BEFORE, AFTER)]
    return fmean(before != after for before, after in zip(*regions, strict=True))


AGENT_SESSIONS = SessionScenario(
    name="agent sessions, three regions, 60/40 plan",
    kinds=(EngineKind("h100", 2, 64),),
    agents=1,
    contenders=(PENSTOCK, SAMPLED, HELD),
)

SESSION_SCENARIOS = (AGENT_SESSIONS,)


def session_targets(runs: Mapping[str, Runs]) -> list[Target]:
    """Return the targets of agent sessions from the runs of the scenario."""
    sessions = runs[AGENT_SESSIONS.name]
    prefill, first = "prefill_tokens", "ttft_mean_s"
    sampled = sum(values_of(sessions, SAMPLED, prefill)) / sum(values_of(sessions, HELD, prefill))
    return [
        at_most(
            1.05,
            "8 agent sessions: prefill tokens computed / each session in one region",
            versus(sessions, prefill, HELD),
            f"{SAMPLED}: {sampled:.2f}",
        ),
        at_most(0.5, f"8 agent sessions: mean TTFT / {SAMPLED}", versus(sessions, first, SAMPLED)),
        at_most(
            0.12,
            "8 agent sessions: part that a shift of ten points moves",
            mean(values_of(sessions, PENSTOCK, "moved")),
        ),
    ]

"""Targets of prefixes across regions: the rate that three regions serve at an equal time to first token.

The demand of the regions peaks one after the other, and their users share documents, of which the caches of one region
hold a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import cos, pi
from random import Random
from statistics import fmean
from typing import Final

from lab.simulate.contenders import PENSTOCK
from lab.simulate.fleets import EngineKind
from lab.simulate.regional_run import PLACES, GeoDnsRun, RegionalRun, Sent, SkyWalkerRun, SpilloverRun
from lab.simulate.targets.comparison import Target, at_least
from lab.simulate.targets.scenarios import Measures, RegionScenario, Runs, Scale, values_of, versus
from lab.traces.conversations import Conversations, generate_conversations

GEO_DNS: Final = "geo DNS, a router in each region"
SKYWALKER: Final = "SkyWalker's rule"
NO_SKETCHES: Final = "penstock, no sketches"

RATES_PER_S: Final = (20.0, 26.0, 32.0, 36.0, 40.0)
"""Mean rates (requests/s) of all regions together, between which the rate at an equal time is interpolated."""

EQUAL_TTFT_S: Final = 0.5
"""Mean time (s) to first token at which rates are compared."""

DAY_S: Final = 60.0
"""Time (s) between two peaks of one region."""

AMPLITUDE: Final = 0.9
"""Amplitude of the rate of a region, relative to its mean."""

DOCUMENTS: Final = Conversations(
    documents=250,
    document_blocks=(4, 8, 12, 16),
    mean_turns=2.0,
    first_tokens=(50, 400),
    output_log_mean=4.6,
)
"""Documents of 2,000 to 8,000 tokens: all of them together are more than the caches of one region hold."""

Contender = Callable[[tuple[EngineKind, ...], int], RegionalRun]

CONTENDERS: Final[Mapping[str, Contender]] = {
    PENSTOCK: partial(SpilloverRun, sketches=True),
    NO_SKETCHES: partial(SpilloverRun, sketches=False),
    GEO_DNS: GeoDnsRun,
    SKYWALKER: SkyWalkerRun,
}


def demand(rate_per_s: float, seconds: float, seed: int) -> list[Sent]:
    """Return requests of conversations, each of which is at the region that it began at."""
    rng = Random(seed)
    origins: dict[str, str] = {}
    names = list(PLACES)
    sent = []
    for request in generate_conversations(seconds, rate_per_s, rng, DOCUMENTS):
        phases = [2 * pi * (request.at_s / DAY_S + number / len(names)) for number in range(len(names))]
        weights = [1.0 + AMPLITUDE * cos(phase) for phase in phases]
        origin = origins.setdefault(request.conversation, rng.choices(names, weights)[0])
        sent.append(Sent(origin, request))
    return sent


class PrefixScenario(RegionScenario, frozen=True, kw_only=True):
    """Conversations over shared documents at several rates."""

    def measure(self, contender: str, scale: Scale, seed: int) -> Measures:
        """As `Scenario.measure`."""
        ttft_s, computed, away = [], 0, 0
        for rate_per_s in RATES_PER_S:
            run = CONTENDERS[contender](self.kinds, seed)
            run.run(demand(rate_per_s, scale.prefix_s, seed))
            counted = run.served[len(run.served) // 10 :]
            ttft_s.append(fmean([served.first_s for served in counted if served.first_s is not None]))
            computed += sum(fleet.prefill_tokens for fleet in run.fleets)
            away += run.away
        rate_per_s = rate_at(EQUAL_TTFT_S, RATES_PER_S, ttft_s)
        by_rate = {f"ttft_mean_s at {rate:g}/s": value for rate, value in zip(RATES_PER_S, ttft_s, strict=True)}
        return {"rate_per_s": rate_per_s, "prefill_tokens": float(computed), "away": float(away)} | by_rate


def rate_at(ttft_s: float, rates_per_s: Sequence[float], means_s: Sequence[float]) -> float:
    """Return the rate (requests/s) up to which means (s) stay below a time to first token, interpolated linearly.

    The greatest rate if all do, and the smallest if none does.
    """
    before_rate, before_s = rates_per_s[0], means_s[0]
    if before_s >= ttft_s:
        return before_rate
    for rate, mean_s in zip(rates_per_s, means_s, strict=True):
        if mean_s >= ttft_s:
            return before_rate + (rate - before_rate) * (ttft_s - before_s) / (mean_s - before_s)
        before_rate, before_s = rate, mean_s
    return before_rate


REGIONAL_PREFIXES = PrefixScenario(
    name="shared documents, three regions", kinds=(EngineKind("h100", 2, 16),), agents=1, contenders=tuple(CONTENDERS)
)

PREFIX_SCENARIOS = (REGIONAL_PREFIXES,)


def prefix_targets(runs: Mapping[str, Runs]) -> list[Target]:
    """Return the targets of prefixes across regions from the runs of the scenario."""
    found, rate = runs[REGIONAL_PREFIXES.name], "rate_per_s"
    own = fmean(values_of(found, PENSTOCK, rate))
    return [
        at_least(
            limit, f"9 rate at a mean TTFT of {EQUAL_TTFT_S:g} s / {other}", versus(found, rate, other), f"{own:.1f}/s"
        )
        for limit, other in ((1.3, GEO_DNS), (1.0, SKYWALKER), (1.0, NO_SKETCHES))
    ]

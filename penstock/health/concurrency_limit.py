"""Learns how many requests an endpoint should run at once: the concurrency from which on its throughput stops growing.

Limiters that compare latencies (Netflix concurrency-limits' Vegas and Gradient2, after TCP Vegas; Envoy's adaptive
concurrency filter) keep the latency near that of an idle server. An engine with continuous batching slows each stream
long before its throughput stops growing, so that such limiters stop at a fraction of its capacity. This limiter
compares throughputs: it alternates between the present limit and a higher or a lower limit, and keeps the higher of the
two only if its throughput is higher (trials as in PCC: Dong et al., "PCC: Re-architecting Congestion Control for
Consistent High Performance", NSDI 2015, and "PCC Vivace", NSDI 2018). Both sides of a trial cover the same minutes, so
an engine that is slow for a minute moves the limit by at most one step; and a limit does not fall below half of the
highest limit of the last PEAK_S seconds (a windowed maximum as in BBR: Cardwell et al., "BBR: Congestion-Based
Congestion Control", ACM Queue 2016).

The load that an engine reports does not change the limit: requests that wait in the engine make a trial of a lower
limit due, and the measured throughput decides the trial. Throughput is estimated as in
`penstock.health.throughput_fit`.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil, exp, inf, log
from typing import Final

import msgspec

from penstock.health.limit_trial import DEPENDENCE, MAX_SIDES, LimitTrial
from penstock.health.throughput_fit import Growth, ThroughputFit

DEFAULT_MAX_SLOTS: Final = 256
"""Upper bound of a learned limit: vLLM's default for max_num_seqs on most devices."""

START_SLOTS: Final = 8
"""Initial limit (requests), before any completion."""

REACHED: Final = 0.75
"""Part (0-1) of the limit that the mean concurrency must reach for a trial; below it, demand limits the concurrency."""

REACHED_MEMORY_S: Final = 3.0
"""Time constant (s) of the mean concurrency that is compared with REACHED."""

STEP: Final = 1.4
"""Ratio of the two limits of a trial."""

LARGE_STEP: Final = 2.0
"""Ratio of the two limits of a trial for a new endpoint, after trials in a row that moved the limit, and after a trial
of a lower limit that was neither clearly better nor clearly worse."""

LARGE_AFTER: Final = 2
"""Number of trials in a row that moved the limit, after which the next step up is LARGE_STEP."""

MIN_SIDE_S: Final = 1.0
SIDE_SERVICE_TIMES: Final = 2.0
"""Minimum duration of one side of a trial, in seconds and in mean service times (the longer one applies): requests must
begin and end within the side."""

MAX_SIDE_S: Final = 120.0
"""Maximum duration (s) of one side of a trial. A trial with a side that has too few completions by then has no
result."""

MIN_SAMPLES: Final = 20
"""Minimum number of completions of requests that began on one side of a trial, before the side may end."""

MAX_ELASTICITY: Final = 2.0
"""Maximum absolute elasticity of a valid trial. A larger value is attributed to a change of the engine during the
trial, which then has no result."""

MIN_CONTRAST: Final = 0.05
"""Minimum logarithm of the ratio of two concurrencies that are compared."""

MIN_PAUSE_S, MAX_PAUSE_S = 5.0, 240.0
"""Minimum and maximum pause (s) before the next trial. The pause doubles each time that neither a higher nor a lower
limit was better."""

PEAK_S: Final = 300.0
MIN_OF_PEAK: Final = 0.5
"""A limit does not fall below this part (0-1) of the highest limit of the last PEAK_S seconds."""

QUEUED_SHARE: Final = 0.1
"""Share (0-1) of an engine's requests that wait in the engine, above which a trial of a lower limit is due."""

SIGNAL_S: Final = 5.0
"""Maximum age (s) at which a load report of an engine is used."""

SIGNAL_WEIGHT: Final = 0.4
"""Weight (0-1) of the newest report in the moving means of queued and running requests."""

MEMORY_COMPLETIONS: Final = 50
"""Number of completions over which the mean service time is averaged."""

RATE_S: Final = 60.0
START_RATE, MIN_RATE = 20, 5
"""Completions in RATE_S seconds at which `is_measuring` becomes true, and below which it becomes false."""

SETTLES_AFTER: Final = 2
"""Number of trials in a row (up and down) that did not move the limit, after which there is a pause between trials."""


class LimitBounds(msgspec.Struct, frozen=True):
    """Bounds of a learned limit, in requests."""

    min_slots: int = 1
    max_slots: int = DEFAULT_MAX_SLOTS

    def within(self, limit: int) -> int:
        """The nearest limit within the bounds."""
        return max(self.min_slots, min(limit, self.max_slots))


class LimitState(StrEnum):
    """The reason for the value of a learned limit."""

    NEW = "new"
    """Too few requests have been completed at this limit."""
    DEMAND = "demand"
    """The concurrency does not reach the limit, so a higher limit cannot be tried."""
    RAISED = "raised"
    """The last trial raised the limit, since throughput still grew."""
    LOWERED = "lowered"
    """The last trial lowered the limit, since the lower limit had the same throughput."""
    SETTLED = "settled"
    """A higher limit does not increase throughput, and a lower limit decreases it."""
    FOLLOWS = "follows"
    """The limit is copied from another agent of the region, which learns it."""


class ConcurrencyLimit:
    """The concurrency limit of one endpoint. Its owner reports requests and load, and applies the result of `tick`."""

    __slots__ = (
        "_area",
        "_at",
        "_failed",
        "_fit",
        "_followed",
        "_in_flight",
        "_kept_moving",
        "_pause_s",
        "_peak",
        "_peak_at",
        "_queued",
        "_rate_at",
        "_rate_samples",
        "_reached",
        "_reached_at",
        "_running",
        "_service_s",
        "_side_area",
        "_side_at",
        "_side_samples",
        "_signals_at",
        "_trial",
        "_trial_at",
        "_up",
        "_wide",
        "bounds",
        "is_measuring",
        "limit",
        "samples",
        "settled",
        "state",
    )

    def __init__(self, bounds: LimitBounds, now: float) -> None:
        """Create a limit without completions; `now` is monotonic, in seconds."""
        self.bounds = bounds
        self.settled = bounds.within(START_SLOTS)
        """The limit that has been learned, in requests."""
        self.limit = self.settled
        """The limit in force: `settled`, or the other side of a trial."""
        self.state = LimitState.NEW
        self.samples = 0
        """Completions that the limit has been learned from."""
        self.is_measuring = False
        """Whether enough requests end at this agent to learn from."""
        self._followed = False
        self._rate_at, self._rate_samples = now, 0
        self._area = 0.0
        self._at = now
        self._in_flight = 0
        self._reached = 0.0
        self._reached_at = now
        self._service_s = 0.0
        self._peak, self._peak_at = self.settled, now
        self._kept_moving = LARGE_AFTER
        self._wide = False
        self._up = True
        self._failed = 0
        self._pause_s = MIN_PAUSE_S
        self._trial: LimitTrial | None = None
        self._trial_at = now
        self._fit = ThroughputFit()
        self._side_at, self._side_area, self._side_samples = now, 0.0, 0
        self._signals_at = -inf
        self._queued = self._running = 0.0

    def set_bounds(self, bounds: LimitBounds, now: float) -> None:
        """Apply other bounds."""
        if bounds != self.bounds:
            self.bounds = bounds
            self._peak = bounds.within(self._peak)
            self._end_trial(self.settled, now)

    def advance(self, in_flight: int, now: float) -> float:
        """Set the concurrency from `now` (s) on. Returns its integral over time, in request-seconds."""
        passed_s = now - self._at
        if passed_s > 0.0:
            self._area += self._in_flight * passed_s
            self._reached += (self._in_flight - self._reached) * (1.0 - exp(-passed_s / REACHED_MEMORY_S))
            self._at = now
        self._in_flight = in_flight
        return self._area

    def completed(self, area: float, at_start: int, work_s: float, service_s: float) -> None:
        """Learn from a request that ends at the time of the last `advance`.

        Args:
            area: the result of `advance` when the request began.
            at_start: requests on the endpoint at that time, including this request.
            work_s: work of the request (s on the reference accelerator).
            service_s: time (s) for which the request held its slot.
        """
        if not (0.0 < work_s < inf and 0.0 < service_s < inf):
            return
        self._fit.add(float(at_start), max(1.0, (self._area - area) / service_s), work_s, service_s)
        self.samples += 1
        self._service_s += (service_s - self._service_s) / min(self.samples, MEMORY_COMPLETIONS)
        if area >= self._side_area:
            self._side_samples += 1

    def reported(self, queued: float, running: float, now: float) -> None:
        """Apply the numbers of queued and running requests that the engine reported at `now` (s)."""
        weight = 1.0 if now - self._signals_at > SIGNAL_S else SIGNAL_WEIGHT
        self._queued += (queued - self._queued) * weight
        self._running += (running - self._running) * weight
        self._signals_at = now

    def tick(self, in_flight: int, now: float) -> int:
        """Begin, continue or end a trial. Returns the limit to apply. Called a few times a second.

        Args:
            in_flight: requests on the endpoint now, of all agents of the region.
            now: monotonic, in seconds.
        """
        self.advance(in_flight, now)
        self._measure_rate(now)
        if self._followed:
            return self.limit
        if self.settled >= self._peak or now - self._peak_at > PEAK_S:
            self._peak, self._peak_at = self.settled, now
        if self._trial is not None:
            self._continue_trial(self._trial, now)
        elif now >= self._trial_at:
            self._begin_trial(now)
        return self.limit

    def follow(self, limit: int | None, now: float) -> int:
        """Use the limit of another agent; with None, this agent learns the limit again. Returns the limit to apply."""
        if limit is not None:
            self._followed = True
            self.state = LimitState.FOLLOWS
            self._end_trial(limit, now)
        elif self._followed:
            self._followed = False
            self.state = LimitState.NEW
            self._rest(now)
        return self.limit

    def status(self) -> dict[str, object]:
        """Return the limit and its state for the status page."""
        return {
            "limit": self.limit,
            "learned": self.settled,
            "state": self.state.value,
            "min_slots": self.bounds.min_slots,
            "max_slots": self.bounds.max_slots,
            "completions": self.samples,
        }

    def _begin_trial(self, now: float) -> None:
        if self._reached < REACHED * self.settled:
            if now - self._reached_at > self._side_s() and self.state is not LimitState.NEW:
                self.state = LimitState.DEMAND
            self._begin_side(now)
            return
        self._reached_at = now
        if now - self._side_at < self._side_s() or self._side_samples < MIN_SAMPLES:
            return
        queues = self._engine_queues(now)
        if queues and not self._failed:
            self._up = False
        trial = self._higher() if self._up else self._lower(queues)
        if log(trial.high / trial.low) < 2 * MIN_CONTRAST:
            self._not_moved(now)
            return
        self._trial = trial
        self._end_side(trial, now)
        self.limit = trial.high if trial.up else trial.low

    def _higher(self) -> LimitTrial:
        step = LARGE_STEP if self._kept_moving >= LARGE_AFTER else STEP
        high = min(self.bounds.max_slots, max(self.settled + 1, round(self.settled * step)))
        return LimitTrial(self.settled, high, up=True, by_queue=False)

    def _lower(self, queues: bool) -> LimitTrial:
        low = min(self.settled - 1, round(self.settled / (LARGE_STEP if self._wide else STEP)))
        if queues:
            low = min(low, round(self._running))
        least = max(self.bounds.min_slots, ceil(self._peak * MIN_OF_PEAK))
        return LimitTrial(min(self.settled, max(least, low)), self.settled, up=False, by_queue=queues)

    def _engine_queues(self, now: float) -> bool:
        queued, running = self._queued, self._running
        return now - self._signals_at <= SIGNAL_S and queued >= 1.0 and queued > QUEUED_SHARE * (queued + running)

    def _continue_trial(self, trial: LimitTrial, now: float) -> None:
        passed_s = now - self._side_at
        if passed_s > MAX_SIDE_S:
            self._no_result(now)
            return
        if passed_s < self._side_s() or self._side_samples < MIN_SAMPLES:
            return
        self._end_side(trial, now)
        if self._reached < REACHED * trial.low:
            self._no_result(now)
        elif trial.contrast() < MIN_CONTRAST:
            # The concurrency did not follow the limit.
            self._demand_limits(trial, now)
        else:
            growth = self._fit.growth(trial.concurrency(high=False), trial.concurrency(high=True))
            if growth is not None and trial.is_clear(growth):
                self._decide(trial, growth, now)
            elif trial.sides >= MAX_SIDES:
                self._no_result(now)
            else:
                self.limit = trial.low if self.limit == trial.high else trial.high

    def _decide(self, trial: LimitTrial, growth: Growth, now: float) -> None:
        elasticity, error = growth.elasticity, DEPENDENCE * growth.error
        if abs(elasticity) > MAX_ELASTICITY:
            self._no_result(now)
            return
        if not trial.up:
            was_wide, self._wide = self._wide, not self._wide and abs(elasticity - trial.deciding) < error
            if not (trial.by_queue and self._queued > self._running):
                elasticity += growth.error if was_wide or trial.by_queue else error
        better = trial.high if elasticity > trial.deciding else trial.low
        if better == self.settled:
            self._end_trial(better, now)
            self._not_moved(now)
            return
        self.state = LimitState.RAISED if trial.up else LimitState.LOWERED
        self._kept_moving += 1
        self._failed = 0
        self._pause_s = MIN_PAUSE_S
        self._end_trial(better, now)

    def _demand_limits(self, trial: LimitTrial, now: float) -> None:
        """End a trial that demand did not fill. A trial of a higher limit allows the present demand plus a margin."""
        self.state = LimitState.DEMAND
        limit = self.settled
        if trial.up:
            limit = min(trial.high, max(limit, ceil(self._reached / REACHED)))
        self._end_trial(limit, now)
        self._rest(now)

    def _not_moved(self, now: float) -> None:
        """Keep the present limit after a trial; the next trial has the other direction."""
        self._up = not self._up
        self._kept_moving = 0
        self._failed += 1
        if self._failed >= SETTLES_AFTER:
            self.state = LimitState.SETTLED
            self._rest(now)
            if self._failed % SETTLES_AFTER == 0:
                self._pause_s = min(MAX_PAUSE_S, 2.0 * self._pause_s)
        else:
            self._begin_side(now)

    def _no_result(self, now: float) -> None:
        self._kept_moving = 0
        self._end_trial(self.settled, now)
        self._rest(now)

    def _end_trial(self, limit: int, now: float) -> None:
        self.settled = self.limit = self.bounds.within(limit)
        self._trial = None
        self._trial_at = now
        self._begin_side(now)

    def _rest(self, now: float) -> None:
        self._trial_at = now + self._pause_s
        self._begin_side(now)

    def _measure_rate(self, now: float) -> None:
        if now - self._rate_at >= RATE_S:
            completions = self.samples - self._rate_samples
            self.is_measuring = completions >= (MIN_RATE if self.is_measuring else START_RATE)
            self._rate_at, self._rate_samples = now, self.samples

    def _side_s(self) -> float:
        """Minimum duration (s) of one side of a trial."""
        return min(MAX_SIDE_S / 2, max(MIN_SIDE_S, SIDE_SERVICE_TIMES * self._service_s))

    def _end_side(self, trial: LimitTrial, now: float) -> None:
        trial.add_side(self.limit, self._area - self._side_area, now - self._side_at)
        self._side_at, self._side_area, self._side_samples = now, self._area, 0

    def _begin_side(self, now: float) -> None:
        """Discard earlier measurements and begin to measure at the present limit."""
        self._fit = ThroughputFit()
        self._side_at, self._side_area, self._side_samples = now, self._area, 0

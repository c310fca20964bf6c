"""Learns how fast each endpoint works from its completions, and converts work to reserved time.

Two relations are learned for each endpoint, each a straight line that starts as its accelerator's prior and forgets
slowly: time to the first byte against the prefill ahead of it, and time per unit of decode against the concurrent
streams. Policy's costs may be far off, so an endpoint's first responses calibrate the decode line. All values are
relative to the reference accelerator, so endpoints of different hardware, and requests for different models, are
comparable (see `penstock.routing.cost_estimate`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from statistics import median
from typing import Final, NamedTuple

from penstock.policy.accelerators import RELATIVE_SPEEDS, RelativeSpeed
from penstock.routing.work import Speed, Work

MEMORY: Final = 50.0
"""Observations that a line remembers, about."""

PRIOR_WEIGHT: Final = 2.0
"""Observations that the prior counts as."""

CROWDING: Final = 0.02
"""How much (as a share of a lone stream's time) each further stream slows a decode, until that is learned: a batch is
read once for all its streams, so it is little (Yu et al., "Orca", OSDI 2022)."""

CALIBRATED_AFTER: Final = 4
"""Observations after which an endpoint's own speed replaces its prior."""

MIN_RATIO: Final = 1e-6
"""Lower bound of an endpoint's time relative to its prior: nothing takes no time."""

LEARN_EVERY_S: Final = 0.02
"""Minimum time (s) between two responses that a learner takes in, so that it remembers seconds at any rate."""

MAX_SURPRISE: Final = 4.0
"""An observation counts as at most this many times, and at least this part, of the expectation: one hang or one lucky
hit must not overturn a line."""

MIN_OF_PRIOR: Final = 0.05
"""Lower bound of a slope as a share of its prior: more work is never free."""

FRESH_S, FADED_S = 30.0, 180.0
"""Observations of an endpoint count in full until those of its siblings are newer by the first (s), then fade, and
count for nothing from the second on: an endpoint that was slow for a while is tried again. Where all endpoints are
silent nothing fades. Within a line, observations fade likewise by how much older they are than its newest."""

LEFT_WEIGHT: Final = 1.0
"""Observations that the faded part of a line counts as."""

MICROSECONDS: Final = 1_000_000


def left_of(age_s: float) -> float:
    """The part (0-1) of an observation of this age (s) that counts."""
    return max(0.0, min(1.0, (FADED_S - age_s) / (FADED_S - FRESH_S)))


class OnlineRegression:
    """y against x as a straight line: least squares over exponentially forgotten observations, with a slope above
    zero.
    """

    __slots__ = ("_cross", "_mean_x", "_mean_y", "_min_slope", "_square", "_weight", "at_zero", "mean_at", "slope")

    def __init__(self, at_zero: float, slope: float) -> None:
        """Create the line of the prior."""
        self.at_zero = at_zero
        self.slope = slope
        self._min_slope = slope * MIN_OF_PRIOR
        self._weight = 0.0
        self._mean_x = self._mean_y = self._square = self._cross = 0.0
        self.mean_at = -inf
        """Mean time (s) of the observations that it remembers."""

    def at(self, x: float) -> float:
        """The expected y."""
        return self.at_zero + self.slope * x

    def see(self, x: float, y: float, now: float) -> None:
        """Add one observation; `now` is monotonic, in seconds."""
        expected = self.at(x)
        y = max(expected / MAX_SURPRISE, min(expected * MAX_SURPRISE, y))
        if self._weight == 0.0:
            self._weight, self._mean_x, self._mean_y, self.mean_at = PRIOR_WEIGHT, x, expected, now
        keep = (1.0 - 1.0 / MEMORY) * left_of(now - self.mean_at)
        self._weight = max(LEFT_WEIGHT, self._weight * keep) + 1.0
        self.mean_at += (now - self.mean_at) / self._weight
        from_mean = x - self._mean_x
        self._mean_x += from_mean / self._weight
        self._mean_y += (y - self._mean_y) / self._weight
        self._square = self._square * keep + from_mean * (x - self._mean_x)
        self._cross = self._cross * keep + from_mean * (y - self._mean_y)
        self._fit()

    def _fit(self) -> None:
        # Where x hardly varies, the data do not determine the slope, and the previous slope is kept.
        ridge = PRIOR_WEIGHT * self._mean_x * self._mean_x + 1e-12
        self.slope = max(self._min_slope, (self._cross + self.slope * ridge) / (self._square + ridge))
        self.at_zero = self._mean_y - self.slope * self._mean_x
        if self.at_zero < 0.0:
            self.at_zero, self.slope = 0.0, self._mean_y / self._mean_x


def prior(accelerator: str) -> Speed | None:
    """The speed assumed for an accelerator before completions; None for one that is not in the table."""
    pace = RELATIVE_SPEEDS.get(accelerator.lower())
    return None if pace is None else _speed_of(pace)


class SpeedLearner:
    """One endpoint's speed, learned from its completions."""

    __slots__ = (
        "_decode",
        "_early",
        "_first_byte",
        "_prior",
        "_wants_at",
        "_wants_first_at",
        "observations",
    )

    def __init__(self, accelerator: str) -> None:
        """Create a learner; an `accelerator` (as in the endpoints file) that is not known starts as the reference."""
        self._prior = prior(accelerator)
        start = self._prior or _speed_of(RelativeSpeed(1.0, 1.0))
        self._first_byte = OnlineRegression(start.start_s, start.prefill)
        self._decode = OnlineRegression(start.decode, start.crowding)
        self._early: list[float] = []
        """The first decodes, relative to the prior."""
        self._wants_at = self._wants_first_at = 0.0
        self.observations = 0
        """Requests that it has learned from."""

    @property
    def prior(self) -> Speed | None:
        """The speed assumed at first; None where the accelerator is not known."""
        return self._prior

    @property
    def learned(self) -> Speed | None:
        """The learned speed; None before there are enough completions."""
        return self.now if self.observations >= CALIBRATED_AFTER else None

    @property
    def seen_at(self) -> float:
        """Mean time (s) of the completions that it remembers."""
        return self._decode.mean_at

    @property
    def now(self) -> Speed:
        """The prior as corrected by completions."""
        return Speed(self._first_byte.at_zero, self._first_byte.slope, self._decode.at_zero, self._decode.slope)

    def is_due(self, now: float) -> bool:
        """Whether to learn from a response that ends now (s, monotonic); once true, false for LEARN_EVERY_S."""
        if now < self._wants_at:
            return False
        self._wants_at = now + LEARN_EVERY_S
        return True

    def is_first_byte_due(self, now: float) -> bool:
        """The same for a response that begins now."""
        if now < self._wants_first_at:
            return False
        self._wants_first_at = now + LEARN_EVERY_S
        return True

    def saw_first_byte(self, prefill_s: float, took_s: float, now: float) -> None:
        """Learn from the first byte of a response.

        Args:
            prefill_s: prefill (s, reference) that preceded it when the request was sent, its own included.
            took_s: time (s) since the request was sent.
            now: seconds, monotonic.
        """
        self._first_byte.see(prefill_s, max(0.0, took_s), now)

    def saw_end(self, decode_s: float, took_s: float, streams: float, now: float) -> None:
        """Learn from a whole response.

        Args:
            decode_s: its decode (s, reference).
            took_s: time (s) since its first byte.
            streams: requests on the endpoint meanwhile, itself included.
            now: seconds, monotonic.
        """
        if decode_s <= 0.0:
            return
        pace = max(0.0, took_s) / decode_s
        self.observations += 1
        if self.observations <= CALIBRATED_AFTER:
            # Policy's costs may be wrong by a large factor: endpoints with more completions would then look faster
            # than their siblings, get more requests, and have more completions yet.
            self._early.append(pace / self._decode.at(streams))
            if self.observations == CALIBRATED_AFTER:
                ratio = max(MIN_RATIO, median(self._early))
                self._decode = OnlineRegression(self._decode.at_zero * ratio, self._decode.slope * ratio)
        if self.observations >= CALIBRATED_AFTER:
            self._decode.see(streams, pace, now)


def speeds(learners: Iterable[SpeedLearner]) -> list[Speed | None]:
    """The speed to use for each endpoint of a pool: its own, else its prior as its siblings correct it.

    An endpoint's own speed fades as its siblings' become newer. Endpoints with neither use the mean of those that have
    one. Where no endpoint has one, all are None, and least request applies.
    """
    learners = list(learners)
    newest = max((learner.seen_at for learner in learners), default=-inf)
    known = [_Known(learner.learned, learner.prior, left_of(newest - learner.seen_at)) for learner in learners]
    if all(endpoint.learned is not None and endpoint.left >= 1.0 for endpoint in known):
        return [endpoint.learned for endpoint in known]
    likely = _likely(known)
    if None in likely:
        middle = _middle(known, likely)
        likely = [endpoint or middle for endpoint in likely]
    return [_mixed(before, endpoint.learned, endpoint.left) for before, endpoint in zip(likely, known, strict=True)]


class _Known(NamedTuple):
    """What is known of one endpoint."""

    learned: Speed | None
    prior: Speed | None
    left: float
    """The part (0-1) of the learned speed that still counts."""


def _likely(known: list[_Known]) -> list[Speed | None]:
    """The prior of each endpoint as its siblings correct it; None where there is none."""
    ratios = [
        (endpoint.learned, endpoint.prior, endpoint.left)
        for endpoint in known
        if endpoint.learned is not None and endpoint.prior is not None
    ]
    prefill = _mean([(learned.prefill / before.prefill, left) for learned, before, left in ratios])
    decode = _mean([(learned.decode / before.decode, left) for learned, before, left in ratios])
    start_s = _mean([(learned.start_s, left) for learned, _, left in ratios], otherwise=0.0)
    return [endpoint.prior and _scaled(endpoint.prior, start_s, prefill, decode) for endpoint in known]


def _middle(known: list[_Known], likely: list[Speed | None]) -> Speed | None:
    """The mean of the speeds that are known or likely; None where there are none."""
    candidates = [
        (endpoint.learned, endpoint.left) if endpoint.learned is not None else (before, 1.0)
        for before, endpoint in zip(likely, known, strict=True)
    ]
    found = [(speed, left) for speed, left in candidates if speed is not None and left > 0.0]
    if not found:
        return None
    return Speed(
        _mean([(speed.start_s, left) for speed, left in found]),
        _mean([(speed.prefill, left) for speed, left in found]),
        _mean([(speed.decode, left) for speed, left in found]),
        _mean([(speed.crowding, left) for speed, left in found]),
    )


def _mixed(likely: Speed | None, learned: Speed | None, left: float) -> Speed | None:
    """The learned speed as far as it counts, and the likely one for the rest."""
    if learned is None or left >= 1.0 or likely is None:
        return learned or likely
    return Speed(
        likely.start_s + (learned.start_s - likely.start_s) * left,
        likely.prefill + (learned.prefill - likely.prefill) * left,
        likely.decode + (learned.decode - likely.decode) * left,
        likely.crowding + (learned.crowding - likely.crowding) * left,
    )


def microseconds(work: Work, speed: Speed | None, streams: int, spared_s: float = 0.0) -> tuple[int, int]:
    """What a request reserves on an endpoint: its prefill and its decode there, in whole microseconds.

    Whole numbers, so that sums over requests return to exactly zero when the requests have ended.

    Args:
        speed: of the endpoint; None uses the reference.
        streams: requests on it, this one included.
        spared_s: prefill (s, reference) that its cache spares.
    """
    prefill_s = work.prefill_s - spared_s if spared_s < work.prefill_s else 0.0
    if speed is None:
        return int(prefill_s * MICROSECONDS), int(work.decode_s * MICROSECONDS)
    decode = speed.decode + speed.crowding * streams
    return int(prefill_s * speed.prefill * MICROSECONDS), int(work.decode_s * decode * MICROSECONDS)


def _speed_of(pace: RelativeSpeed) -> Speed:
    return Speed(0.0, pace.prefill, pace.decode, pace.decode * CROWDING)


def _scaled(speed: Speed, start_s: float, prefill: float, decode: float) -> Speed:
    return Speed(start_s, speed.prefill * prefill, speed.decode * decode, speed.crowding * decode)


def _mean(values: list[tuple[float, float]], otherwise: float = 1.0) -> float:
    """The weighted mean of (value, weight) pairs."""
    weight = sum(weight for _, weight in values)
    return sum(value * weight for value, weight in values) / weight if weight > 0.0 else otherwise

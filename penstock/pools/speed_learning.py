"""Learns the speed of each endpoint from its completions, and converts work to reserved time.

Two relations are learned for each endpoint: time to the first byte against the prefill ahead of it, and time per unit
of decode against the concurrent streams. Each is a straight line that starts as the prior of the accelerator and
discounts old observations. The costs in the policy may be wrong by a large factor, so an endpoint's first responses
calibrate the decode line. All values are relative to the reference accelerator, so endpoints of different hardware, and
requests for different models, are comparable (see `penstock.cost.cost_estimate`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from statistics import median
from typing import Final, NamedTuple

from penstock.cost.work import Speed, Work
from penstock.policy.accelerators import RelativeSpeed, relative_speed_of

MEMORY: Final = 50.0
"""Approximate number of observations that determine a line."""

PRIOR_WEIGHT: Final = 2.0
"""Weight of the prior, in observations."""

CROWDING: Final = 0.02
"""Slowdown of a decode by each further stream, as a share of a lone stream's time, until the slowdown is learned. A
batch is read once for all its streams, so the slowdown is small (Yu et al., "Orca", OSDI 2022)."""

CALIBRATED_AFTER: Final = 4
"""Observations after which an endpoint's own speed replaces its prior."""

MIN_RATIO: Final = 1e-6
"""Lower bound of an endpoint's calibrated time relative to its prior, so that the time is above zero."""

LEARN_EVERY_S: Final = 0.02
"""Minimum time (s) between two responses that a learner uses, so that a line covers seconds at any request rate."""

MAX_SURPRISE: Final = 4.0
"""Maximum ratio of an observation to the expectation, and of the expectation to an observation; values beyond are
clipped, so that a single outlier does not dominate a line."""

MIN_OF_PRIOR: Final = 0.05
"""Lower bound of a fitted slope as a share of its prior, since more work takes more time. The slope of a line through
the origin may be lower."""

FRESH_S: Final = 30.0
FADED_S: Final = 180.0
"""Observations of an endpoint have full weight while the observations of its siblings are newer by at most the first
time (s), and no weight from the second time (s) on, so that an endpoint that was slow for a while is tried again. While
no endpoint has new observations, weights do not change. Within a line, observations lose weight in the same way, by
their age relative to the newest observation."""

LEFT_WEIGHT: Final = 1.0
"""Minimum weight of the earlier observations of a line, in observations."""

MICROSECONDS: Final = 1_000_000


def left_of(age_s: float) -> float:
    """The weight (0-1) of an observation of this age (s)."""
    return max(0.0, min(1.0, (FADED_S - age_s) / (FADED_S - FRESH_S)))


class OnlineRegression:
    """A straight line of y against x with a slope above zero: exponentially weighted least squares."""

    def __init__(self, at_zero: float, slope: float) -> None:
        """Create the line of the prior."""
        self.at_zero = at_zero
        self.slope = slope
        self._min_slope = slope * MIN_OF_PRIOR
        self._weight = 0.0
        self._mean_x = self._mean_y = self._square = self._cross = 0.0
        self.mean_at = -inf
        """Weighted mean time (s) of the observations; -inf before the first observation."""

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
    """The speed assumed for an accelerator before completions; None if the accelerator is not in the table."""
    pace = relative_speed_of(accelerator)
    return None if pace is None else _speed_of(pace)


class SpeedLearner:
    """One endpoint's speed, learned from its completions."""

    def __init__(self, accelerator: str) -> None:
        """Create a learner; an unknown `accelerator` (as in the endpoints file) starts as the reference accelerator."""
        self._prior = prior(accelerator)
        start = self._prior or _speed_of(RelativeSpeed(1.0, 1.0))
        self._first_byte = OnlineRegression(start.start_s, start.prefill)
        self._decode = OnlineRegression(start.decode, start.crowding)
        self._early: list[float] = []
        """The first decodes, relative to the prior."""
        self._wants_at = self._wants_first_at = 0.0
        self.observations = 0
        """Number of requests from which decode speed was learned."""

    @property
    def prior(self) -> Speed | None:
        """The speed assumed before completions; None if the accelerator is unknown."""
        return self._prior

    @property
    def learned(self) -> Speed | None:
        """The learned speed; None before there are enough completions."""
        return self.now if self.observations >= CALIBRATED_AFTER else None

    @property
    def seen_at(self) -> float:
        """Weighted mean time (s) of the completions that determine the decode speed."""
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
        """Whether to learn from a response that begins now (s, monotonic); once true, false for LEARN_EVERY_S."""
        if now < self._wants_first_at:
            return False
        self._wants_first_at = now + LEARN_EVERY_S
        return True

    def saw_first_byte(self, prefill_s: float, took_s: float, now: float) -> None:
        """Learn from the first byte of a response.

        Args:
            prefill_s: prefill (s, reference) ahead of the first byte when the request was sent, the request's own
                included.
            took_s: time (s) since the request was sent.
            now: seconds, monotonic.
        """
        self._first_byte.see(prefill_s, max(0.0, took_s), now)

    def saw_end(self, decode_s: float, took_s: float, streams: float, now: float) -> None:
        """Learn from a whole response.

        Args:
            decode_s: decode (s, reference) of the request.
            took_s: time (s) since the first byte.
            streams: mean number of requests on the endpoint since the first byte, this request included.
            now: seconds, monotonic.
        """
        if decode_s <= 0.0:
            return
        pace = max(0.0, took_s) / decode_s
        self.observations += 1
        if self.observations <= CALIBRATED_AFTER:
            # The costs in the policy may be wrong by a large factor. Without calibration, endpoints with more
            # completions would then seem faster than their siblings, and would receive even more requests.
            self._early.append(pace / self._decode.at(streams))
            if self.observations == CALIBRATED_AFTER:
                ratio = max(MIN_RATIO, median(self._early))
                self._decode = OnlineRegression(self._decode.at_zero * ratio, self._decode.slope * ratio)
        if self.observations >= CALIBRATED_AFTER:
            self._decode.see(streams, pace, now)


def speeds(learners: Iterable[SpeedLearner]) -> list[Speed | None]:
    """The speed to use for each endpoint of a pool: the learned speed, else the prior as corrected by siblings.

    The learned speed of an endpoint loses weight as the speeds of its siblings become newer. Endpoints with neither
    speed use the mean of the endpoints with a speed. If no endpoint has a speed, all are None, and least request
    applies.
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
    """The learned and the assumed speed of one endpoint."""

    learned: Speed | None
    prior: Speed | None
    left: float
    """Weight (0-1) of the learned speed."""


def _likely(known: list[_Known]) -> list[Speed | None]:
    """The prior of each endpoint, corrected by the learned speeds of its siblings; None without a prior."""
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
    """The mean of the learned and likely speeds; None if no endpoint has a speed."""
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
    """The mean of the learned speed, with the weight `left`, and the likely speed."""
    if learned is None or left >= 1.0 or likely is None:
        return learned or likely
    return Speed(
        likely.start_s + (learned.start_s - likely.start_s) * left,
        likely.prefill + (learned.prefill - likely.prefill) * left,
        likely.decode + (learned.decode - likely.decode) * left,
        likely.crowding + (learned.crowding - likely.crowding) * left,
    )


def microseconds(work: Work, speed: Speed | None, streams: int, spared_s: float = 0.0) -> tuple[int, int]:
    """The reservation of a request on an endpoint: prefill and decode at the endpoint's speed, in microseconds.

    Both are whole numbers, so that sums over requests return to exactly zero when the requests have ended.

    Args:
        speed: speed of the endpoint; None for the reference accelerator.
        streams: requests on the endpoint, this request included.
        spared_s: prefill (s, reference) that the endpoint's cache spares.
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

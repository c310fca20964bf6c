"""Selects the endpoint that would complete a request soonest; near ties are broken at random.

A request completes after the prefill that is reserved ahead of it and its own work at the endpoint's speed. The score
adds the delay that the request causes to the other requests on the endpoint, and their decodes, weighted by the
occupancy of the endpoint. Until speeds are known, the same rule applies to request counts: least request. Both rules
are better than round-robin and than local views. With a view older than about a tenth of a mean service time, two
random choices are better than a scan (Mitzenmacher, "How useful is old information?", IEEE TPDS 2000).

The coefficients of an endpoint's score are computed when the endpoint changes and not when endpoints are compared, so a
choice costs two multiplications and two additions for each endpoint.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from sys import float_info
from typing import Final, NamedTuple

from penstock.cost.work import NO_WORK, Speed, Work
from penstock.pools.speed_learning import MICROSECONDS
from penstock.routing.reasons import ConsideredEndpoint, EndpointChoice, Reason, Rejection

STALE_SHARE_OF_SERVICE: Final = 0.1
"""Share of the mean service time; a view older than this is too old to rank a whole pool."""

NEAR_TIE: Final = 0.02
NEAR_TIE_S: Final = 0.05
"""Scores that exceed the best score by at most NEAR_TIE of it, and by at most NEAR_TIE_S (s), count as equal: estimates
are not more exact, and agents with the same view must not all choose the same endpoint."""

NEWCOMER_S: Final = 1e6
"""Penalty (s) of a new endpoint that has more requests than its completions justify; other endpoints are preferred."""

NEWCOMER_UNTIL: Final = 8
"""Number of completions after which an endpoint is no longer new."""

ZONE_GAP_S: Final = 0.05
"""Maximum additional time (s), compared with the best endpoint, for a request at an endpoint in the agent's zone."""

REUSE: Final = 1.0
"""Additional value of a held prefix, as a share of the prefill that it spares this request: the next turn of the
conversation finds the whole prefix at the endpoint, and no second endpoint evicts other prefixes for it. In simulations
of chats with shared prefixes, 1 is best in time to first token and in GPU time, compared with 0, 0.5, 2 and any fixed
time."""


class HeldParts(NamedTuple):
    """What endpoints hold of one request in their caches."""

    spared_s: Mapping[int, float]
    """Prefill (s, reference) spared on each endpoint that holds the request's prefix or session, by index."""
    gap_s: float = 0.0
    """Maximum additional time (s), compared with the best endpoint and beyond the value of the held prefill, at which
    an endpoint that holds a part is still chosen."""


NOTHING_HELD: Final = HeldParts({})

LONG_PREFILL_S: Final = 1.0
"""Prefill (s) from which on a prompt is long. Engines process prompts in order, in time that grows faster than their
length, and meanwhile all their streams are slow; the prefill of long prompts therefore counts twice in an endpoint's
score. An endpoint does not receive two long prompts at once either (`EndpointChooser`)."""

LONG_PREFILL_US: Final = int(LONG_PREFILL_S * MICROSECONDS)

NO_SCORE: Final = float("inf")
"""The score of an endpoint that does not accept the request."""

MAX_S: Final = float_info.max
"""Upper bound of every score other than NO_SCORE."""

MAX_DRAWS: Final = 8
"""Maximum number of random draws for two open endpoints; after these, all endpoints are scanned."""

CLOSED = (NO_SCORE, 0.0, 0.0)
"""The coefficients of an endpoint that accepts no request."""

AT_ONCE = (0.0, 0.0, 0.0)
"""The coefficients of an endpoint on trial, which receives the next request."""


@dataclass(slots=True, eq=False)
class EndpointView:
    """The state of one endpoint for endpoint selection. Its owner updates it in place and then calls `update_score`."""

    name: str
    slots: int
    """Number of requests that the endpoint runs concurrently without queueing."""
    limit: int
    """Maximum number of requests, running or queued, on the endpoint; at least `slots`."""
    ready: bool = False
    draining: bool = False
    in_flight: int = 0
    """Number of requests on the endpoint now, from every agent that reports."""
    trial: bool = False
    """Whether the endpoint was ejected and its next request decides whether it stays ejected; it is preferred, so that
    the decision is made soon."""
    weight: float = 1.0
    """Warm-up weight: 1 for a warm endpoint, less while the endpoint should receive fewer requests."""
    pressure: float = 0.0
    """Load (0-1) that the engine reports beyond the counted requests, discounted by its age. A hint, which never closes
    the endpoint."""
    prefill_us: int = 0
    """Reserved prefill that has not ended, of every agent that reports (microseconds at the endpoint's speed)."""
    decode_us: int = 0
    """Reserved decode of the requests on the endpoint (microseconds at the endpoint's speed)."""
    completions: int = 0
    """Number of requests that the endpoint has completed for this agent."""
    speed: Speed | None = None
    """Speed of the endpoint; None until the speed of any endpoint of the pool is known."""
    service_s: float = 1.0
    """Mean time (s) for which a request holds a slot of the endpoint."""
    unready_reason: Reason = Reason.ENDPOINT_NOT_READY
    """Why the endpoint is not ready; unused while it is ready."""
    detail: str = ""
    """Why the endpoint accepts no new requests, for operators; empty if the reason says all."""
    score_coefficients: tuple[float, float, float] = CLOSED
    """Result of `update_score`: time (s) before a new request begins, and its time per second of reference prefill and
    of reference decode, including the delay of the other requests on the endpoint."""

    def __post_init__(self) -> None:
        self.update_score()

    @property
    def takes_more(self) -> bool:
        """Whether the endpoint accepts one more request."""
        return self.score_coefficients[0] < NO_SCORE

    def update_score(self) -> None:
        """Compute `score_coefficients` again; called after every change of another field."""
        streams = self.in_flight + 1
        if streams > self.limit or not self.ready or self.draining:
            self.score_coefficients = CLOSED
            return
        if self.trial and self.pressure <= 0.0:
            self.score_coefficients = AT_ONCE
            return
        weight, speed = self.weight, self.speed
        if weight < 1e-3:
            weight = 1e-3
        if speed is None:
            busy = streams / self.slots + self.pressure
            self.score_coefficients = (busy * self.service_s / weight, 0.0, 0.0)
            return
        # Decodes run concurrently, so running decodes delay a new request only by occupying slots. Their remaining
        # time, on average half of the reservation, is weighted by the occupancy of the endpoint. In simulation, the
        # median and the mean are better than with the whole remaining time at any occupancy, and tails and evenness are
        # better than without it.
        left_us = self.decode_us * self.in_flight / (2.0 * self.slots * self.slots)
        ahead_s = speed.start_s + (self.prefill_us + left_us) / MICROSECONDS
        if self.prefill_us >= LONG_PREFILL_US:
            ahead_s += self.prefill_us / MICROSECONDS
        if self.pressure > 0.0:
            ahead_s += self.pressure * self.service_s
        if streams > self.slots:
            # The request cannot begin before other requests end, and can no longer be moved. A whole service time is
            # added for each request beyond the slots, and not only the expected wait, which keeps time to first token
            # low. This is the better choice even for a long answer, which takes much longer at a slow endpoint with a
            # free slot.
            ahead_s += (streams - self.slots) * self.service_s
        if self.completions < NEWCOMER_UNTIL and streams > 2 * self.completions + 2:
            ahead_s += NEWCOMER_S
        # The other requests on the endpoint wait for each pass over a prompt too, so prefill delays every stream.
        prefill = speed.prefill * streams
        decode = speed.decode + speed.crowding * streams
        if weight == 1.0:
            self.score_coefficients = (ahead_s, prefill, decode)
        else:
            self.score_coefficients = (ahead_s / weight, prefill / weight, decode / weight)


Candidate = tuple[int, EndpointView]
"""An endpoint and its index in the pool."""


class Candidates:
    """The endpoints of a pool, as an agent sees them."""

    def __init__(self, endpoints: Sequence[EndpointView], same_zone: frozenset[int] = frozenset()) -> None:
        """Create the candidates of a pool, which are kept until its endpoints change."""
        self.endpoints = endpoints
        self.same_zone = same_zone
        """Indexes of the endpoints in the agent's zone, which are preferred if at most ZONE_GAP_S later; empty if all
        or none are."""


def is_stale(view_age_s: float, service_s: float) -> bool:
    """Whether counts are too old to follow for a pool.

    Args:
        view_age_s: age of the oldest number in the view, in seconds.
        service_s: mean time a request holds its slot, in seconds.
    """
    return view_age_s > STALE_SHARE_OF_SERVICE * service_s


def choose_endpoint(
    pool: Candidates,
    rng: Random,
    *,
    work: Work = NO_WORK,
    tried: Container[str] = (),
    held: HeldParts = NOTHING_HELD,
    stale: bool = False,
) -> EndpointChoice:
    """Choose the endpoint that would complete the request soonest, among the endpoints that accept one more request.

    Args:
        rng: breaks ties, so that agents do not all choose the first endpoint.
        work: the estimated work of the request.
        tried: names of endpoints that did not start this request.
        stale: see `is_stale`; the better of two random endpoints is chosen then.
    """
    endpoints, same_zone = pool.endpoints, pool.same_zone
    candidates: Iterable[Candidate] = enumerate(endpoints)
    if stale and len(endpoints) > 2:
        candidates = _two_open(endpoints, tried, rng)
    elif tried or same_zone:
        candidates = [candidate for candidate in candidates if candidate[1].name not in tried]
    best, as_good = _soonest(candidates, work)
    # Only an endpoint on trial has a score of 0; it precedes endpoints that hold a part of the request.
    if held.spared_s and best > 0.0:
        holders = _spared(endpoints, work, held.spared_s, tried)
        index = min(holders, key=holders.__getitem__)
        best = min(best, holders[index])
        if holders[index] <= min(best + held.gap_s, MAX_S):
            return EndpointChoice(index)
    if best == NO_SCORE:
        return EndpointChoice(None, rejections(endpoints, tried))
    if same_zone:
        near, near_good = _soonest([candidate for candidate in candidates if candidate[0] in same_zone], work)
        if near <= best + ZONE_GAP_S:
            as_good = near_good
    # `Random.random` is used because `Random.randrange` takes eight times as long.
    return EndpointChoice(as_good[0] if len(as_good) == 1 else as_good[int(rng.random() * len(as_good))])


def consider(
    pool: Candidates, work: Work = NO_WORK, tried: Container[str] = (), held: HeldParts = NOTHING_HELD
) -> tuple[ConsideredEndpoint, ...]:
    """The endpoints that `choose_endpoint` compares, soonest first; the arguments are those of `choose_endpoint`."""
    endpoints = pool.endpoints
    scores = [_done_s(endpoint, work, tried) for endpoint in endpoints]
    for index, score in _spared(endpoints, work, held.spared_s, tried).items():
        scores[index] = score
    seen = [
        ConsideredEndpoint(
            endpoint.name,
            score if score < NO_SCORE else None,
            endpoint.in_flight,
            _reject(endpoint, tried),
            index in held.spared_s,
            index in pool.same_zone,
            endpoint.detail,
        )
        for index, (endpoint, score) in enumerate(zip(endpoints, scores, strict=True))
    ]
    return tuple(sorted(seen, key=lambda endpoint: (endpoint.done_s is None, endpoint.done_s or 0.0, endpoint.name)))


def rejections(endpoints: Sequence[EndpointView], tried: Container[str] = ()) -> tuple[Rejection, ...]:
    """Every endpoint that does not accept the request, and the reason."""
    reasons = [(endpoint.name, _reject(endpoint, tried)) for endpoint in endpoints]
    return tuple(Rejection(name, reason) for name, reason in reasons if reason is not None)


def _soonest(candidates: Iterable[Candidate], work: Work) -> tuple[float, list[int]]:
    """The lowest score (s from now), and the indexes of all endpoints that tie with it.

    The score is NO_SCORE if no endpoint accepts the request.

    This is the only pass over the whole pool, except for the preference of the agent's zone.
    """
    prefill_s, decode_s = work.prefill_s, work.decode_s
    best, bound = NO_SCORE, MAX_S
    found: list[tuple[float, int]] = []
    for index, endpoint in candidates:
        ahead_s, prefill, decode = endpoint.score_coefficients
        score = ahead_s + prefill_s * prefill + decode_s * decode
        if score <= bound:
            found.append((score, index))
            if score < best:
                near_s = score * NEAR_TIE
                best, bound = score, score + (near_s if near_s < NEAR_TIE_S else NEAR_TIE_S)
    return best, [index for score, index in found if score <= bound]


def _done_s(endpoint: EndpointView, work: Work, tried: Container[str]) -> float:
    """The score of an endpoint (s from now); NO_SCORE if the endpoint does not accept the request."""
    ahead_s, prefill, decode = endpoint.score_coefficients
    return NO_SCORE if endpoint.name in tried else ahead_s + work.prefill_s * prefill + work.decode_s * decode


def _spared(
    endpoints: Sequence[EndpointView], work: Work, held: Mapping[int, float], tried: Container[str]
) -> dict[int, float]:
    """The scores of endpoints that hold a part of the request, less the value of that part, by index."""
    return {
        index: _done_s(endpoints[index], work, tried)
        - (1.0 + REUSE) * min(spared_s, work.prefill_s) * endpoints[index].score_coefficients[1]
        for index, spared_s in held.items()
    }


def _two_open(endpoints: Sequence[EndpointView], tried: Container[str], rng: Random) -> list[Candidate]:
    """Two random open endpoints; fewer if fewer are open. Draws first, because most endpoints are open."""
    found: list[Candidate] = []
    count, draw = len(endpoints), rng.random
    for _ in range(MAX_DRAWS):
        index = int(draw() * count)
        endpoint = endpoints[index]
        if (
            endpoint.score_coefficients[0] < NO_SCORE
            and endpoint.name not in tried
            and (not found or index != found[0][0])
        ):
            found.append((index, endpoint))
            if len(found) == 2:
                return found
    open_ = [
        (index, endpoint)
        for index, endpoint in enumerate(endpoints)
        if endpoint.score_coefficients[0] < NO_SCORE and endpoint.name not in tried
    ]
    return rng.sample(open_, 2) if len(open_) > 2 else open_


def _reject(endpoint: EndpointView, tried: Container[str]) -> Reason | None:
    if endpoint.name in tried:
        return Reason.ALREADY_TRIED
    if endpoint.draining:
        return Reason.ENDPOINT_DRAINING
    if not endpoint.ready:
        return endpoint.unready_reason
    if endpoint.in_flight >= endpoint.limit:
        return Reason.ENDPOINT_FULL
    return None

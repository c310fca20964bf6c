"""Selects the endpoint that would complete a request soonest; near ties are broken at random.

A request completes after the prefill that is reserved ahead of it and its own work at that endpoint's speed. The delay
that it adds to the other requests there counts as well, and so do their decodes, by how full the endpoint is. Until
speeds are known, the same rule applies to request counts: least request. Both beat round-robin and local views. A view
older than about a tenth of a mean service time is too old for a scan, and two random choices on it do better
(Mitzenmacher, "How useful is old information?", IEEE TPDS 2000).

An endpoint's contribution to every score is computed when the endpoint changes and not when it is compared, so a choice
among a hundred endpoints costs three multiplications and additions each.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from sys import float_info
from typing import Final

from penstock.routing.reasons import ConsideredEndpoint, EndpointChoice, Reason, Rejection
from penstock.routing.speed_learning import MICROSECONDS
from penstock.routing.work import NO_WORK, Speed, Work

STALE_SHARE_OF_SERVICE: Final = 0.1
"""A view older than this share of the mean service time is too old to rank a whole pool by."""

NEAR_TIE: Final = 0.02
NEAR_TIE_S: Final = 0.05
"""Scores that are worse than the best by at most this share of it, and at most this time (s), count as equal: estimates
are no more exact, and agents with the same view must not all choose the same endpoint."""

NEWCOMER_S: Final = 1e6
"""Penalty (s) of a new endpoint that has more requests than its completions justify: all others come first."""

NEWCOMER_UNTIL: Final = 8
"""Completions after which an endpoint is no longer new."""

ZONE_GAP_S: Final = 0.05
"""How much later (s) than elsewhere a request may complete in its agent's zone."""

REUSE: Final = 1.0
"""Value of a prefix beyond the prefill that it spares this request, as a share of that: the next turn of the
conversation finds all of it there, and no second endpoint evicts other prefixes for it. In simulation of chats with
shared prefixes 1 does best in time to first token and in GPU time, over 0, 0.5, 2 and any fixed time."""

NOTHING_HELD: Mapping[int, float] = {}

NO_SCORE: Final = float("inf")
"""The score of an endpoint that may not have the request."""

MAX_S: Final = float_info.max
"""Every other score is below this."""

MAX_DRAWS: Final = 8
"""Random draws for two open endpoints, before all endpoints are scanned for them."""

CLOSED = (NO_SCORE, 0.0, 0.0)
"""The coefficients of an endpoint that may take no request."""

AT_ONCE = (0.0, 0.0, 0.0)
"""The coefficients of an endpoint on trial, which gets the next request."""


@dataclass(slots=True, eq=False)
class EndpointView:
    """One endpoint as endpoint selection sees it. Its owner updates it in place and then calls `update_score`."""

    name: str
    slots: int
    """Requests that it runs at once without queueing."""
    limit: int
    """Requests, running or queued on it, from which on it takes no more; at least `slots`."""
    ready: bool = False
    draining: bool = False
    in_flight: int = 0
    """Requests on it now, from every agent that reports."""
    trial: bool = False
    """It was ejected, and its next request decides whether it stays so: other agents should see this soon."""
    weight: float = 1.0
    """Its warm-up: 1 when warm, less while it should get fewer requests."""
    pressure: float = 0.0
    """How close to full its engine reports to be (0-1), beyond what the requests on it show; faded with age. A hint
    that closes no endpoint."""
    prefill_us: int = 0
    """Reserved for prefill that has not ended, by every agent that reports (microseconds at its own speed)."""
    decode_us: int = 0
    """Reserved for the rest of the requests on it (microseconds at its own speed)."""
    completions: int = 0
    """Requests that it has completed for this agent."""
    speed: Speed | None = None
    """Its speed; None until that of some endpoint of its pool is known."""
    service_s: float = 1.0
    """Mean time (s) a request holds one of its slots."""
    unready_reason: Reason = Reason.ENDPOINT_NOT_READY
    """Why it is not ready, if it is not."""
    score_coefficients: tuple[float, float, float] = CLOSED
    """Result of `update_score`: time (s) before a new request begins, and its time per second of reference prefill and
    of reference decode, the delay of requests that are there included."""

    def __post_init__(self) -> None:
        self.update_score()

    @property
    def takes_more(self) -> bool:
        """Whether it may take one more request."""
        return self.score_coefficients[0] < NO_SCORE

    def update_score(self) -> None:
        """Compute `score_coefficients` again; called after every other change."""
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
        # Decodes run side by side, so those there delay requests only through the slots that they leave. What is left
        # of them, on average half of what was reserved, counts by how full the endpoint is. In simulation the median
        # and the mean are better than with all of it at any occupancy, and tails and evenness better than without it.
        left_us = self.decode_us * self.in_flight / (2.0 * self.slots * self.slots)
        ahead_s = speed.start_s + (self.prefill_us + left_us) / MICROSECONDS
        if self.pressure > 0.0:
            ahead_s += self.pressure * self.service_s
        if streams > self.slots:
            # The request cannot begin before others end, and can no longer move: a whole service time of each that is
            # too many, and not the part that it would wait, keeps time to first token low. That is worth it even for
            # a long answer, which would take much longer at a slow endpoint with a free slot.
            ahead_s += (streams - self.slots) * self.service_s
        if self.completions < NEWCOMER_UNTIL and streams > 2 * self.completions + 2:
            ahead_s += NEWCOMER_S
        # The requests there wait for each pass over a prompt as the new one does, for their next token.
        prefill = speed.prefill * streams
        decode = speed.decode + speed.crowding * streams
        if weight == 1.0:
            self.score_coefficients = (ahead_s, prefill, decode)
        else:
            self.score_coefficients = (ahead_s / weight, prefill / weight, decode / weight)


Candidate = tuple[int, EndpointView]
"""An endpoint and its index in the pool."""


def choose_endpoint(
    endpoints: Sequence[EndpointView],
    rng: Random,
    *,
    work: Work = NO_WORK,
    tried: Container[str] = (),
    held: Mapping[int, float] = NOTHING_HELD,
    held_gap_s: float = 0.0,
    same_zone: Sequence[int] = (),
    view_age_s: float = 0.0,
    service_s: float = 1.0,
) -> EndpointChoice:
    """Choose the endpoint that would complete the request soonest, of those that may take one more.

    Args:
        endpoints: the pool.
        rng: breaks ties, so that agents do not herd onto the first.
        work: the estimated work of the request.
        tried: names of endpoints that did not start this request.
        held: prefill (s, reference) spared on each endpoint that holds this request's prefix or session, by index.
        held_gap_s: how much later (s) than the best such an endpoint may complete the request and still be chosen,
            beyond what the held prefill is worth.
        same_zone: indexes of the endpoints in the agent's zone; preferred while at most ZONE_GAP_S later.
        view_age_s: age of the oldest number in the view, in seconds.
        service_s: mean time a request holds its slot, in seconds.
    """
    candidates: Iterable[Candidate] = enumerate(endpoints)
    if view_age_s > STALE_SHARE_OF_SERVICE * service_s and len(endpoints) > 2:
        candidates = _two_open(endpoints, tried, rng)
    elif tried or same_zone:
        candidates = [candidate for candidate in candidates if candidate[1].name not in tried]
    best, as_good = _soonest(candidates, work)
    # Only a trial completes at once: it comes before endpoints that hold something.
    if held and best > 0.0:
        holders = _spared(endpoints, work, held, tried)
        index = min(holders, key=holders.__getitem__)
        best = min(best, holders[index])
        if holders[index] <= min(best + held_gap_s, MAX_S):
            return EndpointChoice(index)
    if best == NO_SCORE:
        return EndpointChoice(None, rejections(endpoints, tried))
    if same_zone:
        near, near_good = _soonest([candidate for candidate in candidates if candidate[0] in same_zone], work)
        if near <= best + ZONE_GAP_S:
            as_good = near_good
    # `Random.randrange` takes eight times as long.
    return EndpointChoice(as_good[0] if len(as_good) == 1 else as_good[int(rng.random() * len(as_good))])


def consider(
    endpoints: Sequence[EndpointView],
    work: Work = NO_WORK,
    tried: Container[str] = (),
    held: Mapping[int, float] = NOTHING_HELD,
    same_zone: Sequence[int] = (),
) -> tuple[ConsideredEndpoint, ...]:
    """What `choose_endpoint` compares, soonest first; the args are those of it."""
    scores = [_done_s(endpoint, work, tried) for endpoint in endpoints]
    for index, score in _spared(endpoints, work, held, tried).items():
        scores[index] = score
    seen = [
        ConsideredEndpoint(
            endpoint.name,
            score if score < NO_SCORE else None,
            endpoint.in_flight,
            _reject(endpoint, tried),
            index in held,
            index in same_zone,
        )
        for index, (endpoint, score) in enumerate(zip(endpoints, scores, strict=True))
    ]
    return tuple(sorted(seen, key=lambda endpoint: (endpoint.done_s is None, endpoint.done_s or 0.0, endpoint.name)))


def rejections(endpoints: Sequence[EndpointView], tried: Container[str] = ()) -> tuple[Rejection, ...]:
    """Every endpoint that may not take the request, and the reason."""
    reasons = [(endpoint.name, _reject(endpoint, tried)) for endpoint in endpoints]
    return tuple(Rejection(name, reason) for name, reason in reasons if reason is not None)


def _soonest(candidates: Iterable[Candidate], work: Work) -> tuple[float, list[int]]:
    """When the soonest would complete the request (s from now), and the indexes of all that tie with it.

    The time is NO_SCORE where none may have the request.

    The one pass over the pool: only this step grows with its size.
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
    """When an endpoint would complete the request (s from now); infinite where it may not have it."""
    ahead_s, prefill, decode = endpoint.score_coefficients
    return NO_SCORE if endpoint.name in tried else ahead_s + work.prefill_s * prefill + work.decode_s * decode


def _spared(
    endpoints: Sequence[EndpointView], work: Work, held: Mapping[int, float], tried: Container[str]
) -> dict[int, float]:
    """The same for the endpoints that hold something of the request, by index: less what that is worth there."""
    return {
        index: _done_s(endpoints[index], work, tried)
        - (1.0 + REUSE) * min(spared_s, work.prefill_s) * endpoints[index].score_coefficients[1]
        for index, spared_s in held.items()
    }


def _two_open(endpoints: Sequence[EndpointView], tried: Container[str], rng: Random) -> list[Candidate]:
    """Two random open endpoints; fewer where there are no more. Drawn until found, for most endpoints are open."""
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

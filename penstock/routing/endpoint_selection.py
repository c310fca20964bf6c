"""Who runs it: the endpoint of a pool where a request would be done soonest, near ties broken at random.

A request is done after what is reserved ahead of it, and its own work at that endpoint's speed; how much later it makes
the others there counts as well. Until speeds are known the same is asked of request counts: least request. Both beat
round-robin and local views; past about a tenth of a mean service time the view is too old to be trusted for a scan, and
two random choices on it do better (Mitzenmacher, "How useful is old information?", IEEE TPDS 2000).

What an endpoint contributes to every score is worked out when the endpoint changes and not when it is compared, so a
choice among a hundred costs three multiplications and additions each.
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
"""Scores that are worse than the best by this share of it, at most by so long (s), are as good as equal: guesses are
not more exact, and agents that see the same view must not all choose the same endpoint."""

NEWCOMER_S: Final = 1e6
"""What counts against an endpoint (s) that has more requests than it has earned: all others come first."""

NEWCOMER_UNTIL: Final = 8
"""Completions after which an endpoint is no newcomer."""

ZONE_GAP_S: Final = 0.05
"""How much later (s) a request may be done in its own zone rather than in another."""

NOTHING_HELD: Mapping[int, float] = {}

NOBODY: Final = float("inf")
"""The score of an endpoint that may not have the request."""

MAX_S: Final = float_info.max
"""What every other score is below."""

MAX_DRAWS: Final = 8
"""Endpoints that are drawn at random to find two open ones, before all are looked at for it."""

CLOSED = (NOBODY, 0.0, 0.0)
"""The terms of an endpoint that may take nothing."""

AT_ONCE = (0.0, 0.0, 0.0)
"""Of one that waits for the request on trial."""


@dataclass(slots=True, eq=False)
class EndpointView:
    """One endpoint as the chooser sees it. Its owner updates it in place and then calls `update_score`."""

    name: str
    slots: int
    """Requests that it runs at once without queueing."""
    limit: int
    """Requests, running or queued on it, past which it takes no more; at least `slots`."""
    ready: bool = False
    draining: bool = False
    in_flight: int = 0
    """Requests on it now from every agent that is known of."""
    trial: bool = False
    """It was ejected, and its next request says whether it stays so: others should soon know."""
    weight: float = 1.0
    """Its warm-up: 1 when warm, less while it should get less."""
    pressure: float = 0.0
    """How close to full its engine says it is, beyond what requests on it say: 0 not at all, 1 wholly; faded with
    age. A hint: it closes nothing."""
    prefill_us: int = 0
    """Reserved for prefill that has not ended, by every agent that is known of (microseconds at its own speed)."""
    decode_us: int = 0
    """Reserved for the rest of the requests on it (microseconds at its own speed)."""
    completions: int = 0
    """Requests that it has finished for this agent."""
    speed: Speed | None = None
    """How fast it works; None until anything is known of any endpoint of its pool."""
    service_s: float = 1.0
    """Mean time (s) a request holds one of its slots."""
    score_coefficients: tuple[float, float, float] = CLOSED
    """Result of `update_score`: time (s) before a new request begins, and its time per second of reference prefill and
    of reference decode, the delay of requests that are there included."""

    def __post_init__(self) -> None:
        self.update_score()

    @property
    def takes_more(self) -> bool:
        """Whether it may have one more request."""
        return self.score_coefficients[0] < NOBODY

    def update_score(self) -> None:
        """Work out `score_coefficients` again; whoever changes anything else does this."""
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
        # Half of what is reserved for decode is done, on average; the other half stands for what one more stream
        # costs those that are there. In simulation a whole share does best, over half, one and a half and more.
        ahead_s = speed.start_s + (self.prefill_us + self.decode_us / self.slots) / MICROSECONDS
        if self.pressure > 0.0:
            ahead_s += self.pressure * self.service_s
        if streams > self.slots:
            # It cannot begin before others end, and nobody can move it any more: a whole service time of each that is
            # too many, and not the part of one that it would wait, keeps time to first token down. It is worth that
            # to a long answer, which would take much longer at a slow endpoint with a free slot.
            ahead_s += (streams - self.slots) * self.service_s
        if self.completions < NEWCOMER_UNTIL and streams > 2 * self.completions + 2:
            ahead_s += NEWCOMER_S
        # Whoever is there waits for each pass over a prompt as the newcomer does, for its next token.
        prefill = speed.prefill * streams
        decode = speed.decode + speed.crowding * streams
        if weight == 1.0:
            self.score_coefficients = (ahead_s, prefill, decode)
        else:
            self.score_coefficients = (ahead_s / weight, prefill / weight, decode / weight)


Candidate = tuple[int, EndpointView]
"""An endpoint and its position in the pool."""


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
    """Pick the endpoint that would be done soonest, of those that can take one more request.

    Args:
        endpoints: the pool.
        rng: breaks ties, so that agents do not herd onto the first.
        work: what the request is guessed to be.
        tried: names that this request has failed on already.
        held: prefill (s, reference) that each endpoint which knows this request's prefix or session would be spared.
        held_gap_s: how much later (s) than at the best such an endpoint may be done and still get it.
        same_zone: the endpoints in the agent's zone; preferred where they are done at most ZONE_GAP_S later.
        view_age_s: age of the oldest number in the view, in seconds.
        service_s: mean time a request holds its slot, in seconds.
    """
    candidates: Iterable[Candidate] = enumerate(endpoints)
    if view_age_s > STALE_SHARE_OF_SERVICE * service_s and len(endpoints) > 2:
        candidates = _two_open(endpoints, tried, rng)
    elif tried or same_zone:
        candidates = [one for one in candidates if one[1].name not in tried]
    best, as_good = _soonest(candidates, work)
    # Nothing but a trial is done at once: that comes before what somebody holds.
    if held and best > 0.0:
        holders = _spared(endpoints, work, held, tried)
        index = min(holders, key=holders.__getitem__)
        best = min(best, holders[index])
        if holders[index] <= min(best + held_gap_s, MAX_S):
            return EndpointChoice(index)
    if best == NOBODY:
        return EndpointChoice(None, rejections(endpoints, tried))
    if same_zone:
        near, near_good = _soonest([one for one in candidates if one[0] in same_zone], work)
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
    """What `choose_endpoint` compares, soonest first; args are those of it."""
    scores = [_done_s(one, work, tried) for one in endpoints]
    for index, score in _spared(endpoints, work, held, tried).items():
        scores[index] = score
    seen = [
        ConsideredEndpoint(
            one.name,
            score if score < NOBODY else None,
            one.in_flight,
            _reject(one, tried),
            index in held,
            index in same_zone,
        )
        for index, (one, score) in enumerate(zip(endpoints, scores, strict=True))
    ]
    return tuple(sorted(seen, key=lambda one: (one.done_s is None, one.done_s or 0.0, one.name)))


def rejections(endpoints: Sequence[EndpointView], tried: Container[str] = ()) -> tuple[Rejection, ...]:
    """Every endpoint that may not take a request, and why."""
    reasons = [(endpoint.name, _reject(endpoint, tried)) for endpoint in endpoints]
    return tuple(Rejection(name, reason) for name, reason in reasons if reason is not None)


def _soonest(candidates: Iterable[Candidate], work: Work) -> tuple[float, list[int]]:
    """When the first of them would be done (s from now; NOBODY where none may have it), and who is as good as that.

    One look at each: this is the choice's only step that grows with the pool.
    """
    prefill_s, decode_s = work.prefill_s, work.decode_s
    best, bound = NOBODY, MAX_S
    found: list[tuple[float, int]] = []
    for index, one in candidates:
        ahead_s, prefill, decode = one.score_coefficients
        score = ahead_s + prefill_s * prefill + decode_s * decode
        if score <= bound:
            found.append((score, index))
            if score < best:
                near_s = score * NEAR_TIE
                best, bound = score, score + (near_s if near_s < NEAR_TIE_S else NEAR_TIE_S)
    return best, [index for score, index in found if score <= bound]


def _done_s(one: EndpointView, work: Work, tried: Container[str]) -> float:
    """When an endpoint would be done with the request, in seconds from now; infinite where it may not have it."""
    ahead_s, prefill, decode = one.score_coefficients
    return NOBODY if one.name in tried else ahead_s + work.prefill_s * prefill + work.decode_s * decode


def _spared(
    endpoints: Sequence[EndpointView], work: Work, held: Mapping[int, float], tried: Container[str]
) -> dict[int, float]:
    """The same for those that hold something of the request, by position: less what that spares them."""
    return {
        index: _done_s(endpoints[index], work, tried)
        - min(spared_s, work.prefill_s) * endpoints[index].score_coefficients[1]
        for index, spared_s in held.items()
    }


def _two_open(endpoints: Sequence[EndpointView], tried: Container[str], rng: Random) -> list[Candidate]:
    """Two open endpoints at random; fewer where there are no more. Drawn until found, for most are open."""
    found: list[Candidate] = []
    count, draw = len(endpoints), rng.random
    for _ in range(MAX_DRAWS):
        index = int(draw() * count)
        one = endpoints[index]
        if one.score_coefficients[0] < NOBODY and one.name not in tried and (not found or index != found[0][0]):
            found.append((index, one))
            if len(found) == 2:
                return found
    open_ = [
        (index, one)
        for index, one in enumerate(endpoints)
        if one.score_coefficients[0] < NOBODY and one.name not in tried
    ]
    return rng.sample(open_, 2) if len(open_) > 2 else open_


def _reject(endpoint: EndpointView, tried: Container[str]) -> Reason | None:
    if endpoint.name in tried:
        return Reason.ALREADY_TRIED
    if endpoint.draining:
        return Reason.ENDPOINT_DRAINING
    if not endpoint.ready:
        return Reason.ENDPOINT_NOT_READY
    if endpoint.in_flight >= endpoint.limit:
        return Reason.ENDPOINT_FULL
    return None

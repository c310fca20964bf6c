"""Who runs it: the endpoint of a pool with the least load for its size, ties broken at random.

Least request over a global view beats round-robin and local views; past about a tenth of a mean service time the view
is too old to be trusted for a full scan, and two random choices on it do better (Mitzenmacher, "How useful is old
information?", IEEE TPDS 2000).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from random import Random

import msgspec

from penstock.reasons import Reason, Rejection

STALE_SHARE_OF_SERVICE = 0.1
"""A view older than this share of the mean service time is too old to rank a whole pool by."""


class EndpointView(msgspec.Struct):
    """One endpoint as the chooser sees it. Its owner updates it in place; the chooser only reads."""

    name: str
    slots: int
    """Requests that it runs at once without queueing."""
    limit: int
    """Requests, running or queued on it, past which it takes no more; at least `slots`."""
    ready: bool = False
    draining: bool = False
    in_flight: int = 0
    """Requests on it now from every agent that is known of."""
    weight: float = 1.0
    """Its warm-up: 1 when warm, less while it should get less."""
    pressure: float = 0.0
    """How close to full its engine says it is, beyond what requests on it say: 0 not at all, 1 wholly; faded with
    age. A hint: it closes nothing."""


class Who(msgspec.Struct, frozen=True):
    """The endpoint chosen, by position in what was given; None where none could take the request."""

    index: int | None
    rejected: tuple[Rejection, ...] = ()


def choose_endpoint(
    endpoints: Sequence[EndpointView],
    rng: Random,
    *,
    tried: Container[str] = (),
    view_age_s: float = 0.0,
    service_s: float = 1.0,
) -> Who:
    """Pick the least loaded of the endpoints that can take one more request.

    Args:
        endpoints: the pool.
        rng: breaks ties, so that agents do not herd onto the first.
        tried: names that this request has failed on already.
        view_age_s: age of the oldest in-flight number, in seconds.
        service_s: mean time a request holds its slot, in seconds.
    """
    open_, rejected = [], []
    for index, endpoint in enumerate(endpoints):
        reason = _reject(endpoint, tried)
        if reason is None:
            open_.append(index)
        else:
            rejected.append(Rejection(endpoint.name, reason))
    if not open_:
        return Who(None, tuple(rejected))
    if len(open_) > 2 and view_age_s > STALE_SHARE_OF_SERVICE * service_s:
        open_ = rng.sample(open_, 2)
    return Who(_least_loaded(endpoints, open_, rng), tuple(rejected))


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


def _least_loaded(endpoints: Sequence[EndpointView], candidates: Sequence[int], rng: Random) -> int:
    best: list[int] = []
    best_load = float("inf")
    for index in candidates:
        endpoint = endpoints[index]
        load = (endpoint.in_flight + 1) / (endpoint.slots * max(endpoint.weight, 1e-3))
        if load < best_load:
            best, best_load = [index], load
        elif load == best_load:
            best.append(index)
    return best[0] if len(best) == 1 else rng.choice(best)

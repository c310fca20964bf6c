"""Measurements of a run: shares, percentiles, and the durations of failover and failback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

from lab.demo.records import Answer, Event, EventKind, Outcome, Run, Served
from lab.demo.scenario import ActName, Phase, PhaseName
from lab.quantile import quantile

FAILBACK_SHARE = 0.9
"""Part (0-1) of its steady share that the returned region must serve for failback to be complete."""

FAILBACK_WINDOW_S = 3.0
"""Window (s) over which the share is measured. A shorter window contains too few requests."""


class Kind(StrEnum):
    """The reason why a region served a request."""

    HOME = "home"
    SPILLOVER = "spillover"
    FAILOVER = "failover"
    FAILBACK = "failback"


def served_ok(run: Run, choose: Callable[[Served], bool] = lambda _: True) -> list[Served]:
    """Return the completely answered requests that `choose` selects."""
    return [request for request in run.served if request.outcome is Outcome.OK and choose(request)]


def due_in(phase: Phase) -> Callable[[Served], bool]:
    """Return a predicate: whether a request is due in `phase`."""
    return lambda request: phase.covers(request.due_s)


def home_share(requests: Iterable[Served]) -> float | None:
    """Return the share (0-1) of the answered requests that their home region served; None without answered requests."""
    answered = [request for request in requests if request.outcome is Outcome.OK]
    if not answered:
        return None
    return sum(request.server == request.home for request in answered) / len(answered)


def kind_of(run: Run, request: Served) -> Kind:
    """Return why the serving region served an answered request, from the recorded kill and return of the region."""
    if request.server == request.home:
        return Kind.HOME
    killed, ready = run.event(EventKind.REGION_KILLED), run.event(EventKind.REGION_READY)
    if request.home != run.scenario.lost_region or killed is None:
        return Kind.SPILLOVER
    ended_s = request.due_s + (request.e2e_s or 0.0)
    if ended_s >= killed.at_s and (ready is None or request.due_s < ready.at_s):
        return Kind.FAILOVER
    if ready is not None and ready.at_s <= request.due_s < failback_deadline_s(run, ready):
        return Kind.FAILBACK
    return Kind.SPILLOVER


def failback_deadline_s(run: Run, ready: Event) -> float:
    """Return the time (s) until which a request served outside the returned region counts as failback."""
    taken = failback_s(run)
    return ready.at_s + max(taken if taken is not None else 0.0, run.failback_ramp_s)


class Failover(msgspec.Struct, frozen=True):
    """Measurements of the loss of a region; times in seconds since the SIGKILL."""

    detected_s: float | None
    """Time (s) until the first surviving agent reported the region as failed."""
    all_detected_s: float | None
    """Time (s) until the last of the reporting agents reported the region as failed."""
    rerouted_s: float | None
    """Time (s) of the last failed attempt at the killed region; None without an attempt."""
    elsewhere: int
    """Answered requests whose home is the killed region, due while it was dead, that another region served."""
    first_elsewhere_s: float | None
    """Time (s) until another region sent the first token of a request whose home is the killed region."""
    retried: int
    """Requests that failed at the killed region and were then answered."""
    broken_after_start: int
    """Requests that reached an engine of the killed region and failed for the client."""
    continued: int
    """Streams from the killed region through another region's agent that another region completed."""
    not_continued: int
    """Streams from the killed region through another region's agent that failed for the client."""
    lost_not_started: int
    """Requests of the whole run that failed for the client and that no engine started."""


def failover(run: Run) -> Failover:
    """Measure the loss of the killed region."""
    killed, back = run.event(EventKind.REGION_KILLED), run.event(EventKind.REGION_STARTED)
    lost = [request for request in run.served if request.outcome is Outcome.FAILED and request.id not in run.started]
    if killed is None:
        return Failover(None, None, None, 0, None, 0, 0, 0, 0, len(lost))
    until_s = back.at_s if back is not None else run.scenario.duration_s
    noticed = _first_notice(run, killed.at_s, until_s)
    touched = _attempts_at_the_dead(run, killed.at_s, until_s)
    late = [at_s for _, at_s in touched] + _agents_at_the_dead(run, killed.at_s, until_s)
    elsewhere = [
        request.due_s + (request.ttft_s or 0.0) - killed.at_s
        for request in served_ok(run)
        if request.home == run.scenario.lost_region != request.server and killed.at_s <= request.due_s < until_s
    ]
    there = {sighting.id for sighting in run.sightings if sighting.region == run.scenario.lost_region}
    broken = [request for request in run.served if request.outcome is Outcome.FAILED and request.id in there]
    forwarded = _forwarded_streams(run, killed.at_s)
    return Failover(
        detected_s=min(noticed) - killed.at_s if noticed else None,
        all_detected_s=max(noticed) - killed.at_s if noticed else None,
        rerouted_s=max(late) - killed.at_s if late else None,
        elsewhere=len(elsewhere),
        first_elsewhere_s=min(elsewhere, default=None),
        retried=sum(request.outcome is Outcome.OK for request, _ in touched),
        broken_after_start=len(broken),
        continued=sum(request.outcome is Outcome.OK for request in forwarded),
        not_continued=sum(request.outcome is Outcome.FAILED for request in forwarded),
        lost_not_started=len(lost),
    )


def _forwarded_streams(run: Run, killed_s: float) -> list[Served]:
    """Return the streams that the region was sending when it was killed, to clients of other regions' entries."""
    lost = run.scenario.lost_region
    there = {sighting.id for sighting in run.sightings if sighting.region == lost and sighting.at_s < killed_s}
    return [
        request
        for request in run.served
        if request.id in there
        and request.origin != lost
        and request.ttft_s is not None
        and request.due_s + request.ttft_s < killed_s
        and (request.e2e_s is None or request.due_s + request.e2e_s > killed_s)
    ]


def _first_notice(run: Run, from_s: float, to_s: float) -> list[float]:
    """Return the times (s) at which each surviving agent first reported the region as failed."""
    first: dict[str, float] = {}
    for look in run.looks:
        for observer, failed in look.failed_peers.items():
            if from_s <= look.at_s < to_s and run.scenario.lost_region in failed:
                first.setdefault(observer, look.at_s)
    return list(first.values())


def _attempts_at_the_dead(run: Run, from_s: float, to_s: float) -> list[tuple[Served, float]]:
    """Return the failed attempts of clients at the killed region, each with its time (s)."""
    return [
        (request, attempt.at_s)
        for request in run.served
        for attempt in request.attempts
        if attempt.region == run.scenario.lost_region
        and attempt.answer is Answer.BROKEN
        and from_s <= attempt.at_s < to_s
    ]


def _agents_at_the_dead(run: Run, from_s: float, to_s: float) -> list[float]:
    """Return the times (s) at which retries of other regions' agents were observed, as attempts at the region."""
    return [
        later.at_s
        for earlier, later in pairwise(run.looks)
        if from_s <= later.at_s < to_s
        and any(count > earlier.retries.get(name, count) for name, count in later.retries.items())
    ]


def steady_share(run: Run) -> float | None:
    """Return the share (0-1) of its home demand that the lost region served in steady state."""
    steady = run.scenario.phase(PhaseName.STEADY)
    return home_share(
        request for request in run.served if request.home == run.scenario.lost_region and steady.covers(request.due_s)
    )


def failback_s(run: Run) -> float | None:
    """Return the time (s) from readiness of the region until it serves FAILBACK_SHARE of its steady share.

    Plans change until etcd is killed, so the search ends there.
    """
    ready, usual = run.event(EventKind.REGION_READY), steady_share(run)
    if ready is None or usual is None:
        return None
    end_s = run.scenario.act_at_s(ActName.KILL_ETCD)
    after = [
        request
        for request in run.served
        if request.home == run.scenario.lost_region and ready.at_s <= request.due_s < end_s
    ]
    for begin_s in [ready.at_s, *(request.due_s for request in after)]:
        if begin_s + FAILBACK_WINDOW_S > end_s:
            return None
        share = home_share(request for request in after if begin_s <= request.due_s < begin_s + FAILBACK_WINDOW_S)
        if share is not None and share >= FAILBACK_SHARE * usual:
            return begin_s - ready.at_s
    return None


def early_return_share(run: Run) -> float | None:
    """Return the share (0-1) of its home demand that the region served in the first third of its failback ramp."""
    return home_share(_early(run))


def early_requests(run: Run) -> int:
    """Return the number of answered requests that `early_return_share` is computed from."""
    return sum(request.outcome is Outcome.OK for request in _early(run))


def _early(run: Run) -> list[Served]:
    ready = run.event(EventKind.REGION_READY)
    if ready is None:
        return []
    to_s = ready.at_s + run.failback_ramp_s / 3
    return [
        request
        for request in run.served
        if request.home == run.scenario.lost_region and ready.at_s <= request.due_s < to_s
    ]


def surge_spills(run: Run) -> list[Served]:
    """Return the requests of the surge region that another region served during the surge phase."""
    return [
        request
        for request in served_ok(run, due_in(run.scenario.phase(PhaseName.SURGE)))
        if request.home == run.scenario.surge_region and kind_of(run, request) is Kind.SPILLOVER
    ]


def spill_end_s(run: Run) -> float | None:
    """Return the time (s) from the end of the surge until the last spilled request; None without spilled requests."""
    ended, spilt = run.event(EventKind.SURGE_ENDED), [request.due_s for request in surge_spills(run)]
    return max(0.0, max(spilt) - ended.at_s) if spilt and ended is not None else None


def latency_ms(requests: Sequence[Served]) -> dict[str, float | None]:
    """Return p50 and p99 (ms) of the time to the first and to the last token."""
    ttft = [request.ttft_s * 1000 for request in requests if request.ttft_s is not None]
    e2e = [request.e2e_s * 1000 for request in requests if request.e2e_s is not None]
    return {
        f"{what}_p{round(part * 100)}_ms": _rounded(quantile(values, part))
        for what, values in (("ttft", ttft), ("e2e", e2e))
        for part in (0.5, 0.99)
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def who_served_whom(requests: Iterable[Served]) -> dict[str, dict[str, int]]:
    """Count the answered requests by home region and serving region."""
    table: dict[str, Counter[str]] = {}
    for request in requests:
        if request.outcome is Outcome.OK:
            table.setdefault(request.home, Counter())[request.server] += 1
    return {home: dict(row.most_common()) for home, row in sorted(table.items())}


def ended_with_region(run: Run) -> list[Served]:
    """Return the requests that failed because the lost region was serving them or had accepted them when it died."""
    lost, killed = run.scenario.lost_region, run.event(EventKind.REGION_KILLED)
    there = {sighting.id for sighting in run.sightings if sighting.region == lost}
    return [
        request
        for request in run.served
        if request.outcome is Outcome.FAILED
        and (request.id in there or request.origin == lost)
        and killed is not None
        and request.due_s <= killed.at_s
    ]

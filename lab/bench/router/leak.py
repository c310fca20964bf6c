"""Whether an agent's memory stays flat over a great many requests: whole answers, streams, and clients that leave."""

from __future__ import annotations

from statistics import fmean

import msgspec

from lab.bench.process_cost import resident_bytes
from lab.bench.router.backends import Pace
from lab.bench.router.chat import answer, requests_of
from lab.bench.router.contestant import PENSTOCK, Field
from lab.bench.router.load import Load
from lab.bench.router.rounds import Progress, clients, set_pace
from lab.bench.router.streams import Streams
from lab.servers.errors import NotReady

CONNECTIONS = 64

LOOKS = 20
"""Number of memory samples, evenly over the requests."""

MIN_STREAMS_BETWEEN, MAX_STREAMS_BETWEEN = 5, 100
"""Streams that are opened and left in the middle between two looks: one for a hundred requests, within these."""

WARM_UP_SHARE = 0.02
"""Streams left before the first look, as a part of the requests: the heap grows to what they need, and stays so."""

CLOSED_LOOP_S = 600.0
"""Longest time (s) for the requests between two looks."""


class LeakCheck(msgspec.Struct, frozen=True):
    """Resident memory over time."""

    requests: int
    streams_left: int
    errors: int
    resident_mb: tuple[float, ...]
    """At each look; the first is before the first request."""
    grown_mb: float
    """The mean of the last quarter less that of the second: the first quarter is warm-up."""
    grown_bytes_per_request: float
    """The same for each request between the middles of the two, which is half of all."""


def check_leak(field: Field, requests: int, progress: Progress) -> LeakCheck:
    """Send `requests` requests to a fresh agent and sample its memory."""
    contestant = next(contestant for contestant in field.contestants if contestant.name == PENSTOCK)
    set_pace(field, Pace(interval_s=1.0))
    contestant.process.restart(60.0)
    pid = contestant.process.pid
    asks = requests_of(clients(), stream=False)
    load = Load(contestant.port, [asks[number % len(asks)] for number in range(CONNECTIONS)], answer())
    done = errors = streams_left = 0
    try:
        streams_between = min(max(requests // LOOKS // 100, MIN_STREAMS_BETWEEN), MAX_STREAMS_BETWEEN)
        while streams_left < requests * WARM_UP_SHARE:
            streams_left += _leave_streams(contestant.port, streams_between)
        resident = [resident_bytes(pid)]
        for look in range(LOOKS):
            progress(f"memory over {requests} requests: {done} so far")
            run = load.closed_loop(CLOSED_LOOP_S, max_answers=requests * (look + 1) // LOOKS - done)
            done += run.answers
            errors += run.errors
            streams_left += _leave_streams(contestant.port, streams_between)
            resident.append(resident_bytes(pid))
    finally:
        load.close()
    quarter = LOOKS // 4
    grown_bytes = fmean(resident[-quarter:]) - fmean(resident[1 + quarter : 1 + 2 * quarter])
    return LeakCheck(
        requests=done,
        streams_left=streams_left,
        errors=errors,
        resident_mb=tuple(round(size_bytes / 1e6, 2) for size_bytes in resident),
        grown_mb=round(grown_bytes / 1e6, 3),
        grown_bytes_per_request=round(grown_bytes / (requests / 2), 3),
    )


def _leave_streams(port: int, count: int) -> int:
    """Open `count` streams and leave in the middle of each; how many had begun."""
    streams = Streams(port, requests_of(clients(), stream=True))
    begun = streams.open(count, 30.0)
    streams.close()
    if begun < count:
        raise NotReady(f"only {begun} of {count} streams began")
    return begun

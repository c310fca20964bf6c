"""Checks that an agent's memory stays constant over many requests: whole responses, and streams that clients abort."""

from __future__ import annotations

from statistics import fmean

import msgspec

from adapters.servers.errors import NotReady
from lab.bench.process_cost import resident_bytes
from lab.bench.router.backends import Pace
from lab.bench.router.chat import answer, requests_of
from lab.bench.router.contestant import PENSTOCK, Field
from lab.bench.router.load import Load
from lab.bench.router.rounds import Progress, clients, set_pace
from lab.bench.router.streams import Streams

CONNECTIONS = 64

LOOKS = 20
"""Number of memory samples, evenly distributed over the requests."""

MIN_STREAMS_BETWEEN, MAX_STREAMS_BETWEEN = 5, 100
"""Limits of the number of aborted streams between two samples, which is otherwise one per hundred requests."""

WARM_UP_SHARE = 0.02
"""Streams aborted before the first sample, as a share of the requests, so that the heap reaches its final size."""

CLOSED_LOOP_S = 600.0
"""Maximum time (s) for the requests between two samples."""


class LeakCheck(msgspec.Struct, frozen=True):
    """Resident memory over time."""

    requests: int
    streams_left: int
    errors: int
    resident_mb: tuple[float, ...]
    """Resident memory (MB) at each sample; the first sample is taken before the first request."""
    grown_mb: float
    """Mean of the last quarter minus mean of the second quarter; the first quarter is warm-up."""
    grown_bytes_per_request: float
    """Growth per request between the middles of the two quarters, which is half of all requests."""


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
    """Open `count` streams, abort each, and return the number of streams that had started."""
    streams = Streams(port, requests_of(clients(), stream=True))
    begun = streams.open(count, 30.0)
    streams.close()
    if begun < count:
        raise NotReady(f"only {begun} of {count} streams started")
    return begun

"""Measures all contestants in rounds with rotating order, so that no contestant is always first."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

import msgspec

from lab.bench.process_cost import cpu_s, resident_bytes
from lab.bench.router.backends import PACE_PATH, Pace
from lab.bench.router.chat import Client, answer, requests_of
from lab.bench.router.contestant import Contestant, Field
from lab.bench.router.load import Load
from lab.bench.router.streams import Streams
from lab.geoip import SITES
from lab.quantile import quantile
from lab.servers.free_ports import LOOPBACK

Progress = Callable[[str], None]
"""Progress callback: receives a short description of the current measurement."""

KEYS = ("demo-open", "demo-personal", "demo-eu-personal")
"""API keys of the shipped policy bundle: one for unrestricted data, the others for data with residency rules, which
permit the EU, the region of the agent under test."""

DIRECT = "direct"
"""Name of the run without a router."""

SETTLE_S = 1.0
"""Time (s) that streams run before the measurement."""

OPEN_TIMEOUT_S = 60.0


class RequestRound(msgspec.Struct, frozen=True):
    """The result of one contestant in one round of non-streaming requests."""

    requests_per_s: float
    cpu_us_per_request: float
    core_use: float
    """Utilisation (0-1) of the router's core in the closed loop: below about 0.9 it was not the bottleneck."""
    p50_ms: float
    """Latency (ms) at the fixed rate."""
    p99_ms: float
    errors: int


class StreamRound(msgspec.Struct, frozen=True):
    """The result of one contestant in one round of fast streams."""

    cpu_us_per_chunk: float
    chunks_per_s: float
    core_use: float
    broken: int


class OpenStreams(msgspec.Struct, frozen=True):
    """The result of one contestant with many slow streams."""

    streams: int
    """Number of streams that started."""
    resident_kb_per_stream: float
    """Growth of resident memory since the warm-up without streams (kB of 1,000 bytes)."""
    resident_mb_before: float
    core_use: float
    cpu_us_per_chunk: float
    chunks_per_s: float
    broken: int


def clients() -> list[Client]:
    """The simulated clients: one per site of SITES, with the API keys in rotation."""
    rng = Random(1)
    return [Client(site.address(rng), KEYS[number % len(KEYS)]) for number, site in enumerate(SITES)]


def request_rounds(
    field: Field, rounds: int, seconds: float, warm_up_s: float, per_s: float, connections: int, progress: Progress
) -> dict[str, list[RequestRound]]:
    """Measure non-streaming requests: throughput in a closed loop, then latency at a fixed rate.

    Args:
        field: the contestants.
        rounds: number of rounds.
        seconds: duration (s) of each of the two measurements.
        warm_up_s: duration (s) of the unmeasured closed loop before them.
        per_s: the fixed rate (requests/s).
        connections: concurrent requests in the closed loop.
        progress: receives progress messages.
    """
    asks = requests_of(clients(), stream=False)
    asks = [asks[number % len(asks)] for number in range(connections)]
    found: dict[str, list[RequestRound]] = {}
    turns: list[Contestant | None] = [None, *field.contestants]
    for number, contestant in _turns(turns, rounds):
        name = contestant.name if contestant is not None else DIRECT
        progress(f"whole answers, round {number} of {rounds}: {name}")
        load = Load(contestant.port if contestant is not None else field.backends[0], asks, answer())
        try:
            load.closed_loop(warm_up_s)
            before_s = _cpu_s(contestant)
            run = load.closed_loop(seconds)
            used_s = _cpu_s(contestant) - before_s
            paced = load.fixed_rate(per_s, seconds, Random(number))
        finally:
            load.close()
        p50_s, p99_s = (quantile(paced.latencies_s, part) or 0.0 for part in (0.5, 0.99))
        found.setdefault(name, []).append(
            RequestRound(
                requests_per_s=run.answers / run.seconds,
                cpu_us_per_request=used_s / max(1, run.answers) * 1e6,
                core_use=used_s / run.seconds,
                p50_ms=p50_s * 1e3,
                p99_ms=p99_s * 1e3,
                errors=run.errors + paced.errors,
            )
        )
    return found


def stream_rounds(
    field: Field, rounds: int, seconds: float, streams: int, chunks_per_s: float, progress: Progress
) -> dict[str, list[StreamRound]]:
    """Measure streams with one chunk per write: the cost of relaying each chunk.

    Args:
        field: the contestants.
        rounds: number of rounds.
        seconds: duration (s) of each measurement.
        streams: number of concurrent streams.
        chunks_per_s: the rate of all streams together.
        progress: receives progress messages.
    """
    interval_s = streams / chunks_per_s
    set_pace(field, Pace(interval_s, chunks=int((seconds + 10 * SETTLE_S) / interval_s) + 1_000))
    found: dict[str, list[StreamRound]] = {}
    for number, contestant in _turns(list(field.contestants), rounds):
        progress(f"streams, round {number} of {rounds}: {contestant.name}")
        clients_ = Streams(contestant.port, requests_of(clients(), stream=True))
        try:
            begun = clients_.open(streams, OPEN_TIMEOUT_S)
            clients_.run(SETTLE_S)
            before_s = cpu_s(contestant.process.pid)
            run = clients_.run(seconds)
            used_s = cpu_s(contestant.process.pid) - before_s
        finally:
            clients_.close()
        found.setdefault(contestant.name, []).append(
            StreamRound(
                cpu_us_per_chunk=used_s / max(1, run.chunks) * 1e6,
                chunks_per_s=run.chunks / run.seconds,
                core_use=used_s / run.seconds,
                broken=run.broken + streams - begun,
            )
        )
    return found


def open_streams(
    field: Field, streams: int, seconds: float, interval_s: float, progress: Progress
) -> dict[str, OpenStreams]:
    """Measure many slow streams: resident memory per stream, and the total cost. Every contestant is restarted, since a
    process may not return freed memory to the system.

    Args:
        field: the contestants.
        streams: number of streams to open.
        seconds: duration (s) of the measurement.
        interval_s: time (s) between two chunks of a stream.
        progress: receives progress messages.
    """
    set_pace(field, Pace(interval_s, chunks=1_000_000))
    found = {}
    for contestant in field.contestants:
        progress(f"{streams} slow streams: {contestant.name}")
        contestant.process.restart(OPEN_TIMEOUT_S)
        pid = contestant.process.pid
        _warm_up(contestant)
        before_bytes = resident_bytes(pid)
        clients_ = Streams(contestant.port, requests_of(clients(), stream=True))
        try:
            begun = clients_.open(streams, OPEN_TIMEOUT_S)
            clients_.run(SETTLE_S)
            before_s = cpu_s(pid)
            run = clients_.run(seconds)
            used_s = cpu_s(pid) - before_s
            grown_bytes = resident_bytes(pid) - before_bytes
        finally:
            clients_.close()
        found[contestant.name] = OpenStreams(
            streams=begun,
            resident_kb_per_stream=grown_bytes / max(1, begun) / 1e3,
            resident_mb_before=before_bytes / 1e6,
            core_use=used_s / run.seconds,
            cpu_us_per_chunk=used_s / max(1, run.chunks) * 1e6,
            chunks_per_s=run.chunks / run.seconds,
            broken=run.broken + streams - begun,
        )
    return found


def _warm_up(contestant: Contestant) -> None:
    asks = requests_of(clients(), stream=False)
    load = Load(contestant.port, asks, answer())
    try:
        load.closed_loop(1.0)
    finally:
        load.close()


Turn = TypeVar("Turn")


def _turns(contestants: Sequence[Turn], rounds: int) -> Iterator[tuple[int, Turn]]:
    """Yield the turns of each round, alternately forwards and backwards, starting one position later each round."""
    for number in range(rounds):
        first = number % len(contestants)
        order = [*contestants[first:], *contestants[:first]]
        for turn in order if number % 2 == 0 else reversed(order):
            yield number + 1, turn


def _cpu_s(contestant: Contestant | None) -> float:
    return cpu_s(contestant.process.pid) if contestant is not None else 0.0


def set_pace(field: Field, pace: Pace) -> None:
    """Set the pace of the streams that the backends start from now on."""
    connection = http.client.HTTPConnection(LOOPBACK, field.backends[0], timeout=5.0)
    try:
        connection.request("POST", PACE_PATH.decode(), msgspec.json.encode(pace))
        connection.getresponse().read()
    finally:
        connection.close()

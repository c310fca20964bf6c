"""Measures all contestants in rounds with rotating order, so that no contestant is always first."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

import msgspec

from adapters.servers.free_ports import LOOPBACK
from lab.bench.process_cost import cpu_s, resident_bytes
from lab.bench.router.backends import PACE_PATH, Pace
from lab.bench.router.chat import Client, answer, requests_of
from lab.bench.router.contestant import Contestant, Field
from lab.bench.router.load import Load
from lab.bench.router.streams import Streams
from lab.geoip import SITES
from lab.quantile import quantile

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


class Setup(msgspec.Struct, frozen=True):
    """Durations and load of the benchmark."""

    rounds: int
    seconds: float
    """Duration (s) of each measurement."""
    warm_up_s: float
    connections: int
    """Concurrent requests in the closed loop."""
    fixed_rate_per_s: float
    fast_streams: int
    chunks_per_s: float
    """Rate of all fast streams together."""
    slow_streams: int
    slow_interval_s: float
    """Time (s) between two chunks of a slow stream."""
    decisions: int
    leak_requests: int


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
    """The result of one contestant in one round of streams."""

    cpu_us_per_chunk: float
    chunks_per_s: float
    core_use: float
    broken: int


class OpenStreams(StreamRound, frozen=True, kw_only=True):
    """The result of one contestant with many slow streams."""

    streams: int
    """Number of streams that started."""
    resident_kb_per_stream: float
    """Growth of resident memory since the warm-up without streams (kB of 1,000 bytes)."""
    resident_mb_before: float


def clients() -> list[Client]:
    """The simulated clients: one per site of SITES, with the API keys in rotation."""
    rng = Random(1)
    return [Client(site.address(rng), KEYS[number % len(KEYS)]) for number, site in enumerate(SITES)]


def request_rounds(field: Field, setup: Setup, progress: Progress) -> dict[str, list[RequestRound]]:
    """Measure non-streaming requests: throughput in a closed loop, then latency at a fixed rate."""
    asks = requests_of(clients(), stream=False)
    asks = [asks[number % len(asks)] for number in range(setup.connections)]
    found: dict[str, list[RequestRound]] = {}
    systems: list[Contestant | None] = [None, *field.contestants]
    for number, contestant in turns(systems, setup.rounds):
        name = contestant.name if contestant is not None else DIRECT
        progress(f"whole answers, round {number} of {setup.rounds}: {name}")
        load = Load(contestant.port if contestant is not None else field.backends[0], asks, answer())
        try:
            load.closed_loop(setup.warm_up_s)
            before_s = _cpu_s(contestant)
            run = load.closed_loop(setup.seconds)
            used_s = _cpu_s(contestant) - before_s
            paced = load.fixed_rate(setup.fixed_rate_per_s, setup.seconds, Random(number))
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


def stream_rounds(field: Field, setup: Setup, progress: Progress) -> dict[str, list[StreamRound]]:
    """Measure streams with one chunk per write: the cost of relaying each chunk."""
    interval_s = setup.fast_streams / setup.chunks_per_s
    set_pace(field, Pace(interval_s, chunks=int((setup.seconds + 10 * SETTLE_S) / interval_s) + 1_000))
    found: dict[str, list[StreamRound]] = {}
    for number, contestant in turns(list(field.contestants), setup.rounds):
        progress(f"streams, round {number} of {setup.rounds}: {contestant.name}")
        measured, _, _ = _streamed(contestant, setup.fast_streams, setup.seconds)
        found.setdefault(contestant.name, []).append(measured)
    return found


def open_streams(field: Field, setup: Setup, progress: Progress) -> dict[str, OpenStreams]:
    """Measure many slow streams: resident memory per stream, and the total cost. Every contestant is restarted, since a
    process may not return freed memory to the system."""
    set_pace(field, Pace(setup.slow_interval_s, chunks=1_000_000))
    found = {}
    for contestant in field.contestants:
        progress(f"{setup.slow_streams} slow streams: {contestant.name}")
        for process in contestant.processes:
            process.restart(OPEN_TIMEOUT_S)
        _warm_up(contestant)
        before_bytes = _resident_bytes(contestant)
        measured, begun, after_bytes = _streamed(contestant, setup.slow_streams, setup.seconds)
        found[contestant.name] = OpenStreams(
            **msgspec.structs.asdict(measured),
            streams=begun,
            resident_kb_per_stream=(after_bytes - before_bytes) / max(1, begun) / 1e3,
            resident_mb_before=before_bytes / 1e6,
        )
    return found


def _streamed(contestant: Contestant, streams: int, seconds: float) -> tuple[StreamRound, int, int]:
    """Return the result of streams, the number of streams that started, and the resident memory (bytes) with them."""
    held = Streams(contestant.port, requests_of(clients(), stream=True))
    try:
        begun = held.open(streams, OPEN_TIMEOUT_S)
        held.run(SETTLE_S)
        before_s = _cpu_s(contestant)
        run = held.run(seconds)
        used_s = _cpu_s(contestant) - before_s
        memory_bytes = _resident_bytes(contestant)
    finally:
        held.close()
    cpu_us = used_s / max(1, run.chunks) * 1e6
    measured = StreamRound(cpu_us, run.chunks / run.seconds, used_s / run.seconds, run.broken + streams - begun)
    return measured, begun, memory_bytes


def _warm_up(contestant: Contestant) -> None:
    asks = requests_of(clients(), stream=False)
    load = Load(contestant.port, asks, answer())
    try:
        load.closed_loop(1.0)
    finally:
        load.close()


Turn = TypeVar("Turn")


def turns(contestants: Sequence[Turn], rounds: int) -> Iterator[tuple[int, Turn]]:
    """Yield the turns of each round, alternately forwards and backwards, starting one position later each round."""
    for number in range(rounds):
        first = number % len(contestants)
        order = [*contestants[first:], *contestants[:first]]
        for turn in order if number % 2 == 0 else reversed(order):
            yield number + 1, turn


def _cpu_s(contestant: Contestant | None) -> float:
    return sum(cpu_s(process.pid) for process in contestant.processes) if contestant is not None else 0.0


def _resident_bytes(contestant: Contestant) -> int:
    return sum(resident_bytes(process.pid) for process in contestant.processes)


def set_pace(field: Field, pace: Pace) -> None:
    """Set the pace of the streams that the backends start from now on."""
    connection = http.client.HTTPConnection(LOOPBACK, field.backends[0], timeout=5.0)
    try:
        connection.request("POST", PACE_PATH.decode(), msgspec.json.encode(pace))
        connection.getresponse().read()
    finally:
        connection.close()

"""The router benchmark's results: router.json, the printed tables, and the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.table import Table

from lab.bench.bench_results import Goal, Machine, Measured, goal, measured, table
from lab.bench.router.contestant import BASELINE, PENSTOCK, Field
from lab.bench.router.decision import DecisionCost
from lab.bench.router.leak import LeakCheck
from lab.bench.router.rounds import DIRECT, OpenStreams, RequestRound, StreamRound

YARDSTICKS = ("envoy", BASELINE)
"""Systems that the ratios of the tables refer to, each if it was measured; the first has a column in any case."""

FULL_CORE = 0.9
"""Minimum core use of a router that was the bottleneck; below this value the load generator was the limit."""

GOAL_ENDPOINTS = 100
"""Number of endpoints that the goals of decisions refer to."""

MAX_LEAKED_SHARE = 0.01
"""Maximum growth of memory during the leak check, as a share of the memory."""


class Setup(msgspec.Struct, frozen=True):
    """Durations and load of the benchmark."""

    rounds: int
    seconds: float
    warm_up_s: float
    connections: int
    """Concurrent requests in the closed loop."""
    fixed_rate_per_s: float
    fast_streams: int
    chunks_per_s: float
    slow_streams: int
    slow_interval_s: float
    decisions: int
    leak_requests: int


class System(msgspec.Struct, frozen=True):
    """Results of one contestant: medians over the rounds; `spread` contains the ranges."""

    version: str
    settings: tuple[str, ...]
    requests_per_s: float | None = None
    cpu_us_per_request: float | None = None
    added_p50_ms: float | None = None
    """Latency above that of the direct run in the same round, at the fixed rate."""
    added_p99_ms: float | None = None
    errors: int | None = None
    """Number of errors in all rounds, including broken streams."""
    core_use: float | None = None
    cpu_us_per_chunk: float | None = None
    chunks_per_s: float | None = None
    """Rate of relayed chunks. At a lower rate each chunk costs more, because a wake-up handles fewer chunks."""
    streams_core_use: float | None = None
    open_streams: OpenStreams | None = None
    spread: dict[str, Measured] = {}


class Results(msgspec.Struct, frozen=True):
    """All results; None or empty for parts that were not measured."""

    machine: Machine
    setup: Setup
    systems: dict[str, System]
    missing: dict[str, str]
    direct: dict[str, Measured]
    """Results without a router: requests_per_s, p50_ms, p99_ms."""
    decision: list[DecisionCost]
    leak: LeakCheck | None
    goals: list[Goal]


def results(
    machine: Machine,
    setup: Setup,
    field: Field,
    requests: Mapping[str, Sequence[RequestRound]],
    streams: Mapping[str, Sequence[StreamRound]],
    slow: Mapping[str, OpenStreams],
    decision: list[DecisionCost],
    leak: LeakCheck | None,
) -> Results:
    """Combine all measurements."""
    direct = requests.get(DIRECT, [])
    systems = {
        contestant.name: _system(
            contestant.version,
            contestant.settings,
            requests.get(contestant.name, []),
            direct,
            streams.get(contestant.name, []),
            slow.get(contestant.name),
        )
        for contestant in field.contestants
    }
    return Results(
        machine,
        setup,
        systems,
        field.missing,
        {
            name: measured([getattr(round_, name) for round_ in direct])
            for name in ("requests_per_s", "p50_ms", "p99_ms")
        }
        if direct
        else {},
        decision,
        leak,
        goals(systems, decision, leak),
    )


def _system(
    version: str,
    settings: tuple[str, ...],
    requests: Sequence[RequestRound],
    direct: Sequence[RequestRound],
    streams: Sequence[StreamRound],
    slow: OpenStreams | None,
) -> System:
    spread: dict[str, Measured] = {}
    if requests:
        spread["requests_per_s"] = measured([round_.requests_per_s for round_ in requests], 0)
        spread["cpu_us_per_request"] = measured([round_.cpu_us_per_request for round_ in requests], 2)
        spread["added_p50_ms"] = measured(
            [round_.p50_ms - d.p50_ms for round_, d in zip(requests, direct, strict=True)]
        )
        spread["added_p99_ms"] = measured(
            [round_.p99_ms - d.p99_ms for round_, d in zip(requests, direct, strict=True)]
        )
        spread["core_use"] = measured([round_.core_use for round_ in requests])
    if streams:
        spread["cpu_us_per_chunk"] = measured([round_.cpu_us_per_chunk for round_ in streams], 2)
        spread["chunks_per_s"] = measured([round_.chunks_per_s for round_ in streams], 0)
        spread["streams_core_use"] = measured([round_.core_use for round_ in streams])
    errors = (
        sum(round_.errors for round_ in requests)
        + sum(round_.broken for round_ in streams)
        + (slow.broken if slow else 0)
    )
    return System(
        version=version,
        settings=settings,
        errors=errors if requests or streams or slow else None,
        open_streams=slow,
        spread=spread,
        **{name: figure.median for name, figure in spread.items()},
    )


def goals(systems: Mapping[str, System], decision: Sequence[DecisionCost], leak: LeakCheck | None) -> list[Goal]:
    """Return the goals with their measured values."""
    ours = systems.get(PENSTOCK, System("", ()))
    slow = ours.open_streams
    at_size = next((cost for cost in decision if cost.endpoints == GOAL_ENDPOINTS), None)
    with_redis = at_size.with_redis if at_size is not None else None
    found = [
        goal(f"CPU per request, as a share of {name}'s", share, _ratio(ours, systems.get(name), "cpu_us_per_request"))
        for name, share in (("envoy", 1.0), ("vllm-router", 0.5), ("sglang-router", 0.25))
    ]
    found.append(goal("CPU per relayed chunk, us", 15.0, ours.cpu_us_per_chunk))
    found.append(goal("resident memory per open stream, kB", 20.0, slow.resident_kb_per_stream if slow else None))
    found.append(
        goal(f"decision at {GOAL_ENDPOINTS} endpoints, p50 us", 20.0, at_size.whole.p50_us if at_size else None)
    )
    found.append(goal("the same decision, p99 us", 100.0, at_size.whole.p99_us if at_size else None))
    found.append(goal("decision awaiting Redis, p99 us", 1000.0, with_redis.p99_us if with_redis else None))
    leaked = leak.grown_mb / max(leak.resident_mb) if leak else None
    found.append(goal("growth of memory over the requests, as a share of memory", MAX_LEAKED_SHARE, leaked))
    errors = [part.errors for part in (ours, leak) if part is not None and part.errors is not None]
    found.append(goal("errors", 0, sum(errors) if errors else None))
    return found


def tables(found: Results) -> list[Table]:
    """Return the results as tables."""
    shown = []
    if any(system.requests_per_s is not None for system in found.systems.values()):
        shown.append(_requests_table(found))
    if any(system.cpu_us_per_chunk is not None for system in found.systems.values()):
        shown.append(_streams_table(found))
    if found.decision:
        shown.append(_decision_table(found.decision))
    if found.leak is not None:
        shown.append(_leak_table(found.leak))
    return shown


def _requests_table(found: Results) -> Table:
    yardsticks = _yardsticks(found)
    rows = []
    for name, system in found.systems.items():
        at_limit = (system.core_use or 0.0) < FULL_CORE
        rows.append(
            (
                name,
                f"{'>' if at_limit else ''}{system.requests_per_s or 0:,.0f}",
                _figure(system.cpu_us_per_request, 1),
                _spread(system, "cpu_us_per_request"),
                *_ratios(found, system, "cpu_us_per_request"),
                _figure(system.added_p50_ms, 3),
                _figure(system.added_p99_ms, 3),
                _spread(system, "added_p99_ms"),
                str(system.errors),
            )
        )
    title = "Whole responses, one core (>: the load was the limit, not the router; x: ratio of CPU)"
    header = (
        "",
        "requests/s",
        "CPU us/request",
        "rounds",
        *(f"x {name}" for name in yardsticks),
        "added p50 ms",
        "added p99 ms",
        "rounds",
        "errors",
    )
    return table(title, header, rows)


def _streams_table(found: Results) -> Table:
    yardsticks = _yardsticks(found)
    rows = []
    for name, system in found.systems.items():
        slow = system.open_streams
        rows.append(
            (
                name,
                _figure(system.chunks_per_s, 0),
                _figure(system.cpu_us_per_chunk, 1),
                _spread(system, "cpu_us_per_chunk"),
                *_ratios(found, system, "cpu_us_per_chunk"),
                str(slow.streams) if slow else "",
                _figure(slow.resident_kb_per_stream if slow else None, 1),
                _figure(slow.core_use * 100 if slow else None, 1),
                _figure(slow.cpu_us_per_chunk if slow else None, 1),
            )
        )
    header = (
        "",
        "chunks/s",
        "CPU us/chunk",
        "rounds",
        *(f"x {name}" for name in yardsticks),
        "slow streams",
        "resident kB/stream",
        "core %",
        "CPU us/chunk",
    )
    return table("Streams", header, rows)


def _decision_table(decision: Sequence[DecisionCost]) -> Table:
    rows = [
        (
            str(cost.endpoints),
            _figure(cost.whole.p50_us, 1),
            _figure(cost.whole.p99_us, 1),
            _figure(cost.where_and_who.p50_us, 1),
            _figure(cost.where_and_who.p99_us, 1),
            _figure(cost.with_redis.p50_us if cost.with_redis else None, 0),
            _figure(cost.with_redis.p99_us if cost.with_redis else None, 0),
        )
        for cost in decision
    ]
    header = ("endpoints", "p50 us", "p99 us", "selection p50", "p99", "awaiting Redis p50", "p99")
    return table("The decision alone, from parsed head to reserved endpoint", header, rows)


def _leak_table(leak: LeakCheck) -> Table:
    middle = len(leak.resident_mb) // 2
    figures = [_figure(leak.resident_mb[at], 1) for at in (0, 1, middle, -1)]
    row = (f"{leak.requests:,}", f"{leak.streams_left:,}", *figures, _figure(leak.grown_bytes_per_request, 2))
    header = ("requests", "streams aborted", "at the start", "after 1/20", "halfway", "at the end", "bytes/request")
    return table("Resident memory (MB) over many requests", header, [row])


def _yardsticks(found: Results) -> list[str]:
    return [name for name in YARDSTICKS if name == YARDSTICKS[0] or name in found.systems]


def _ratios(found: Results, system: System, field: str) -> list[str]:
    return [_figure(_ratio(system, found.systems.get(name), field), 2) for name in _yardsticks(found)]


def _ratio(system: System, other: System | None, field: str) -> float | None:
    above, below = getattr(system, field), getattr(other, field, None)
    return above / below if above is not None and below else None


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _spread(system: System, field: str) -> str:
    rounds = system.spread.get(field)
    return f"{rounds.least:.3g}-{rounds.most:.3g}" if rounds is not None else ""

"""The router benchmark's results: router.json, the printed tables, and the goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.table import Table

from lab.bench.bench_results import Columns, Goal, Machine, Measured, columns_table, goal, measured
from lab.bench.router.cache_cost import CHAT, CHAT_BESIDE, HIT, SATURATED
from lab.bench.router.contestant import BASELINE, PENSTOCK, Contestant, Field
from lab.bench.router.decision import DecisionCost
from lab.bench.router.leak import LeakCheck
from lab.bench.router.policy_cost import PolicyCost
from lab.bench.router.rounds import DIRECT, OpenStreams, RequestRound, Setup, StreamRound
from lab.bench.router.tenant_cost import ALL, OFF

YARDSTICKS = ("envoy", BASELINE)
"""Systems that the ratios of the tables refer to, each if it was measured; the first has a column in any case."""

FULL_CORE = 0.9
"""Minimum core use of a router that was the bottleneck; below this value the load generator was the limit."""

GOAL_ENDPOINTS = 100
"""Number of endpoints that the goals of decisions refer to."""

MAX_LEAKED_SHARE = 0.01
"""Maximum growth of memory during the leak check, as a share of the memory."""


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
    cache: PolicyCost | None
    tenants: PolicyCost | None
    goals: list[Goal]


class Measurements(msgspec.Struct, frozen=True):
    """The measurements of every part; empty or None for parts that were not measured."""

    requests: Mapping[str, Sequence[RequestRound]] = {}
    """Rounds by contestant, and of the run without a router by DIRECT."""
    streams: Mapping[str, Sequence[StreamRound]] = {}
    slow: Mapping[str, OpenStreams] = {}
    decision: Sequence[DecisionCost] = ()
    leak: LeakCheck | None = None
    cache: PolicyCost | None = None
    tenants: PolicyCost | None = None


def results(machine: Machine, setup: Setup, field: Field, found: Measurements) -> Results:
    """Combine all measurements."""
    direct = found.requests.get(DIRECT, ())
    systems = {contestant.name: _system(contestant, found) for contestant in field.contestants}
    names = ("requests_per_s", "p50_ms", "p99_ms") if direct else ()
    return Results(
        machine,
        setup,
        systems,
        field.missing,
        {name: measured([getattr(round_, name) for round_ in direct]) for name in names},
        list(found.decision),
        found.leak,
        found.cache,
        found.tenants,
        [*goals(systems, found.decision, found.leak), *policy_goals(found.cache, found.tenants)],
    )


def _system(contestant: Contestant, found: Measurements) -> System:
    requests, streams = found.requests.get(contestant.name, ()), found.streams.get(contestant.name, ())
    slow = found.slow.get(contestant.name)
    spread: dict[str, Measured] = {}
    if requests:
        pairs = list(zip(requests, found.requests[DIRECT], strict=True))
        spread["requests_per_s"] = measured([round_.requests_per_s for round_ in requests], 0)
        spread["cpu_us_per_request"] = measured([round_.cpu_us_per_request for round_ in requests], 2)
        spread["added_p50_ms"] = measured([round_.p50_ms - direct.p50_ms for round_, direct in pairs])
        spread["added_p99_ms"] = measured([round_.p99_ms - direct.p99_ms for round_, direct in pairs])
        spread["core_use"] = measured([round_.core_use for round_ in requests])
    if streams:
        spread["cpu_us_per_chunk"] = measured([round_.cpu_us_per_chunk for round_ in streams], 2)
        spread["chunks_per_s"] = measured([round_.chunks_per_s for round_ in streams], 0)
        spread["streams_core_use"] = measured([round_.core_use for round_ in streams])
    broken = [round_.broken for round_ in (*streams, *([slow] if slow else []))]
    errors = [*(round_.errors for round_ in requests), *broken]
    return System(
        version=contestant.version,
        settings=contestant.settings,
        errors=sum(errors) if errors else None,
        open_streams=slow,
        spread=spread,
        **{name: figure.median for name, figure in spread.items()},
    )


def goals(systems: Mapping[str, System], decision: Sequence[DecisionCost], leak: LeakCheck | None) -> list[Goal]:
    """Return the goals with their measured values."""
    ours = systems.get(PENSTOCK, System("", ()))
    slow = ours.open_streams
    at_size = next((cost for cost in decision if cost.endpoints == GOAL_ENDPOINTS), None)
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
    leaked = leak.grown_mb / max(leak.resident_mb) if leak else None
    found.append(goal("growth of memory over the requests, as a share of memory", MAX_LEAKED_SHARE, leaked))
    errors = [part.errors for part in (ours, leak) if part is not None and part.errors is not None]
    found.append(goal("errors", 0, sum(errors) if errors else None))
    return found


def policy_goals(cache: PolicyCost | None, tenants: PolicyCost | None) -> list[Goal]:
    """Return the goals of kept responses and of tenants with their measured values."""
    ratio = cache.ratio(HIT, SATURATED) if cache else None
    more_us = tenants.more_us(ALL, OFF) if tenants else None
    errors = [part.errors for part in (cache, tenants) if part is not None]
    return [
        goal("CPU of a kept response, as a share of a refusal's (429)", 1.2, ratio),
        goal("CPU that budgets, prices and the ledger add to a chat, us", 1.5, more_us),
        goal("requests of these two with another response than measured", 0, sum(errors) if errors else None),
    ]


def tables(found: Results) -> list[Table]:
    """Return the results as tables."""
    systems = found.systems.items()
    shown = []
    if any(system.requests_per_s is not None for _, system in systems):
        title = "Whole responses, one core (>: the load was the limit, not the router; x: ratio of CPU)"
        shown.append(columns_table(title, _request_columns(found), systems))
    if any(system.cpu_us_per_chunk is not None for _, system in systems):
        shown.append(columns_table("Streams", _stream_columns(found), systems))
    if found.decision:
        title = "The decision alone, from parsed head to reserved endpoint"
        shown.append(columns_table(title, DECISION_COLUMNS, found.decision))
    if found.leak is not None:
        shown.append(columns_table("Resident memory (MB) over many requests", LEAK_COLUMNS, [found.leak]))
    if found.cache is not None:
        title = (
            f"Kept responses; a chat beside the policy costs {found.cache.ratio(CHAT_BESIDE, CHAT):.2f} x one without"
        )
        shown.append(_policy_table(title, found.cache))
    if found.tenants is not None:
        shown.append(
            _policy_table(f"Chats; all costs {found.tenants.ratio(ALL, OFF):.2f} x one without", found.tenants)
        )
    return shown


def _request_columns(found: Results) -> Columns[tuple[str, System]]:
    def rate(row: tuple[str, System]) -> str:
        at_limit = (row[1].core_use or 0.0) < FULL_CORE
        return f"{'>' if at_limit else ''}{row[1].requests_per_s or 0:,.0f}"

    return (
        ("", lambda row: row[0]),
        ("requests/s", rate),
        ("CPU us/request", lambda row: _figure(row[1].cpu_us_per_request, 1)),
        ("rounds", lambda row: _spread(row[1], "cpu_us_per_request")),
        *_ratio_columns(found, "cpu_us_per_request"),
        ("added p50 ms", lambda row: _figure(row[1].added_p50_ms, 3)),
        ("added p99 ms", lambda row: _figure(row[1].added_p99_ms, 3)),
        ("rounds", lambda row: _spread(row[1], "added_p99_ms")),
        ("errors", lambda row: str(row[1].errors)),
    )


def _stream_columns(found: Results) -> Columns[tuple[str, System]]:
    def slow(row: tuple[str, System], name: str, factor: float = 1.0, digits: int = 1) -> str:
        held = row[1].open_streams
        return _figure(getattr(held, name) * factor if held else None, digits)

    return (
        ("", lambda row: row[0]),
        ("chunks/s", lambda row: _figure(row[1].chunks_per_s, 0)),
        ("CPU us/chunk", lambda row: _figure(row[1].cpu_us_per_chunk, 1)),
        ("rounds", lambda row: _spread(row[1], "cpu_us_per_chunk")),
        *_ratio_columns(found, "cpu_us_per_chunk"),
        ("slow streams", lambda row: slow(row, "streams", digits=0)),
        ("resident kB/stream", lambda row: slow(row, "resident_kb_per_stream")),
        ("core %", lambda row: slow(row, "core_use", 100.0)),
        ("CPU us/chunk", lambda row: slow(row, "cpu_us_per_chunk")),
    )


def _ratio_columns(found: Results, field: str) -> Columns[tuple[str, System]]:
    """Return the columns with the ratios to the yardsticks."""
    names = [name for name in YARDSTICKS if name == YARDSTICKS[0] or name in found.systems]

    def column(name: str) -> tuple[str, Callable[[tuple[str, System]], str]]:
        return f"x {name}", lambda row: _figure(_ratio(row[1], found.systems.get(name), field), 2)

    return [column(name) for name in names]


DECISION_COLUMNS: Columns[DecisionCost] = (
    ("endpoints", lambda cost: str(cost.endpoints)),
    ("p50 us", lambda cost: _figure(cost.whole.p50_us, 1)),
    ("p99 us", lambda cost: _figure(cost.whole.p99_us, 1)),
    ("selection p50", lambda cost: _figure(cost.where_and_who.p50_us, 1)),
    ("p99", lambda cost: _figure(cost.where_and_who.p99_us, 1)),
)

LEAK_COLUMNS: Columns[LeakCheck] = (
    ("requests", lambda leak: f"{leak.requests:,}"),
    ("streams aborted", lambda leak: f"{leak.streams_left:,}"),
    ("at the start", lambda leak: _figure(leak.resident_mb[0], 1)),
    ("after 1/20", lambda leak: _figure(leak.resident_mb[1], 1)),
    ("halfway", lambda leak: _figure(leak.resident_mb[len(leak.resident_mb) // 2], 1)),
    ("at the end", lambda leak: _figure(leak.resident_mb[-1], 1)),
    ("bytes/request", lambda leak: _figure(leak.grown_bytes_per_request, 2)),
)


def _policy_table(title: str, cost: PolicyCost) -> Table:
    first = next(iter(cost.cpu_us))
    columns: Columns[str] = (
        ("request", lambda name: name),
        ("CPU us", lambda name: _figure(cost.median_us(name), 1)),
        (f"more than {first}", lambda name: _figure(cost.more_us(name, first), 1)),
    )
    return columns_table(title, columns, list(cost.cpu_us))


def _ratio(system: System, other: System | None, field: str) -> float | None:
    above, below = getattr(system, field), getattr(other, field, None)
    return above / below if above is not None and below else None


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _spread(system: System, field: str) -> str:
    rounds = system.spread.get(field)
    return f"{rounds.least:.3g}-{rounds.most:.3g}" if rounds is not None else ""

"""Cost of a request through Envoy and the endpoint picker, beside the agent alone and Envoy alone.

Run by `make bench-picker`. Agent and Envoy share the core of the router, so that rates and latencies of all rows are
those of one core; their CPU time is measured apart. Envoy has the shipped configuration
(`deploy/gateways/envoy-picker.yaml`), alone the same without the filter that asks the picker. A latency is of an open
loop, and the goals are those of the picker: what is added to Envoy alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory

import msgspec

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from lab.bench.compiled import COMPILED, Build
from lab.bench.cores import Cores, divide_cores, keep_to
from lab.bench.large_bodies import large_bodies
from lab.bench.process_cost import cpu_s, resident_bytes
from lab.bench.router.chat import MODEL, answer, requests_of
from lab.bench.router.contestant import BACKENDS, SLOTS, start_backends
from lab.bench.router.load import Load, Run
from lab.bench.router.rounds import clients
from lab.bench.site import agents_of, make_site, traffic_ports
from lab.envoy_picker import start_envoy_with_picker
from lab.open_files import allow_many_open_files
from lab.planet.topology import Engine
from lab.quantile import quantile

CONNECTIONS = 64
RATE_PER_S = 500.0
LARGE_BODY_BYTES = 400_000
LARGE_RATE_PER_S = 100.0
BESIDE_RATE_PER_S = 200.0
"""Rate of small requests beside large bodies."""
LOOKS = 8
"""Number of memory samples, evenly distributed over the requests of the memory check."""

GOALS = {
    "latency added to Envoy alone at 500/s, p50 (ms)": 1.0,
    "latency added to Envoy alone at 500/s, p99 (ms)": 4.0,
    "requests/s on one core, at least": 1500.0,
    "400 kB bodies at 100/s, cores of the agent": 0.5,
}


class Row(msgspec.Struct):
    """One way to the backends."""

    name: str
    port: int
    processes: Mapping[str, ServerProcess]
    """The processes whose CPU time is measured, by name."""


class Measured(msgspec.Struct):
    """The figures of one row."""

    name: str
    requests_per_s: float
    cpu_us_per_request: dict[str, float]
    paced_cpu_us_per_request: dict[str, float]
    """CPU time of a request at RATE_PER_S, where processes wake up for each message; what runs without requests
    included."""
    p50_ms: float
    p99_ms: float
    large_cores: dict[str, float]
    """Cores in use with bodies of LARGE_BODY_BYTES at LARGE_RATE_PER_S."""
    large_p50_ms: float
    beside_ms: dict[str, float]
    """p50 and p99 of small requests at BESIDE_RATE_PER_S, alone and beside large bodies."""
    errors: int


def measure(row: Row, seconds: float, warm_up_s: float) -> Measured:
    """Measure one row: throughput, latency at a fixed rate, and large bodies."""
    asks = requests_of(clients(), stream=False)
    load = Load(row.port, [asks[number % len(asks)] for number in range(CONNECTIONS)], answer())
    try:
        load.closed_loop(warm_up_s)
        before = _cpu(row)
        run = load.closed_loop(seconds)
        used = _since(row, before)
        before = _cpu(row)
        paced = load.fixed_rate(RATE_PER_S, seconds, Random(1))
        paced_used = _since(row, before)
        large = _padded(asks[0])
        large_bodies(row.port, large, LARGE_RATE_PER_S, warm_up_s)
        before = _cpu(row)
        heavy = large_bodies(row.port, large, LARGE_RATE_PER_S, seconds)
        heavy_used = _since(row, before)
        small = {"alone": load.fixed_rate(BESIDE_RATE_PER_S, seconds, Random(2))}
        with ThreadPoolExecutor(1) as others:
            beside = others.submit(large_bodies, row.port, large, LARGE_RATE_PER_S, seconds)
            small["beside"] = load.fixed_rate(BESIDE_RATE_PER_S, seconds, Random(2))
    finally:
        load.close()
    p50_s, p99_s = (quantile(paced.latencies_s, part) or 0.0 for part in (0.5, 0.99))
    return Measured(
        row.name,
        run.answers / run.seconds,
        _per_request(used, run),
        _per_request(paced_used, paced),
        p50_s * 1e3,
        p99_s * 1e3,
        {name: cpu / heavy.seconds for name, cpu in heavy_used.items()},
        (quantile(heavy.latencies_s, 0.5) or 0.0) * 1e3,
        {
            f"{name} {label}": (quantile(each.latencies_s, part) or 0.0) * 1e3
            for name, each in small.items()
            for label, part in (("p50", 0.5), ("p99", 0.99))
        },
        sum(each.errors for each in (run, paced, heavy, beside.result(), *small.values())),
    )


def memory_growth(row: Row, requests: int) -> dict[str, float]:
    """Return the bytes by which each process grows per request, from the second to the last quarter of `requests`."""
    asks = requests_of(clients(), stream=False)
    load = Load(row.port, [asks[number % len(asks)] for number in range(CONNECTIONS)], answer())
    seen: dict[str, list[int]] = {name: [] for name in row.processes}
    try:
        for _ in range(LOOKS):
            load.closed_loop(3600.0, max_answers=requests // LOOKS)
            for name, process in row.processes.items():
                seen[name].append(resident_bytes(process.pid))
    finally:
        load.close()
    quarter = LOOKS // 4
    return {
        name: (fmean(sizes[-quarter:]) - fmean(sizes[quarter : 2 * quarter])) / (requests / 2)
        for name, sizes in seen.items()
    }


def start_rows(directory: Path, cores: Cores, build: Build, running: ExitStack) -> list[Row]:
    """Start the backends, the agent, Envoy with its picker, and Envoy alone."""
    backend, ports = start_backends(directory)
    running.callback(backend.kill)
    engines = [Engine(f"backend-{number}", MODEL, "h100", "a", SLOTS) for number in range(BACKENDS)]
    listen = {engine.name: port for engine, port in zip(engines, ports, strict=True)}
    picker = free_ports(1)[0]
    build = msgspec.structs.replace(build, settings={"PENSTOCK_AGENT_PICKER_LISTEN": f"{LOOPBACK}:{picker}"})
    site = running.enter_context(make_site(engines, listen, 1, directory / "site", build, cores.router))
    agent = agents_of(site)[0]
    envoy, port = start_envoy_with_picker(directory / "envoy-picker", cores.router, picker, ports)
    running.callback(envoy.kill)
    alone, alone_port = start_envoy_with_picker(directory / "envoy", cores.router, None, ports)
    running.callback(alone.kill)
    return [
        Row("direct", ports[0], {}),
        Row("agent", traffic_ports(site)[0], {"agent": agent}),
        Row("envoy", alone_port, {"envoy": alone}),
        Row("envoy + picker", port, {"agent": agent, "envoy": envoy}),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code, 1 if requests failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median of each figure is reported")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    parser.add_argument("--requests", type=int, default=200_000, help="requests of the memory check; 0 for none")
    parser.add_argument("--compiled", type=Path, default=COMPILED, help="unpacked wheel; a missing folder: interpreted")
    parser.add_argument("--out", type=Path, default=Path("out/bench/picker.json"), help="file for the results")
    options = parser.parse_args(arguments)
    allow_many_open_files()
    cores = divide_cores()
    keep_to(cores.load)
    build = Build(options.compiled)
    found: dict[str, list[Measured]] = {}
    growth: dict[str, float] = {}
    with TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as running:
        rows = start_rows(Path(name), cores, build, running)
        for _ in range(options.rounds):
            for row in rows:
                found.setdefault(row.name, []).append(measure(row, options.seconds, 1.0))
        if options.requests:
            growth = memory_growth(rows[-1], options.requests)
    measured = [_median(each) for each in found.values()]
    report = {
        "build": build.form(),
        "load_average": os.getloadavg(),
        "rows": msgspec.to_builtins(measured),
        "grown_bytes_per_request": growth,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    _show(measured, growth, build)
    return 1 if any(each.errors for each in measured) else 0


def _show(measured: Sequence[Measured], growth: Mapping[str, float], build: Build) -> None:
    print(f"{build.form()}; load average {os.getloadavg()[0]:.1f}, of which this benchmark is about 2")
    for each in measured:
        large = ", ".join(f"{name} {cost:.2f}" for name, cost in each.large_cores.items()) or "-"
        cpu, paced = _shown(each.cpu_us_per_request), _shown(each.paced_cpu_us_per_request)
        print(
            f"{each.name:15} {each.requests_per_s:7.0f} requests/s; CPU/request (us): {cpu};"
            f" at {RATE_PER_S:.0f}/s: {paced}, p50 {each.p50_ms:.2f} ms, p99 {each.p99_ms:.2f} ms;"
            f" 400 kB at {LARGE_RATE_PER_S:.0f}/s, cores: {large}, p50 {each.large_p50_ms:.1f} ms;"
            f" small ones at {BESIDE_RATE_PER_S:.0f}/s without and with those (ms): {_ms(each.beside_ms)};"
            f" errors {each.errors}"
        )
    by_name = {each.name: each for each in measured}
    picker, alone, direct = by_name["envoy + picker"], by_name["envoy"], by_name["direct"]
    print(
        f"Envoy and picker add {picker.p50_ms - direct.p50_ms:.2f} ms (p50) and {picker.p99_ms - direct.p99_ms:.2f} ms"
        f" (p99) to a request without a router; the agent alone {by_name['agent'].p50_ms - direct.p50_ms:.2f} ms and"
        f" {by_name['agent'].p99_ms - direct.p99_ms:.2f} ms"
    )
    figures = (
        picker.p50_ms - alone.p50_ms,
        picker.p99_ms - alone.p99_ms,
        picker.requests_per_s,
        picker.large_cores["agent"],
    )
    for (goal, limit), figure in zip(GOALS.items(), figures, strict=True):
        is_met = figure >= limit if goal.endswith("at least") else figure <= limit
        print(f"{goal}: {figure:.2f} (goal {limit:g}): {'met' if is_met else 'NOT MET'}")
    for name, grown in growth.items():
        print(f"growth of {name}: {grown:.2f} bytes per request")


def _median(rounds: Sequence[Measured]) -> Measured:
    def of(values: Sequence[dict[str, float]]) -> dict[str, float]:
        return {name: median(each[name] for each in values) for name in values[0]}

    return Measured(
        rounds[0].name,
        median(each.requests_per_s for each in rounds),
        of([each.cpu_us_per_request for each in rounds]),
        of([each.paced_cpu_us_per_request for each in rounds]),
        median(each.p50_ms for each in rounds),
        median(each.p99_ms for each in rounds),
        of([each.large_cores for each in rounds]),
        median(each.large_p50_ms for each in rounds),
        of([each.beside_ms for each in rounds]),
        sum(each.errors for each in rounds),
    )


def _padded(request: bytes) -> bytes:
    """The request with a body of LARGE_BODY_BYTES."""
    _, _, body = request.partition(b"\r\n\r\n")
    at = body.rindex(b'"}]}')
    larger = body[:at] + b"x" * (LARGE_BODY_BYTES - len(body)) + body[at:]
    return (
        request[: -len(body)].replace(b"content-length: %d" % len(body), b"content-length: %d" % len(larger)) + larger
    )


def _shown(cpu_us: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {cost:.0f}" for name, cost in cpu_us.items()) or "-"


def _ms(latencies_ms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in latencies_ms.items())


def _per_request(used_s: Mapping[str, float], run: Run) -> dict[str, float]:
    return {name: cpu / max(1, run.answers) * 1e6 for name, cpu in used_s.items()}


def _cpu(row: Row) -> dict[str, float]:
    return {name: cpu_s(process.pid) for name, process in row.processes.items()}


def _since(row: Row, before: Mapping[str, float]) -> dict[str, float]:
    return {name: used - before[name] for name, used in _cpu(row).items()}


if __name__ == "__main__":
    sys.exit(main())

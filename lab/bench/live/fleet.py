"""The engines and the workload of the live benchmark, identical for every balancer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from adapters.servers.free_ports import free_ports
from adapters.servers.process import ServerProcess, find_script
from adapters.servers.readiness import http_ok
from lab.bench.site import REGION
from lab.geoip import SITES, ClientSite
from lab.planet.configs import engines_file, url, write_json
from lab.planet.topology import CHAT_8B, Engine, Region, Topology, engine_port
from lab.replay.replay_workload import PlannedRequest, Sender, plan_requests
from lab.server_starting import PORT_TRIES, start_server
from lab.traces.shape import cap_tokens, compress_time, first_seconds, scale_rate
from lab.traces.trace import TraceError, TraceRequest

MODEL = CHAT_8B

ACCELERATORS = ("h100", "a100", "l40s")
"""Accelerators of several generations, as in real fleets: an L40S takes about 3.5 times as long per token as an
H100."""

MAX_NUM_SEQS = 6
"""Maximum number of running requests of every engine; low, as in deployments for low latency, and so that each of three
instances sees only a small part of the load of an engine."""

SOURCE_S = 1800.0
"""Length (s) of the trace from which the workload is drawn."""

MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 8_000, 1_000

INSTANCES = 3
"""Maximum number of instances of a balancer. Clients are assigned to instances by site."""

CLIENT_SITES: tuple[ClientSite, ...] = tuple(
    msgspec.structs.replace(site, share=1.0) for site in SITES if site.country in ("DE", "FR", "NL")
)[:INSTANCES]
"""One site per instance, all with an equal share of clients."""


class Engines(msgspec.Struct, frozen=True):
    """Running engines."""

    engines: tuple[Engine, ...]
    ports: dict[str, int]
    """Port by name of the engine."""
    process: ServerProcess


def engines_of(
    each: int, model: str = MODEL, max_num_seqs: int = MAX_NUM_SEQS, pace_of: str = ""
) -> tuple[Engine, ...]:
    """Return `each` engines of every accelerator type; the other arguments are fields of `Engine`."""
    return tuple(
        Engine(f"{accelerator}-{number}", model, accelerator, f"zone-{number}", max_num_seqs, pace_of)
        for accelerator in ACCELERATORS
        for number in range(1, each + 1)
    )


def start_engines(engines: Sequence[Engine], time_scale: float, directory: Path) -> Engines:
    """Start engines with empty prefix caches. The caller must kill the process.

    Raises:
        ServerError: the engines do not become ready.
    """
    topology = Topology((Region(REGION, "", (), tuple(engines)),), (), (), time_scale)
    listen: dict[str, int] = {}

    def make() -> ServerProcess:
        listen.update(zip((engine.name for engine in engines), free_ports(len(engines)), strict=True))
        ports = {engine_port(REGION, name): port for name, port in listen.items()}
        file = engines_file(topology, topology.regions[0], ports, directory / "witness")
        config = write_json(directory / "engines.yaml", file)
        checks = [http_ok(f"{url(port)}/health") for port in listen.values()]
        return ServerProcess(
            "engines",
            [find_script("penstock-lab"), "engines", "--config", str(config)],
            log_path=directory / "engines.log",
            ready=lambda: all(check() for check in checks),
            ports=list(listen.values()),
        )

    process = start_server(make, tries=PORT_TRIES, timeout_s=30.0)
    return Engines(tuple(engines), listen, process)


def at_rate(
    source: Sequence[TraceRequest], file: Path, rate_per_s: float, seconds: float, rng: Random
) -> list[TraceRequest]:
    """Return `seconds` of a trace at another rate, with lengths capped to the smallest engine; in the trace's time.

    Raises:
        TraceError: the trace of `file` is too short.
    """
    span_s = source[-1].at_s
    if span_s < seconds:
        remedy = "give a longer trace or fewer --seconds"
        raise TraceError(file, f"lasts {span_s:.0f} s of {seconds:.0f} s", remedy)
    factor = rate_per_s / (len(source) / span_s)
    scaled = _stretch(scale_rate(source, factor, span_s, rng), seconds, rate_per_s)
    return cap_tokens(scaled, MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS)


def plan_for_clients(
    requests: Sequence[TraceRequest], model: str, time_scale: float, rng: Random
) -> list[PlannedRequest]:
    """Assign requests to clients of all sites, `time_scale` times as fast."""
    senders = [Sender("open", "demo-open", model)]
    return plan_requests(compress_time(requests, time_scale), CLIENT_SITES, senders, lambda site, sender: (), 0.0, rng)


def _stretch(trace: Sequence[TraceRequest], seconds: float, rate_per_s: float) -> list[TraceRequest]:
    """Return `seconds` of the trace, the part whose mean rate is nearest to `rate_per_s`."""
    times_s = [request.at_s for request in trace]

    def miss(start: int) -> float:
        arrivals = bisect_left(times_s, start + seconds) - bisect_left(times_s, start)
        return abs(arrivals - rate_per_s * seconds)

    best = min(range(0, int(times_s[-1] - seconds) + 1, max(1, int(seconds / 4))), key=miss)
    moved = [msgspec.structs.replace(request, at_s=request.at_s - best) for request in trace if request.at_s >= best]
    return first_seconds(moved, seconds)

"""One run of the live benchmark: newly started engines, the instances of one balancer, a workload and its outcome."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from statistics import fmean

import msgspec
import uvloop

from lab.bench.compiled import Build
from lab.bench.live.engine_use import EngineUse, EngineWatch
from lab.bench.live.fleet import CLIENT_SITES, Engines, start_engines
from lab.bench.peers.peer import Peer
from lab.bench.peers.running import start_peer
from lab.bench.site import make_site, traffic_ports
from lab.planet.bundle import demo_bundle, load_bundle, matrix_of, write_bundle
from lab.planet.configs import url
from lab.planet.topology import Engine
from lab.quantile import quantile
from lab.replay.client import Patience
from lab.replay.entry import Entry
from lab.replay.outcome import Outcome, OutcomeKind
from lab.replay.replay_workload import PlannedRequest
from lab.replay.replayer import Replayer

PATIENCE = Patience(first_byte_s=60.0)
"""Long timeouts, so that defects of a balancer appear as latency, not as errors."""

DRAIN_S = 60.0

START_S = 1.0
"""Time (s) between the start of the replay and its first request, for health checks."""

NOT_SERVED_S = 120.0
"""Time (s of the modelled hardware) that a refused or failed request counts as in a mean."""

EMBEDDINGS_FILE = Path(__file__).with_name("embeddings.yaml")


class Setup(msgspec.Struct, frozen=True):
    """The balancer and the number of its instances."""

    balancer: Peer | None
    """None for Penstock."""
    instances: int


class Times(msgspec.Struct, frozen=True):
    """Mean and quantiles of a time of all requests (s of the modelled hardware). A refused or failed request has an
    infinite time, so that a balancer does not gain from rejecting slow requests. None is infinite."""

    mean_s: float | None
    """Mean, with NOT_SERVED_S for each request that was not served; None without requests."""
    p50_s: float | None
    p99_s: float | None
    p999_s: float | None


class LiveRun(msgspec.Struct, frozen=True):
    """Results of one run, after the warm-up."""

    requests: int
    ok: int
    refused: int
    failed: int
    codes: dict[str, int]
    """Number of refused and failed requests by code."""
    ttft: Times | None
    """Time to first token; None if responses are not streamed."""
    tpot: Times | None
    """Time per token after the first; None if responses are not streamed."""
    e2e: Times
    use: EngineUse
    lag_p99_ms: float
    """Lag of the replayer itself in wall-clock time; large values mean that the machine was too busy."""


def contest(
    setup: Setup,
    engines: Sequence[Engine],
    workload: Sequence[PlannedRequest],
    time_scale: float,
    warm_up_s: float,
    directory: Path,
) -> LiveRun:
    """Execute one run.

    Args:
        setup: the balancer and the number of its instances.
        engines: engines to start.
        workload: requests, with wall-clock times.
        time_scale: speed of the engines relative to the modelled hardware.
        warm_up_s: wall-clock time (s) before which neither requests nor the use of engines are counted.
        directory: directory for all files; must be empty.

    Raises:
        ServerError: a process does not start; MissingBinary if the balancer is not installed.
    """
    running = start_engines(engines, time_scale, directory)
    try:
        with running_balancers(setup, running.engines, running.ports, directory) as ports:
            outcomes, use = uvloop.run(_replay(workload, ports, running, warm_up_s))
    finally:
        running.process.kill()
    counted = [outcome for outcome in outcomes if outcome.scheduled_s >= warm_up_s]
    return judge(counted, use, time_scale, streamed=workload[0].image is None and not workload[0].embedding)


@contextmanager
def running_balancers(
    setup: Setup, engines: Sequence[Engine], engine_ports: Mapping[str, int], directory: Path
) -> Iterator[list[int]]:
    """Run the instances of the balancer during the context, in front of running engines, and yield their ports."""
    if setup.balancer is None:
        bundle = directory / "policy"
        files = demo_bundle(matrix_of(load_bundle()))
        write_bundle(bundle, files | {EMBEDDINGS_FILE.name: EMBEDDINGS_FILE.read_text(encoding="utf-8")})
        build = Build(bundle=bundle)
        with make_site(engines, engine_ports, setup.instances, directory / "penstock", build) as site:
            yield traffic_ports(site)
        return
    with ExitStack() as up:
        ports = []
        for number in range(setup.instances):
            process = start_peer(setup.balancer, directory / f"instance-{number}", list(engine_ports.values()))
            up.callback(process.stop)
            ports.append(process.port)
        yield ports


async def _replay(
    workload: Sequence[PlannedRequest], ports: Sequence[int], running: Engines, warm_up_s: float
) -> tuple[list[Outcome], EngineUse]:
    outcomes: list[Outcome] = []
    entries = {
        site.name: [Entry(site.name, url(ports[number % len(ports)]))] for number, site in enumerate(CLIENT_SITES)
    }
    replayer = Replayer(workload, entries, PATIENCE, outcomes.append)
    watch = EngineWatch([url(port) for port in running.ports.values()], running.engines[0].max_num_seqs)
    began_s = time.monotonic() + START_S
    ends_s = began_s + workload[-1].at_s

    async def watch_while_sending() -> None:
        await asyncio.sleep(began_s + warm_up_s - time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + ends_s - time.monotonic()):
                await watch.watch()

    watching = asyncio.create_task(watch_while_sending())
    await replayer.run(DRAIN_S, began_s)
    await watching
    return outcomes, await watch.use()


def judge(outcomes: Sequence[Outcome], use: EngineUse, time_scale: float, *, streamed: bool = True) -> LiveRun:
    """Compute the results of a run from its counted outcomes; `streamed`: whether responses were streamed."""
    by_kind = Counter(outcome.kind for outcome in outcomes)
    not_served = Counter(outcome.code or "unnamed" for outcome in outcomes if outcome.kind is not OutcomeKind.OK)
    served = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.OK]
    others = len(outcomes) - len(served)
    return LiveRun(
        requests=len(outcomes),
        ok=by_kind[OutcomeKind.OK],
        refused=by_kind[OutcomeKind.REFUSED],
        failed=by_kind[OutcomeKind.FAILED],
        codes=dict(not_served),
        ttft=_times([outcome.ttft_s or 0.0 for outcome in served], others, time_scale) if streamed else None,
        tpot=_times([tpot for o in served if (tpot := _tpot_s(o)) is not None], others, time_scale)
        if streamed
        else None,
        e2e=_times([outcome.e2e_s for outcome in served], others, time_scale),
        use=use,
        lag_p99_ms=round((quantile([outcome.lag_s for outcome in outcomes], 0.99) or 0.0) * 1e3, 1),
    )


def _tpot_s(outcome: Outcome) -> float | None:
    """Time (s) per token after the first; None with fewer than two tokens."""
    if outcome.first_token_s is None or outcome.tokens < 2:
        return None
    return (outcome.end_s - outcome.first_token_s) / (outcome.tokens - 1)


def _times(served_s: Sequence[float], not_served: int, time_scale: float) -> Times:
    times_s = [time_s * time_scale for time_s in served_s] + [inf] * not_served

    def at(part: float) -> float | None:
        value = quantile(times_s, part)
        return None if value is None or value == inf else round(value, 5)

    mean_s = round(fmean(NOT_SERVED_S if time_s == inf else time_s for time_s in times_s), 5) if times_s else None
    return Times(mean_s, at(0.5), at(0.99), at(0.999))

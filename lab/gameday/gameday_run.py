"""Runs game days: starts a fleet, injects the faults one at a time under load, and collects the facts of each day."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import msgspec
from rich.console import Console

from lab.bench.bench_results import write_results
from lab.bench.process_cost import resident_bytes
from lab.demo.clients import as_served, entries_of
from lab.demo.demo_fleet import demo_fleet
from lab.demo.demo_workload import Ask, plan_requests, requests_wanted, steadiest_stretch
from lab.demo.findings import Finding, Measured, print_findings
from lab.demo.inputs import GENERATED_S, RATE_PER_S, DemoInputs, gather
from lab.demo.records import Served
from lab.demo.scenario import full_scenario
from lab.demo.witness_watch import WitnessWatch
from lab.gameday.credential_faults import clocks as faked_clocks
from lab.gameday.day_verdict import EMPTY_WITHIN_S, RECOVERED_WITHIN_S, Day, judge
from lab.gameday.fault import Fault
from lab.gameday.fault_catalogue import gameday_planet
from lab.planet.bundle import without_stages
from lab.planet.fleet_watch import FleetWatch
from lab.planet.planet import Planet
from lab.replay.replayer import Replayer
from lab.traces.generate import generate

BEFORE_S, FAULT_S, AFTER_S = 6.0, 12.0, 14.0
"""Durations (s) of the load before, during and after the fault. The restart of a region takes some of the last."""

HEAD_START_S = 0.5
DRAIN_S = 30.0
"""Time (s) allowed for the last requests after the schedule ends."""


class DayResult(msgspec.Struct, frozen=True):
    """The result of one game day."""

    fault: str
    what: str
    findings: tuple[Finding, ...]
    requests: int
    memory_mib: dict[str, float] = {}
    """Resident memory (MiB) of each agent and control plane after the day, by process."""

    @property
    def passed(self) -> bool:
        """Whether every expectation was met."""
        return all(finding.passed for finding in self.findings)


def conclude(results: Sequence[DayResult], out: Path, console: Console, verdict: str) -> bool:
    """Write report.json into `out`, print the verdict, and return whether every fault had the expected outcome.

    Args:
        verdict: text for a run in which every fault had it.
    """
    write_report(results, out / "report.json")
    failed = [result.fault for result in results if not result.passed]
    said = f"not as expected: {', '.join(failed)}" if failed else verdict
    console.print(f"{said}; {out}/report.json", highlight=False, soft_wrap=True)
    return not failed


def write_report(results: Sequence[DayResult], path: Path) -> None:
    """Write the results as JSON."""
    days = [{**msgspec.to_builtins(result), "passed": result.passed} for result in results]
    write_results(path, {"passed": bool(days) and all(day["passed"] for day in days), "days": days})


async def run_gamedays(
    faults: Iterable[Fault], out: Path, seed: int, console: Console, clocks: Collection[str] = ()
) -> list[DayResult]:
    """Run game days on one fleet, one at a time. On return, every process that was started has exited.

    Args:
        faults: each fault is taken from the iterator after the previous day.
        out: directory of the logs.
        seed: seed of the workload.
        console: prints the progress.
        clocks: the processes whose clocks the faults may change.

    Raises:
        ServerError: a program is missing, or a process does not become ready.
    """
    rng = Random(seed)
    inputs = gather(None, None, None, 1.0, rng)
    asks = _load(inputs, rng)
    # A day that changes the policy must not wait for canary regions, or be rolled back for the errors that it causes.
    topology, bundle = gameday_planet(inputs.topology), without_stages(inputs.bundle)
    inputs = msgspec.structs.replace(inputs, topology=topology, bundle=bundle)
    environments = partial(faked_clocks, processes=clocks) if clocks else None
    async with demo_fleet(inputs, out / "logs", environments=environments) as planet:
        console.print("starting the fleet", highlight=False)
        await asyncio.to_thread(planet.start)
        results = []
        for number, fault in enumerate(faults, 1):
            console.print(f"{fault.name}: {fault.what}", highlight=False)
            day = await _run_day(fault, planet, _named(f"{number}-{fault.name}", asks))
            result = DayResult(fault.name, fault.what, judge(fault, day), len(day.served), resident_mib(planet))
            print_findings(console, result.findings)
            results.append(result)
        return results


async def _run_day(fault: Fault, planet: Planet, asks: Sequence[Ask]) -> Day:
    named = {ask.planned.id: ask for ask in asks}
    served: list[Served] = []
    replayer = Replayer(
        [ask.planned for ask in named.values()],
        entries_of(planet.topology, planet.ports),
        on_outcome=lambda outcome: served.append(as_served(outcome, named[outcome.id])),
    )
    head_start_s = HEAD_START_S
    if fault.prepare is not None:
        head_start_s = await asyncio.to_thread(fault.prepare, planet) - BEFORE_S
    zero = time.monotonic() + head_start_s
    witness = WitnessWatch(planet.witness_dir, time.time() + head_start_s)
    watch = FleetWatch(planet, lambda: time.monotonic() - zero)
    watching = asyncio.create_task(watch.run())
    try:
        async with asyncio.TaskGroup() as group:
            injection = group.create_task(_inject(fault, planet, zero))
            await replayer.run(DRAIN_S, zero)
        from_s, to_s, measured = injection.result()
        if fault.conclude is not None:
            measured = await asyncio.to_thread(fault.conclude)
        ended_s = time.monotonic() - zero
        await asyncio.sleep(max(0.0, to_s + RECOVERED_WITHIN_S - (time.monotonic() - zero), EMPTY_WITHIN_S))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await witness.read()
    return Day(
        from_s=from_s,
        to_s=to_s,
        ended_s=ended_s,
        served=tuple(served),
        sightings=tuple(sighting for sighting in witness.sightings if sighting.id in named),
        started=await witness.started(),
        looks=tuple(watch.looks),
        died=tuple(await asyncio.to_thread(planet.unexpected_exits)),
        measured=measured,
    )


async def _inject(fault: Fault, planet: Planet, zero: float) -> tuple[float, float, Measured | None]:
    """Inject and end the fault; return the times (s) of its begin and end, and its measurement."""
    await asyncio.sleep(max(0.0, zero + BEFORE_S - time.monotonic()))
    from_s = time.monotonic() - zero
    lift = await asyncio.to_thread(fault.inject, planet)
    try:
        await asyncio.sleep(FAULT_S)
    finally:
        measured = await asyncio.to_thread(lift)
    return from_s, time.monotonic() - zero, measured


def _load(inputs: DemoInputs, rng: Random) -> list[Ask]:
    """Return the demand of the demo without its surge, for the duration of a day."""
    scenario = full_scenario(inputs.scenario.surge_region, 1.0, inputs.scenario.lost_region)
    wanted = requests_wanted(inputs.topology, scenario, RATE_PER_S)
    trace = steadiest_stretch(generate(GENERATED_S, rng), wanted)
    asks = plan_requests(trace, inputs.topology, scenario, inputs.matrix, rng)
    return [ask for ask in asks if ask.planned.at_s < BEFORE_S + FAULT_S + AFTER_S]


def _named(day: str, asks: Sequence[Ask]) -> list[Ask]:
    """Return the requests with ids prefixed by the name of the day."""
    return [Ask(msgspec.structs.replace(ask.planned, id=f"{day}-{ask.planned.id}"), ask.home) for ask in asks]


def resident_mib(planet: Planet) -> dict[str, float]:
    """Return the resident memory (MiB) of every running agent and control plane."""
    return {
        name: resident_bytes(process.pid) / 2**20
        for name, process in planet.processes().items()
        if name.startswith(("agent ", "control plane ")) and process.alive
    }

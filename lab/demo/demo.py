"""Runs a demo: reads the inputs, starts the fleet, runs the scenario, checks the run, writes the report, stops."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from rich.console import Console

from lab.demo.demo_fleet import demo_fleet
from lab.demo.demo_report import Setting, build_report, unanswered, write_report
from lab.demo.findings import Finding, print_findings
from lab.demo.inputs import DemoInputs, gather
from lab.demo.kept_fleet.light_load import run_light_load
from lab.demo.kept_fleet.listing import print_listing, print_page
from lab.demo.output_dir import NEEDED_BYTES, check_space, lock_output_dir
from lab.demo.page.page import render_page
from lab.demo.records import Run
from lab.demo.screen import Screen
from lab.demo.story import Story
from lab.demo.verdict import judge
from lab.planet.planet import Planet


class Options(msgspec.Struct, frozen=True):
    """Options of `penstock-lab demo`."""

    trace: Path | None
    geoip: Path | None
    rtt: Path | None
    keep: bool
    out: Path
    port_base: int | None
    pace: float
    seed: int


async def run_demo(options: Options, console: Console) -> bool:
    """Run the demo and return whether every check passed. On return, every process that it started has exited.

    Raises:
        TraceError, GeoDatabaseError, MatrixError, PolicyRefused: an input file is invalid; no process was started.
        ServerError: a program is missing, a port is in use, a process does not become ready, the output directory is
            not writable or in use by another run, or the disk has too little free space.
    """
    began = time.monotonic()
    inputs = gather(options.trace, options.geoip, options.rtt, options.pace, Random(options.seed))
    with lock_output_dir(options.out):
        check_space(Path(tempfile.gettempdir()), NEEDED_BYTES)
        return await _run(options, console, inputs, began)


async def _run(options: Options, console: Console, inputs: DemoInputs, began: float) -> bool:
    async with demo_fleet(inputs, options.out / "logs", port_base=options.port_base) as planet:
        screen = Screen(console)
        await _start(planet, screen)
        print_page(planet, console)
        started_s = time.monotonic() - began
        run = await Story(planet, inputs, screen).run()
        findings = judge(run)
        report = build_report(run, findings, _setting(inputs, started_s))
        write_report(report, options.out / "report.json")
        page = await asyncio.to_thread(render_page, report, run)
        (options.out / "report.html").write_text(page, encoding="utf-8")
        _print_verdict(console, findings, run, options.out)
        if options.keep:
            await _keep(planet, console, Random(options.seed))
        return bool(report["passed"])


async def _start(planet: Planet, screen: Screen) -> None:
    loop = asyncio.get_running_loop()
    steps = 2 * len(planet.processes()) + len(planet.admin_urls())
    done = 0

    def progress(step: str) -> None:
        nonlocal done
        done += 1
        loop.call_soon_threadsafe(screen.starting, done, steps)

    await asyncio.to_thread(planet.start, progress)


async def _keep(planet: Planet, console: Console, rng: Random) -> None:
    """Restart the processes that the scenario killed, list all addresses, and send a light load until Ctrl-C."""
    await asyncio.to_thread(planet.restart_killed)
    print_listing(planet, console)
    try:
        await run_light_load(planet, rng)
    except asyncio.CancelledError:
        # Ctrl-C ends --keep; the exit code still reports the checks.
        console.print("stopping the fleet")


def _setting(inputs: DemoInputs, started_s: float) -> Setting:
    topology, policy = inputs.topology, inputs.policy
    regions: list[dict[str, Any]] = [
        {
            "name": region.name,
            "city": region.city,
            "latitude_deg": policy.regions[region.name].latitude_deg,
            "longitude_deg": policy.regions[region.name].longitude_deg,
            "agents": len(region.agents),
            "engines": [msgspec.to_builtins(engine) for engine in region.engines],
        }
        for region in topology.regions
    ]
    return Setting(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=inputs.workload,
        geography=inputs.geography,
        network=inputs.network,
        regions=tuple(regions),
        sites=tuple(msgspec.to_builtins(site) for site in topology.sites),
        environment={
            "Machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
            "Python": platform.python_version(),
            "Engines": f"modelled hardware at {topology.time_scale:g} times its speed",
            "Start": f"{started_s:.1f} s until the whole planet served",
            "Policy digest": policy.digest()[:16],
        },
    )


def _print_verdict(console: Console, findings: Sequence[Finding], run: Run, out: Path) -> None:
    print_findings(console, findings)
    failed = sum(not found.passed for found in findings)
    verdict = "[bold green]every promise was kept[/]" if not failed else f"[bold red]{failed} checks failed[/]"
    counts = f"{len(run.served)} chats, {len(run.images)} images"
    console.print(f"{verdict}; {counts}; {out}/report.html", highlight=False, soft_wrap=True)
    for text in unanswered(run):
        console.print(text, highlight=False, markup=False, soft_wrap=True)

"""Runs a demo: reads the inputs, starts the fleet, runs the scenario, checks the run, writes the report, stops."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from rich.console import Console

from lab.demo.demo_report import Setting, build_report, write_report
from lab.demo.inputs import DemoInputs, gather
from lab.demo.listing import print_listing, print_page
from lab.demo.output_dir import NEEDED_BYTES, check_space, lock_output_dir
from lab.demo.page.page import render_page
from lab.demo.records import Run
from lab.demo.screen import Screen, make_screen
from lab.demo.story import Story
from lab.demo.verdict import Check, judge
from lab.geoip import write_geoip
from lab.planet.bundle import write_bundle
from lab.planet.planet import Planet
from lab.planet.planet_ports import assign_ports
from lab.planet.topology import IMAGE_MODEL


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
    logs = options.out / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    planet = None
    try:
        planet = _planet(options, inputs, directory, logs)
        with make_screen(console, inputs.topology.region_names, inputs.scenario.duration_s) as screen:
            await _start(planet, screen)
            print_page(planet, console, directory)
            started_s = time.monotonic() - began
            ramp_s = inputs.policy.failover.failback_ramp_s
            megapixel_step_s = inputs.policy.models[IMAGE_MODEL].cost.output_unit_s
            story = Story(planet, inputs.scenario, inputs.asks, screen, ramp_s, megapixel_step_s)
            run = await story.run()
        checks = judge(run)
        report = build_report(run, checks, _setting(inputs, started_s))
        write_report(report, options.out / "report.json")
        page = await asyncio.to_thread(render_page, report, run)
        (options.out / "report.html").write_text(page, encoding="utf-8")
        _print_verdict(console, checks, run, options.out)
        if options.keep:
            await _keep(planet, console, directory)
        return bool(report["passed"])
    finally:
        if planet is not None:
            await asyncio.shield(asyncio.to_thread(planet.stop))
        shutil.rmtree(directory, ignore_errors=True)


def _planet(options: Options, inputs: DemoInputs, directory: Path, logs: Path) -> Planet:
    ports = assign_ports(inputs.topology.port_names(), options.port_base, Random())
    write_bundle(directory / "policy", inputs.bundle)
    geoip_file = options.geoip
    if geoip_file is None:
        geoip_file = directory / "sites.mmdb"
        write_geoip(geoip_file)
    return Planet(
        inputs.topology,
        ports,
        inputs.matrix,
        directory=directory,
        logs=logs,
        policy_dir=directory / "policy",
        geoip_file=geoip_file.resolve(),
    )


async def _start(planet: Planet, screen: Screen) -> None:
    loop = asyncio.get_running_loop()
    steps = 2 * len(planet.processes()) + len(planet.admin_urls())
    done = 0

    def progress(step: str) -> None:
        nonlocal done
        done += 1
        loop.call_soon_threadsafe(screen.starting, step, done, steps)

    await asyncio.to_thread(planet.start, progress)


async def _keep(planet: Planet, console: Console, directory: Path) -> None:
    """Restart the processes that the scenario killed, list all addresses, and wait for Ctrl-C."""
    await asyncio.to_thread(planet.restart_killed)
    print_listing(planet, console, directory)
    try:
        await asyncio.Event().wait()
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


def _print_verdict(console: Console, checks: Sequence[Check], run: Run, out: Path) -> None:
    for check in checks:
        mark = "[green]✓[/]" if check.passed else "[bold red]✗[/]"
        console.print(mark, f"[bold]{check.name}[/]", highlight=False, end=": ")
        console.print(check.says, highlight=False, markup=False, soft_wrap=True)
    failed = sum(not check.passed for check in checks)
    verdict = "[bold green]every promise was kept[/]" if not failed else f"[bold red]{failed} checks failed[/]"
    console.print(
        f"{verdict}; {len(run.served)} chats, {len(run.images)} images; {out}/report.html",
        highlight=False,
        soft_wrap=True,
    )

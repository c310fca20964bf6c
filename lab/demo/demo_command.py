"""`penstock-lab demo`: options, their errors, and the exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from control_plane.policy.bundle_errors import PolicyRefused
from lab.demo.demo import Options, run_demo
from lab.geoip import GeoDatabaseError
from lab.open_files import allow_many_open_files
from lab.refusal import refuse
from lab.servers.errors import ServerError
from lab.traces.trace import TraceError
from lab.wan.matrix import MatrixError

INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""

MIN_PACE = 0.6


def demo(
    trace: Annotated[Path | None, typer.Option(help="Replay a real trace: Azure CSV or Mooncake JSONL.")] = None,
    geoip: Annotated[Path | None, typer.Option(help="Place clients by this MaxMind City database.")] = None,
    rtt: Annotated[Path | None, typer.Option(help="Measured round trips between regions: from,to,rtt_ms.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the fleet running until Ctrl-C and list its addresses.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Directory of report.json, report.html and the logs.")] = Path("out/demo"),
    port_base: Annotated[int | None, typer.Option(min=1024, max=65_535, help="First of the fleet's ports.")] = None,
    pace: Annotated[float, typer.Option(min=MIN_PACE, max=3, help="Factor of the scenario's duration.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 2026,
) -> None:
    """Run a fleet through a surge and failures, show it live, write a report. Exit code 0: every promise was kept."""
    allow_many_open_files()
    options = Options(trace, geoip, rtt, keep, out, port_base, pace, seed)
    try:
        passed = uvloop.run(_interruptible(options))
    except (TraceError, GeoDatabaseError, MatrixError, ServerError, OSError) as error:
        refuse("demo", str(error))
    except PolicyRefused as refused:
        refuse("demo", str(refused.errors[0]))
    except asyncio.CancelledError:
        print("penstock-lab demo: interrupted; everything that was started has been stopped", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(0 if passed else 1)


async def _interruptible(options: Options) -> bool:
    """Run the demo; Ctrl-C and SIGTERM stop it and everything that it started."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(run_demo(options, Console()))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    return await running

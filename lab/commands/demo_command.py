"""The command `penstock-lab demo`: its options, errors and exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from adapters.servers.errors import ServerError
from control_plane.policy.bundle_errors import PolicyRefused
from lab.demo.demo import Options, run_demo
from lab.geoip import GeoDatabaseError
from lab.open_files import allow_many_open_files
from lab.refusal import refuse
from lab.traces.trace import TraceError
from lab.wan.matrix import MatrixError

INTERRUPTED = 130
"""Exit code after SIGINT: 128 plus the number of the signal."""

MIN_PACE = 0.6


def demo(
    trace: Annotated[Path | None, typer.Option(help="Recorded trace to replay: Azure CSV or Mooncake JSONL.")] = None,
    geoip: Annotated[Path | None, typer.Option(help="MaxMind City database that places clients.")] = None,
    rtt: Annotated[Path | None, typer.Option(help="CSV file of measured round trips: from,to,rtt_ms.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the fleet running until Ctrl-C and list its addresses.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Directory of report.json, report.html and the logs.")] = Path("out/demo"),
    port_base: Annotated[int | None, typer.Option(min=1024, max=65_535, help="First port of the fleet.")] = None,
    pace: Annotated[float, typer.Option(min=MIN_PACE, max=3, help="Factor for the durations of the scenario.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 2026,
) -> None:
    """Run a fleet through a surge and failures, and write a report. Exit code 0: every check passed."""
    allow_many_open_files()
    options = Options(trace, geoip, rtt, keep, out, port_base, pace, seed)
    try:
        passed = uvloop.run(_interruptible(options))
    except (TraceError, GeoDatabaseError, MatrixError, ServerError, OSError) as error:
        refuse("demo", str(error))
    except PolicyRefused as refused:
        refuse("demo", str(refused.errors[0]))
    except asyncio.CancelledError:
        print("penstock-lab demo: interrupted; every process of the fleet was stopped", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(0 if passed else 1)


async def _interruptible(options: Options) -> bool:
    """Run the demo; SIGINT and SIGTERM stop the demo and every process that it started."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(run_demo(options, Console()))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    return await running

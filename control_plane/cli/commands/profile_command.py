"""`penstock profile`: what access logs show of a workload, and the slots and reserve that it would need."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from adapters.files.plain_file import open_plain_file
from control_plane.cli.error_output import UsageFault, exit_on_error, print_error
from control_plane.cli.output import Output, OutputOption, print_as, table_of
from penstock.what_if.log_profile import LoggedRequest, LogProfiler, Profile, TooMuch

MAX_LINE_BYTES = 1 << 20
MAX_SHOWN = 10
"""Maximum number of models and of tenants in the table."""


def profile(
    logs: Annotated[list[Path], typer.Argument(help="Access logs of agents, also as .gz.", show_default=False)],
    output: OutputOption = Output.TABLE,
) -> None:
    """Show arrivals, cost, mix, concurrency and prefix reuse of logged requests, and propose slots and a reserve.

    Lines that are no records are skipped and counted.
    """
    with exit_on_error("profile"):
        profiler, invalid, first = LogProfiler(), 0, ""
        decoder = msgspec.json.Decoder(LoggedRequest)
        try:
            for where, line in _lines(logs):
                try:
                    profiler.add(decoder.decode(line))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    invalid += 1
                    first = first or f"{where}: {error}"
        except TooMuch as much:
            raise UsageFault(str(much)) from None
        found = profiler.profile()
        if invalid:
            print_error("profile", f"{invalid} lines are no records of an access log; the first is {first}")
        if not found.requests:
            raise UsageFault("the logs have no request of a client; give the access logs of agents (access_log_file)")
        print_as(output, found, lambda: _view(found))


def _lines(logs: list[Path]) -> Iterator[tuple[str, bytes]]:
    for path in logs:
        try:
            with open_plain_file(path) as plain:
                file = gzip.GzipFile(fileobj=plain) if path.suffix == ".gz" else plain
                number = 0
                while line := file.readline(MAX_LINE_BYTES):
                    number += 1
                    if line.strip():
                        yield f"{path}:{number}", line
        except (OSError, EOFError, zlib.error) as error:
            raise UsageFault(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _view(found: Profile) -> RenderableType:
    begins, ends = (
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S") for at in (found.begins_at, found.ends_at)
    )
    head = Text(f"{found.requests} requests from {begins} to {ends} UTC: {found.per_s:.2f} /s on average, ")
    head.append(f"{found.per_s_p99:.2f} /s in the busiest minute of 100, {found.per_s_max:.2f} /s at most")
    if found.forwarded:
        head.append(f"\n{found.forwarded} lines about forwarded requests are left out; their origins have them")
    mixes = [_mix("Outcomes", found.outcomes), _mix("Models", found.models), _mix("Tenants", found.tenants)]
    return Group(head, _distributions(found), *mixes, _pools(found), _proposals(found))


def _digits(value: float) -> str:
    return f"{value:.4g}" if value < 10_000.0 else f"{value:.0f}"


def _distributions(found: Profile) -> Table:
    numbers = ("requests", "mean", "p50", "p90", "p99")
    table = table_of("of complete responses", *numbers, title="Cost", right=numbers)
    for name, each in found.distributions.items():
        table.add_row(name, str(each.count), *map(_digits, (each.mean, each.p50, each.p90, each.p99)))
    return table


def _mix(title: str, counts: dict[str, int]) -> Table:
    table, total = table_of("name", "requests", "share", title=title, right=("requests", "share")), sum(counts.values())
    for name, count in list(counts.items())[:MAX_SHOWN]:
        table.add_row(name, str(count), f"{count / total:.1%}")
    if (rest := sum(list(counts.values())[MAX_SHOWN:])) > 0:
        table.add_row(f"{len(counts) - MAX_SHOWN} more", str(rest), f"{rest / total:.1%}")
    return table


def _pools(found: Profile) -> Table:
    numbers = ("mean", "p99", "slots")
    table = table_of("region", "model", *numbers, title="Concurrent requests, and slots for them", right=numbers)
    for pool in found.pools:
        table.add_row(pool.region, pool.model, f"{pool.mean:.1f}", f"{pool.p99:.1f}", str(pool.slots))
    return table


def _proposals(found: Profile) -> Table:
    numbers = ("slots", "reserve", "prefix reuse")
    table = table_of("model", *numbers, "for the loss of", title="Proposed slots and reserve", right=numbers)
    for each in found.proposals:
        reuse = "-" if each.prefix_reuse is None else f"{each.prefix_reuse:.0%}"
        table.add_row(each.model, str(each.slots), str(each.reserve), reuse, each.lost)
    return table

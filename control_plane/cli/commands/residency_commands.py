"""`penstock residency`: prove from access logs where requests were processed."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error, print_error
from control_plane.cli.output import Output, OutputOption, print_json, print_view, table_of
from penstock.records.record_chain import DIGEST_CHARS, ChainHead
from penstock.records.residency_report import ReportBuilder, ResidencyReport

app = typer.Typer(no_args_is_help=True, help="Prove from access logs where requests were processed.")

COMMAND = "residency report"

MAX_DIGITS = 18
"""Maximum length of a line's number."""


@app.callback()
def _residency() -> None:
    """Prove from access logs where requests were processed."""


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(help="Access logs of all agents, rotated ones too.")],
    since: Annotated[
        str | None, typer.Option("--from", help="Begin of the period, ISO 8601, UTC (default: of the logs).")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="End of the period, ISO 8601, UTC (default: of the logs).")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only requests of this tenant.")] = None,
    kept: Annotated[
        list[str] | None, typer.Option(help="A head from an earlier report that the logs must contain; repeatable.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Report where each request was processed. Exit with 1 if residency was broken, or the logs do not prove it."""
    with exit_on_error(COMMAND):
        heads = [_head(text) for text in kept or ()]
        builder = ReportBuilder(_time(since, "--from", -inf), _time(until, "--to", inf), tenant, heads)
        for file in files:
            try:
                with file.open("rb") as lines:
                    builder.add_file(str(file), lines)
            except OSError as error:
                raise UsageFault(f"{file}: cannot be read: {error.strerror}") from None
        found = builder.report()
    if output is Output.JSON:
        print_json(found)
    else:
        print_view(_table(found))
        for epoch in found.epochs:
            print(f"head {epoch.head}")
        print(f"{found.requests} requests, {found.governed} governed: {'proven' if found.proven else 'not proven'}")
    for fault in found.faults:
        print_error(COMMAND, f"{fault.file}:{fault.line}: {fault.problem}")
    for finding in (*found.violations, *found.incomplete):
        where = f"{finding.file}:{finding.line}"
        print_error(COMMAND, f"{where}: request {finding.request_id} of {finding.tenant}: {finding.problem}")
    if not found.proven:
        raise typer.Exit(EXIT_FAILED)


def _table(found: ResidencyReport) -> Table:
    table = table_of("tenant", "residency class", "governed", "processed in", "requests", right=("requests",))
    for group in found.processed:
        governed = "yes" if group.governed else "no"
        table.add_row(group.tenant, group.residency_class, governed, group.region, str(group.requests))
    return table


def _time(text: str | None, option: str, default: float) -> float:
    if text is None:
        return default
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageFault(f"{option} {text}: no time in ISO 8601; write 2026-01-31 or 2026-01-31T12:00:00Z") from None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def _head(kept: str) -> ChainHead:
    rest, _, chain = kept.rpartition(":")
    epoch, _, seq = rest.rpartition(":")
    if not epoch or not seq.isascii() or not seq.isdecimal() or len(seq) > MAX_DIGITS or len(chain) != DIGEST_CHARS:
        raise UsageFault(f"--kept {kept}: must be epoch:line:digest, as `penstock residency report` prints it")
    return ChainHead(epoch, int(seq), chain)

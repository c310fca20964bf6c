"""`penstock residency`: prove from access logs where requests were processed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from adapters.files.plain_file import read_lines
from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error, print_error
from control_plane.cli.output import Output, OutputOption, print_json, print_view, table_of
from penstock.log_chains.access_log_chain import ChainHead
from penstock.log_chains.log_ends import SignedHeads, UnprovedSpan
from penstock.log_chains.residency_report import ReportBuilder, ResidencyReport
from penstock.log_chains.signed_head import BEGINNING

app = typer.Typer(no_args_is_help=True, help="Prove from access logs where requests were processed.")

COMMAND = "residency report"

T = TypeVar("T")


@app.callback()
def _residency() -> None:
    """Prove from access logs where requests were processed."""


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(help="Access logs and signed heads of all agents, rotated ones too.")],
    trust: Annotated[
        Path | None,
        typer.Option(help="Directory with the fleet's ca.crt, and revoked if there is one. Needed for a proof."),
    ] = None,
    fleet: Annotated[
        str, typer.Option(help="Accept only heads of the fleet with this name (default: all that ca.crt certifies).")
    ] = "",
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
    """Report the region that processed each request. Exit with 1 if residency was violated or is not proven."""
    with exit_on_error(COMMAND):
        kept_heads = [_head(text) for text in kept or ()]
        signatures = {file for file in files if _read(file, _is_of_heads)}
        signed = _signed_heads(trust, fleet, signatures) if trust is not None else None
        builder = ReportBuilder(_time(since, "--from", -inf), _time(until, "--to", inf), tenant, kept_heads, signed)
        for file in files:
            if file not in signatures:
                _read(file, partial(builder.add_file, str(file)))
        found = builder.report()
    if output is Output.JSON:
        print_json(found)
    else:
        print_view(_table(found))
        for epoch in found.epochs:
            print(f"head {epoch.head}")
        print(f"{found.requests} requests, {found.governed} governed: {_verdict(found, signed is not None)}")
    for fault in found.faults:
        print_error(COMMAND, f"{fault.file}:{fault.line}: {fault.problem}")
    for finding in (*found.violations, *found.incomplete):
        where = f"{finding.file}:{finding.line}"
        print_error(COMMAND, f"{where}: request {finding.request_id} of {finding.tenant}: {finding.problem}")
    for span in found.unproved:
        print_error(COMMAND, f"{span.epoch}: no signature covers {_span(span)}")
    if not (found.proven if signed is not None else found.consistent):
        raise typer.Exit(EXIT_FAILED)


def _verdict(found: ResidencyReport, verified: bool) -> str:
    if found.proven:
        return "proven"
    return "consistent; signatures not verified, name --trust" if found.consistent and not verified else "not proven"


def _span(span: UnprovedSpan) -> str:
    begin, end = (
        datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") if at is not None else None
        for at in (span.since, span.until)
    )
    lines = f"lines after {span.after_seq}" if span.after_seq else "its lines"
    return f"{lines}, from {begin or 'the beginning'} to {end or 'the end'}"


def _read(file: Path, reader: Callable[[Iterator[bytes]], T]) -> T:
    try:
        return reader(read_lines(file))
    except OSError as error:
        raise UsageFault(f"{file}: cannot be read: {error.strerror}") from None


def _is_of_heads(lines: Iterator[bytes]) -> bool:
    return next(lines, b"").startswith(BEGINNING)


def _signed_heads(trust: Path, fleet: str, files: Collection[Path]) -> SignedHeads:
    from adapters.files.identity_files import load_trust
    from adapters.files.plain_file import UnusableFile
    from penstock.wire.identity import BadIdentity

    try:
        bundle = load_trust(trust)
        signed = SignedHeads(bundle.for_fleet(fleet) if fleet else bundle)
    except (UnusableFile, BadIdentity) as error:
        raise UsageFault(f"--trust {trust}: {error}") from None
    for file in sorted(files):
        _read(file, partial(signed.add_file, str(file)))
    return signed


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
    try:
        return ChainHead.parse(kept)
    except ValueError as error:
        raise UsageFault(f"--kept {kept}: {error}") from None

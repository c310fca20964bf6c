"""`penstock audit`: every change, who made it and why, and whether the log is whole."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from control_plane.audit.audit_chain import AuditEntry, AuditHead, ChainFault, verify_chain
from control_plane.cli.command_options import FleetOptions, with_fleet_options
from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error, print_error
from control_plane.cli.output import Output, OutputOption, print_as, print_json, table_of

app = typer.Typer(no_args_is_help=True, help="See every change, and verify that the log of them is whole.")

EXPORT = "/v1/audit/export"

MAX_DIGITS = 18
"""Of an entry's number."""


class _Entries(msgspec.Struct, frozen=True):
    """What is read of a page of the log."""

    items: tuple[AuditEntry, ...]


@app.command("list")
@with_fleet_options
def list_(
    fleet: FleetOptions,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Most entries.")] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the newest changes."""
    with exit_on_error("audit list"), fleet.connect() as api:
        page: _Entries = api.request("GET", "/v1/audit", params={"limit": limit}).decoded(_Entries)
    print_as(output, page.items, lambda: _table(page.items))


def _table(entries: Sequence[AuditEntry]) -> Table:
    table = table_of("number", "at (UTC)", "who", "what", "to", "why", title="Changes, newest first")
    for one in entries:
        at = f"{datetime.fromtimestamp(one.at, UTC):%Y-%m-%d %H:%M:%S}"
        table.add_row(str(one.seq), at, f"{one.caller} ({one.role})", one.action, _target(one), one.reason)
    return table


@app.command()
@with_fleet_options
def export(
    fleet: FleetOptions,
    file: Annotated[Path | None, typer.Argument(help="Where to; without it, to stdout.", show_default=False)] = None,
) -> None:
    """Write every change, oldest first, as JSON lines; stderr has the end of it, to be kept for `verify --kept`."""
    with exit_on_error("audit export"), fleet.connect() as api:
        lines = _Lines(api.lines(EXPORT))
        if file is None:
            for line in lines:
                print(line)
        else:
            # Beside it first, so that an export that breaks off does not take the place of a whole one.
            part = file.with_name(file.name + ".part")
            try:
                with part.open("w", encoding="utf-8") as opened:
                    opened.writelines(f"{line}\n" for line in lines)
                part.replace(file)
            except OSError as error:
                raise UsageFault(f"{file}: cannot be written: {error.strerror}") from None
        if lines.last:
            end = msgspec.json.decode(lines.last, type=AuditHead)
            print_error("audit export", f"{end.seq} entries, the last is {end.seq}:{end.hash}")


@app.command()
@with_fleet_options
def verify(
    fleet: FleetOptions,
    file: Annotated[
        Path | None, typer.Argument(help="An export, - for stdin; without it, the log itself.", show_default=False)
    ] = None,
    kept: Annotated[
        str | None, typer.Option(help="number:hash of an entry, kept from before, that must be in it.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check that no entry was changed, removed or put in; exit with 1 if one was."""
    with exit_on_error("audit verify"):
        expected = _head(kept) if kept is not None else None
        if file is not None:
            watched = _Watched(_read(file), expected)
            fault = _fault(watched)
        else:
            with fleet.connect() as api:
                watched = _Watched(api.lines(EXPORT), expected)
                fault = _fault(watched)
    if fault is not None:
        seq, problem = fault.seq, fault.problem
    elif expected is not None and not watched.has_expected:
        seq, problem = expected.seq, "not the entry that was kept from before: the log was cut off or made anew"
    else:
        end = f"{watched.head.seq}:{watched.head.hash}"
        if output is Output.JSON:
            print_json({"whole": True, "entries": watched.head.seq, "head": end})
        else:
            print(f"whole: {watched.head.seq} entries, the last is {end}")
        return
    if output is Output.JSON:
        print_json({"whole": False, "seq": seq, "problem": problem})
    print_error("audit verify", f"entry {seq}: {problem}")
    raise typer.Exit(EXIT_FAILED)


def _target(entry: AuditEntry) -> str:
    """What it was done to; of an override, whose target is its id, also where."""
    told = entry.after if isinstance(entry.after, dict) else {}
    where = told.get("region") or told.get("origin")
    return f"{entry.target} ({where})" if where else entry.target


class _Lines:
    """Lines, one by one, noting the last."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self.last = ""

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.last = line
            yield line


class _Edited(Exception):
    """An entry that the log did not write so."""

    def __init__(self, entry: AuditEntry) -> None:
        super().__init__(entry)
        self.fault = ChainFault(entry.seq, "changed: not to the letter as the log writes it")


def _fault(watched: _Watched) -> ChainFault | None:
    try:
        return verify_chain(watched)
    except _Edited as edited:
        return edited.fault


class _Watched:
    """Entries of an export, one by one, noting the last one and whether the expected one was there."""

    def __init__(self, lines: Iterable[str], expected: AuditHead | None) -> None:
        self._lines = lines
        self._expected = expected
        self.head = AuditHead()
        self.has_expected = expected is not None and expected == self.head

    def __iter__(self) -> Iterator[AuditEntry]:
        decoder = msgspec.json.Decoder(AuditEntry)
        for number, line in enumerate(self._lines, 1):
            if not line.strip():
                continue
            try:
                entry = decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise UsageFault(f"line {number} is no entry of an audit log: {error}") from None
            # The hash does not cover a field that comes twice or that we do not know, but other readers would see it.
            if msgspec.json.encode(entry, order="sorted") != line.strip().encode("utf-8", "replace"):
                raise _Edited(entry)
            self.head = AuditHead(entry.seq, entry.hash)
            self.has_expected = self.has_expected or self.head == self._expected
            yield entry


def _head(kept: str) -> AuditHead:
    seq, _, digest = kept.partition(":")
    if not seq.isascii() or not seq.isdecimal() or len(seq) > MAX_DIGITS or len(digest) != 64:
        raise UsageFault(f"--kept {kept}: not number:hash, as `penstock audit verify` prints it")
    return AuditHead(int(seq), digest)


def _read(file: Path) -> Iterator[str]:
    if str(file) == "-":
        yield from sys.stdin
        return
    try:
        with file.open() as opened:
            yield from opened
    except OSError as error:
        raise UsageFault(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageFault(f"{file}: cannot be read: {error}") from None

"""`penstock audit`: list, export and verify the audit log."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from adapters.files.plain_file import read_lines
from control_plane.cli.command_options import FleetOptions, ReadClient, with_fleet_options
from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error, print_error
from control_plane.cli.output import Output, OutputOption, print_as, print_json, table_of
from penstock.log_chains.audit_log_chain import (
    BEFORE_THE_FIRST,
    NONE_REMOVED,
    AuditEntry,
    AuditHead,
    ChainFault,
    RemovedEntries,
    verify_chain,
)

app = typer.Typer(no_args_is_help=True, help="List, export and verify the audit log.")

EXPORT = "/v1/audit/export"

REMOVED = '{"hash":'
"""Beginning of the line for entries that were removed; keys are sorted, and entries have others before."""

MAX_DIGITS = 18
"""Maximum number of digits of an entry's number."""


class _Entries(msgspec.Struct, frozen=True):
    """The fields of a page of the log that are used."""

    items: tuple[AuditEntry, ...]
    unreadable: tuple[ChainFault, ...] = ()


@app.command("list")
@with_fleet_options
def list_(
    api: ReadClient,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of entries.")] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the newest audit entries."""
    page = api.request("GET", "/v1/audit", params={"limit": limit}).decoded(_Entries)
    print_as(output, page.items, lambda: _table(page.items))
    for fault in page.unreadable:
        print_error("audit list", f"entry {fault.seq}: {fault.problem}")


def _table(entries: Sequence[AuditEntry]) -> Table:
    table = table_of("number", "at (UTC)", "who", "what", "to", "why", title="Changes, newest first")
    for entry in entries:
        at = f"{datetime.fromtimestamp(entry.at, UTC):%Y-%m-%d %H:%M:%S}"
        table.add_row(str(entry.seq), at, f"{entry.caller} ({entry.role})", entry.action, _target(entry), entry.reason)
    return table


@app.command()
@with_fleet_options
def export(
    api: ReadClient,
    file: Annotated[Path | None, typer.Argument(help="File to write (default: stdout).", show_default=False)] = None,
) -> None:
    """Export the audit log as JSON lines, oldest entry first. Print the last entry on stderr, for `verify --kept`."""
    lines = _LastLine(api.lines(EXPORT))
    if file is None:
        for line in lines:
            print(line)
    else:
        # Written to a temporary file first, so that an interrupted export does not replace a complete one.
        part = file.with_name(file.name + ".part")
        try:
            with part.open("w", encoding="utf-8") as opened:
                opened.writelines(f"{line}\n" for line in lines)
            part.replace(file)
        except OSError as error:
            raise UsageFault(f"{file}: cannot be written: {error.strerror}") from None
    if lines.last:
        end = msgspec.json.decode(lines.last, type=AuditHead)
        last = f"is {end.seq}:{end.hash}" if end.hash != BEFORE_THE_FIRST else "cannot be read"
        print_error("audit export", f"{lines.entries} entries, the last {last}")


@app.command()
@with_fleet_options
def verify(
    fleet: FleetOptions,
    file: Annotated[
        Path | None,
        typer.Argument(help="An export; - for stdin (default: the control plane's log).", show_default=False),
    ] = None,
    kept: Annotated[
        str | None, typer.Option(help="number:hash of an entry, stored earlier, that the log must contain.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Verify that no audit entry was changed, removed or inserted. Exit with 1 if the verification fails."""
    with exit_on_error("audit verify"):
        expected = _head(kept) if kept is not None else None
        if file is not None:
            checked = _CheckedEntries(_read(file), expected)
            fault = verify_chain(checked)
        else:
            with fleet.connect() as api:
                checked = _CheckedEntries(api.lines(EXPORT), expected)
                fault = verify_chain(checked)
    if fault is not None:
        seq, problem = fault.seq, fault.problem
    elif expected is not None and not checked.has_expected and expected.seq <= checked.removed.removed_up_to:
        seq, problem = expected.seq, "was removed: verify the exported blocks and the log together"
    elif expected is not None and not checked.has_expected:
        seq, problem = expected.seq, "differs from the entry of --kept: the log was truncated or replaced"
    else:
        end = f"{checked.head.seq}:{checked.head.hash}"
        first = checked.removed.removed_up_to + 1
        count = checked.head.seq - first + 1
        if output is Output.JSON:
            print_json({"whole": True, "entries": count, "head": end, "removed_up_to": first - 1})
        elif first == 1:
            print(f"whole: {count} entries, the last is {end}")
        else:
            before = f"{first - 1}:{checked.removed.hash}"
            print(f"whole: {count} entries, the last is {end}; the entries up to {before} were removed")
        return
    if output is Output.JSON:
        print_json({"whole": False, "seq": seq, "problem": problem})
    print_error("audit verify", f"entry {seq}: {problem}")
    raise typer.Exit(EXIT_FAILED)


def _target(entry: AuditEntry) -> str:
    """Return the target of a change, with the region or origin of an override, whose target is its id."""
    after = entry.after if isinstance(entry.after, dict) else {}
    where = after.get("region") or after.get("origin")
    return f"{entry.target} ({where})" if where else entry.target


class _LastLine:
    """Yields lines, counts the entries, and records the last line."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self.last = ""
        self.entries = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.last = line
            self.entries += not line.startswith(REMOVED)
            yield line


class _CheckedEntries:
    """Yields the entries and faults of an export, and records the last one and whether the expected one occurred."""

    def __init__(self, lines: Iterable[str], expected: AuditHead | None) -> None:
        self._lines = lines
        self._expected = expected
        self.head = AuditHead()
        self.removed = NONE_REMOVED
        """What was removed before the first entry."""
        self.has_expected = expected is not None and expected == self.head

    def __iter__(self) -> Iterator[AuditEntry | ChainFault | RemovedEntries]:
        decoder = msgspec.json.Decoder(AuditEntry)
        for number, line in enumerate(self._lines, 1):
            if not line.strip():
                continue
            try:
                entry = decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                other = _other_line(number, line, error)
                if isinstance(other, RemovedEntries):
                    self._removed(other)
                yield other
                continue
            # The hash does not cover repeated or unknown fields, which other readers would see.
            if msgspec.json.encode(entry, order="sorted") != line.strip().encode("utf-8", "replace"):
                yield ChainFault(entry.seq, "changed: differs from the canonical form")
                continue
            self.head = AuditHead(entry.seq, entry.hash)
            self.has_expected = self.has_expected or self.head == self._expected
            yield entry

    def _removed(self, removed: RemovedEntries) -> None:
        """Begin after the removed entries, unless they precede the line, as in exported blocks."""
        head = AuditHead(removed.removed_up_to, removed.hash)
        if self.head == AuditHead():
            self.removed, self.head = removed, head
            self.has_expected = self.has_expected or head == self._expected


def _other_line(number: int, line: str, error: Exception) -> ChainFault | RemovedEntries:
    """Return what the control plane exported in place of an entry: a fault, or what was removed."""
    if line.startswith(REMOVED):
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(line, type=RemovedEntries)
    try:
        return msgspec.json.decode(line, type=ChainFault)
    except (msgspec.DecodeError, RecursionError):
        raise UsageFault(f"line {number} is not an audit entry: {error}") from None


def _head(kept: str) -> AuditHead:
    seq, _, digest = kept.partition(":")
    if not seq.isascii() or not seq.isdecimal() or len(seq) > MAX_DIGITS or len(digest) != 64:
        raise UsageFault(f"--kept {kept}: must be number:hash, as `penstock audit verify` prints it")
    return AuditHead(int(seq), digest)


def _read(file: Path) -> Iterator[str]:
    if str(file) == "-":
        yield from sys.stdin
        return
    try:
        for line in read_lines(file):
            yield line.decode()
    except OSError as error:
        raise UsageFault(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageFault(f"{file}: cannot be read: {error}") from None

"""Reads demand and fleets for the simulation of policies from files: CSV, JSON lines, or access logs of agents.

Demand has a row for each kind of request: `origin,tenant,country,model,requests_per_s`, and `subdivision` where rules
need it. An empty origin stands for a client that uses steering; an empty country stands for an unknown location. A
fleet has a row for each pool: `region,model,slots,service_s`. JSON lines have the same fields and may omit empty ones.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from adapters.files.plain_file import open_plain_file
from penstock.policy.geography import country_error
from penstock.what_if.demand_outcomes import Capacity, DemandGroup

MAX_FILE_BYTES = 1 << 30
MAX_ROWS = 1_000_000
"""Maximum number of rows of a file: kinds of request, or pools."""

MAX_PER_S = 1e9
"""Maximum rate (requests/s) of one kind of request: above any real demand, and small enough for the computation."""

MAX_SLOTS = 1_000_000_000

FORWARDED = "forwarded"
"""Kind of logged requests that another agent forwarded; the log of that agent contains the same requests."""

Row = TypeVar("Row")


class BadDemand(Exception):
    """The file is invalid; the message names file, line, field and remedy."""


Country = Annotated[str, msgspec.Meta(pattern=r"^([A-Z]{2})?$")]
Subdivision = Annotated[str, msgspec.Meta(pattern=r"^[A-Z0-9]{0,3}$")]
"""Rules cannot name another spelling, so the result for requests that rules govern would be wrong."""


class _DemandRow(msgspec.Struct, frozen=True):
    tenant: str
    model: str
    requests_per_s: float
    origin: str = ""
    country: Country = ""
    subdivision: Subdivision = ""


class _LoggedRequest(msgspec.Struct, frozen=True):
    """The fields of an access log line from which demand is computed."""

    at: float
    tenant: str
    model: str
    kind: str
    origin: str = ""
    country: Country = ""
    subdivision: Subdivision = ""


def read_demand(file: Path) -> list[DemandGroup]:
    """Return the demand in a CSV file (`.csv`) or a file of JSON lines.

    Raises:
        BadDemand: the file cannot be read, or a row is invalid.
    """
    rows = _rows(file, _DemandRow, lambda row: 0 <= row.requests_per_s <= MAX_PER_S, _no_country)
    return [
        DemandGroup(row.origin, row.tenant, row.country or None, row.model, row.requests_per_s, row.subdivision or None)
        for row in rows
    ]


def read_fleet(file: Path) -> list[Capacity]:
    """Return the pools in a CSV file (`.csv`) or a file of JSON lines.

    Raises:
        BadDemand: as for `read_demand`, or a pool has several rows.
    """
    seen: set[tuple[str, str]] = set()

    def again(row: Capacity) -> str | None:
        if (row.region, row.model) in seen:
            return f"{row.region} has {row.model} already; write one row for each pool, with all its slots"
        seen.add((row.region, row.model))
        return None

    def sane(row: Capacity) -> bool:
        per_endpoint = row.slots_per_endpoint is None or 1.0 <= row.slots_per_endpoint <= MAX_SLOTS
        are_counts = 0 <= row.slots <= MAX_SLOTS and 0 <= row.burst_slots <= MAX_SLOTS
        return are_counts and 0.001 <= row.service_s <= 86_400 and per_endpoint

    return _rows(file, Capacity, sane, again)


def read_access_logs(files: Sequence[Path]) -> list[DemandGroup]:
    """Return the demand in access logs: the mean rates from the first request to the last, over at least 1 s.

    Requests that were rejected before their model was known are not included; neither are requests that an agent did
    not log, where its `access_log_share` is below 1.

    Raises:
        BadDemand: a file cannot be read, a line is not of an access log, or no request has a tenant and a model.
    """
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    first, last = float("inf"), float("-inf")
    for file in files:
        for _, request in _json_lines(file, _LoggedRequest):
            first, last = min(first, request.at), max(last, request.at)
            if request.tenant and request.model and request.kind != FORWARDED:
                counts[request.origin, request.tenant, request.country, request.model, request.subdivision] += 1
    if not counts:
        raise BadDemand(f"{', '.join(map(str, files))}: no request of any tenant; log some with access_log_file")
    span_s = max(1.0, last - first)
    return [
        DemandGroup(origin, tenant, country or None, model, count / span_s, subdivision or None)
        for (origin, tenant, country, model, subdivision), count in sorted(counts.items())
    ]


def _no_country(row: _DemandRow) -> str | None:
    """Return the error of a country code; None if it is valid.

    Rules cannot name an invalid code, so the result for requests that rules govern would be wrong.
    """
    flaw = country_error(row.country) if row.country else None
    return f"country: {flaw}" if flaw is not None else None


def _rows(file: Path, shape: type[Row], sane: Callable[[Row], bool], wrong: Callable[[Row], str | None]) -> list[Row]:
    lines = _csv_lines(file, shape) if file.suffix == ".csv" else _json_lines(file, shape)
    rows = []
    for line, row in lines:
        if not sane(row):
            bounds = "rates and slots are 0 to 1e9 (of an endpoint from 1), times 0.001 to 86400"
            raise BadDemand(f"{file}:{line}: a number is out of bounds; {bounds}")
        problem = wrong(row)
        if problem is not None:
            raise BadDemand(f"{file}:{line}: {problem}")
        rows.append(row)
        if len(rows) > MAX_ROWS:
            raise BadDemand(f"{file}: has more than {MAX_ROWS} rows; add up what is alike")
    if not rows:
        raise BadDemand(f"{file}: has no rows; write {', '.join(shape.__annotations__)}")
    return rows


def _csv_lines(file: Path, shape: type[Row]) -> Iterator[tuple[int, Row]]:
    with _opened(file) as text:
        reader = csv.DictReader(text, strict=True)
        try:
            named = list(reader.fieldnames or ())
            twice = sorted({name for name in named if named.count(name) > 1})
            if twice:
                raise BadDemand(f"{file}:1: names {', '.join(twice)} twice; keep one column of each")
            unknown = sorted(set(named) - set(shape.__annotations__))
            if unknown:
                known = ", ".join(shape.__annotations__)
                raise BadDemand(f"{file}:1: no column {', '.join(unknown)}; use {known}")
            for row in reader:
                if None in row or None in row.values():
                    raise BadDemand(f"{file}:{reader.line_num}: not as many fields as the first line names; correct it")
                yield reader.line_num, _shaped(file, reader.line_num, row, shape)
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadDemand(f"{file}:{reader.line_num + 1}: not CSV: {error}; correct it") from None


def _json_lines(file: Path, shape: type[Row]) -> Iterator[tuple[int, Row]]:
    with _opened(file) as text:
        line = 0
        try:
            for line, text_line in enumerate(text, 1):
                if text_line.strip():
                    yield line, _shaped(file, line, msgspec.json.decode(text_line), shape)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadDemand(f"{file}:{line}: not JSON: {error}; correct it, or name a CSV file *.csv") from None
        except UnicodeDecodeError as error:
            raise BadDemand(f"{file}: not UTF-8: {error.reason}; name a file of text") from None


def _opened(file: Path) -> Any:
    try:
        opened = open_plain_file(file)
        if os.fstat(opened.fileno()).st_size > MAX_FILE_BYTES:
            opened.close()
            raise BadDemand(f"{file}: larger than {MAX_FILE_BYTES} bytes; use a part of it")
        # This encoding skips the byte order mark, with which spreadsheets begin a file.
        return TextIOWrapper(opened, encoding="utf-8-sig", newline="")
    except OSError as error:
        raise BadDemand(f"{file}: cannot be read: {error.strerror}; name a readable file") from None


def _shaped(file: Path, line: int, row: Any, shape: type[Row]) -> Row:
    try:
        return msgspec.convert(row, shape, strict=False)
    except msgspec.ValidationError as error:
        raise BadDemand(f"{file}:{line}: {error}; a row has {', '.join(shape.__annotations__)}") from None

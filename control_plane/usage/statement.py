"""Month-end statement of one tenant: what it used and pays, as CSV and as a page to print."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from html import escape
from io import StringIO
from typing import Final

import msgspec

from control_plane.usage.usage_request import Dimension, UsageAnswer, UsageRow, sum_of
from penstock.accounts.outcome_rules import RULES, Counts, Outcome

QUESTIONS: Final = (
    (Dimension.MODEL, Dimension.OUTCOME),
    (Dimension.KEY,),
    (Dimension.DAY,),
)
"""The dimensions of the questions from whose answers a statement is made, in this order."""

_COLUMNS: Final = ("requests", "input_tokens", "cached_tokens", "output_tokens", "price")

_STYLE: Final = """
body { font: 11pt/1.4 sans-serif; max-width: 50em; margin: 2em auto; color: #111; }
table { border-collapse: collapse; width: 100%; margin: 0 0 1.5em; }
th, td { padding: .25em .5em; border-bottom: 1px solid #ccc; text-align: right; }
th:first-child, td:first-child { text-align: left; }
tr.total td { font-weight: bold; border-top: 2px solid #111; }
.missing { border: 1px solid #a00; padding: .5em 1em; }
@media print { body { margin: 0; } }
"""


class Statement(msgspec.Struct, frozen=True):
    """The usage of one tenant in one month."""

    tenant: str
    first_day: date
    last_day: date
    currency: str
    by_model: tuple[tuple[str, UsageRow], ...]
    by_key: tuple[tuple[str, UsageRow], ...]
    by_day: tuple[tuple[str, UsageRow], ...]
    total: UsageRow
    answered: float | None
    """Share (0-1) of requests that the fleet answered, of those that count in objectives; None without one."""
    missing: tuple[str, ...]


def month_of(text: str) -> tuple[date, date]:
    """Return the first and the last day of a month such as `2026-11`.

    Raises:
        ValueError: the text is not a month.
    """
    if len(text) != 7:
        raise ValueError(f"{text!r} is not a month such as 2026-11")
    first = date.fromisoformat(f"{text}-01")
    return first, (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)


def make_statement(tenant: str, answers: Sequence[UsageAnswer]) -> Statement:
    """Return the statement from the answers to QUESTIONS for the tenant and one month."""
    by_outcome, by_key, by_day = answers
    return Statement(
        tenant,
        by_outcome.first_day,
        by_outcome.last_day,
        by_outcome.currency,
        _grouped(by_outcome.rows, Dimension.MODEL),
        _grouped(by_key.rows, Dimension.KEY),
        _grouped(by_day.rows, Dimension.DAY),
        sum_of(by_outcome.rows),
        _answered(by_outcome.rows),
        tuple(dict.fromkeys(line for answer in answers for line in answer.missing)),
    )


def statement_csv(statement: Statement) -> str:
    """Return the statement as CSV: a line for each model, key and day, and the total."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["tenant", "from", "to", "by", "name", *_COLUMNS, "currency"])
    parts = (("model", statement.by_model), ("key", statement.by_key), ("day", statement.by_day))
    days = statement.first_day.isoformat(), statement.last_day.isoformat()
    for by, rows in (*parts, ("total", (("", statement.total),))):
        for name, row in rows:
            values = [getattr(row, column) for column in _COLUMNS]
            writer.writerow([statement.tenant, *days, by, plain_cell(name), *values, statement.currency])
    return out.getvalue()


def plain_cell(text: str) -> str:
    """Return a text that no spreadsheet reads as a formula: names of adapters come from clients."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def statement_html(statement: Statement) -> str:
    """Return the statement as a page that needs no other file."""
    title = f"Statement for {statement.tenant}"
    currency = statement.currency
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{statement.first_day} to {statement.last_day} (UTC). Amounts in {escape(currency or 'no currency')}.</p>",
        _table("Model", statement.by_model, statement.total),
        _table("API key", [(name or "none", row) for name, row in statement.by_key], None),
        _table("Day", statement.by_day, None),
        _objectives(statement),
    ]
    if statement.missing:
        lines = "".join(f"<li>{escape(line)}</li>" for line in statement.missing)
        parts.append(f'<div class="missing"><p>Not in these sums:</p><ul>{lines}</ul></div>')
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _objectives(statement: Statement) -> str:
    if statement.answered is None:
        return ""
    return (
        f"<p>Answered: {statement.answered:.3%} of the requests that count in service objectives. The ledger has no"
        " times of responses; <code>penstock status</code> and the dashboards have the objectives for times.</p>"
    )


def _table(heading: str, rows: Iterable[tuple[str, UsageRow]], total: UsageRow | None) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in (heading, *(name.replace("_", " ") for name in _COLUMNS)))
    body = "".join(f"<tr>{_cells(name, row)}</tr>" for name, row in rows)
    if total is not None:
        body += f'<tr class="total">{_cells("Total", total)}</tr>'
    return f"<table><tr>{head}</tr>{body}</table>"


def _cells(name: str, row: UsageRow) -> str:
    counts = (row.requests, row.input_tokens, row.cached_tokens, row.output_tokens)
    values = [escape(name), *(f"{count:,}" for count in counts), f"{row.price:,.2f}"]
    return "".join(f"<td>{value}</td>" for value in values)


def _grouped(rows: Iterable[UsageRow], dimension: Dimension) -> tuple[tuple[str, UsageRow], ...]:
    found: dict[str, list[UsageRow]] = {}
    for row in rows:
        found.setdefault(row.group[dimension.value], []).append(row)
    return tuple((name, sum_of(of_name)) for name, of_name in sorted(found.items()))


def _answered(rows: Iterable[UsageRow]) -> float | None:
    counts, known = dict.fromkeys(Counts, 0), {outcome.value: outcome for outcome in Outcome}
    for row in rows:
        outcome = known.get(row.group[Dimension.OUTCOME.value])
        if outcome is not None:
            counts[RULES[outcome].objectives] += row.requests
    total = counts[Counts.SUCCESS] + counts[Counts.FAILURE]
    return counts[Counts.SUCCESS] / total if total else None

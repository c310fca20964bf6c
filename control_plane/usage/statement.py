"""Month-end statement of one tenant: what it used and pays, as CSV and as a page to print."""

from __future__ import annotations

import csv
from calendar import monthrange
from collections.abc import Iterable, Sequence
from datetime import date
from html import escape
from io import StringIO
from typing import Final

import msgspec

from control_plane.usage.usage_request import Dimension, UsageAnswer, UsageRow, sum_of
from penstock.accounts.outcome_rules import RULES, Counts, Outcome
from penstock.policy.service_objective import parse_objective_id, within_text

QUESTIONS: Final = (
    (Dimension.MODEL, Dimension.OUTCOME),
    (Dimension.KEY,),
    (Dimension.DAY,),
    (Dimension.MODEL, Dimension.OBJECTIVE),
)
"""The dimensions of the questions from whose answers a statement is made, in this order."""

PRICE_DIGITS: Final = 6
"""Digits of amounts after the decimal point."""

_COLUMNS: Final = ("requests", "input_tokens", "cached_tokens", "output_tokens", "price")
_OBJECTIVE_COLUMNS: Final = ("objective", "target_share", "within", "within_share", "kept")

_STYLE: Final = """
body { font: 11pt/1.4 sans-serif; max-width: 50em; margin: 2em auto; color: #111; }
table { border-collapse: collapse; width: 100%; margin: 0 0 1.5em; }
th, td { padding: .25em .5em; border-bottom: 1px solid #ccc; text-align: right; }
th:first-child, td:first-child { text-align: left; }
tr.total td { font-weight: bold; border-top: 2px solid #111; }
.missing { border: 1px solid #a00; padding: .5em 1em; }
@media print { body { margin: 0; } }
"""


class AttainedObjective(msgspec.Struct, frozen=True):
    """A service objective of a model, and how the tenant's requests attained it."""

    model: str
    name: str
    """As `penstock.policy.service_objective.objective_id` names it."""
    requests: int
    """Requests that the objective counts."""
    within: int
    """The part of them that succeeded within the limit."""
    text: str
    """What responses within the objective do, such as `begin within 1.5 s`."""
    target_share: float
    """Share (0-1) of requests that must succeed within the limit."""

    @property
    def share(self) -> float:
        """Share (0-1) of requests that succeeded within the limit."""
        return self.within / self.requests

    @property
    def is_kept(self) -> bool:
        """Whether the share is at least the target."""
        return self.share >= self.target_share


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
    objectives: tuple[AttainedObjective, ...]
    """The objectives by which requests were judged. A model has several if its objective changed in the month."""
    missing: tuple[str, ...]


def month_of(text: str) -> tuple[date, date]:
    """Return the first and the last day of a month such as `2026-11`.

    Raises:
        ValueError: the text is not a month.
    """
    if len(text) != 7:
        raise ValueError(f"{text!r} is not a month such as 2026-11")
    first = date.fromisoformat(f"{text}-01")
    return first, first.replace(day=monthrange(first.year, first.month)[1])


def make_statement(tenant: str, answers: Sequence[UsageAnswer], today: date) -> Statement:
    """Return the statement from the answers to QUESTIONS for the tenant and one month."""
    by_outcome, by_key, by_day, by_objective = answers
    return Statement(
        tenant,
        by_outcome.first_day,
        by_outcome.last_day,
        by_outcome.currency,
        _grouped(by_outcome.rows, Dimension.MODEL),
        _grouped(by_key.rows, Dimension.KEY),
        _grouped(by_day.rows, Dimension.DAY),
        sum_of(by_outcome.rows),
        answered(by_outcome.rows),
        attained(by_objective.rows),
        missing_of_month(answers, today),
    )


def missing_of_month(answers: Sequence[UsageAnswer], today: date) -> tuple[str, ...]:
    """Return what the answers about one month lack."""
    missing = [line for answer in answers for line in answer.missing]
    if today <= answers[0].last_day:
        missing.append(f"the month has not ended: {today} is the last day in these sums")
    return tuple(dict.fromkeys(missing))


def statement_csv(statement: Statement) -> str:
    """Return the statement as CSV: a line for each model, key, day and objective, the total, and what is missing."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["tenant", "from", "to", "by", "name", *_COLUMNS, "currency", *_OBJECTIVE_COLUMNS])
    parts = (("model", statement.by_model), ("key", statement.by_key), ("day", statement.by_day))
    days = statement.first_day.isoformat(), statement.last_day.isoformat()
    for by, rows in (*parts, ("total", (("", statement.total),))):
        for name, row in rows:
            values = [*(getattr(row, column) for column in _COLUMNS[:-1]), round(row.price, PRICE_DIGITS)]
            blank = [""] * len(_OBJECTIVE_COLUMNS)
            writer.writerow([statement.tenant, *days, by, plain_cell(name), *values, statement.currency, *blank])
    for each in statement.objectives:
        values = [each.requests, *[""] * (len(_COLUMNS) - 1), ""]
        judged = [each.text, each.target_share, each.within, f"{each.share:.6f}", "kept" if each.is_kept else "missed"]
        writer.writerow([statement.tenant, *days, "objective", plain_cell(each.model), *values, *judged])
    width = len(_COLUMNS) + 1 + len(_OBJECTIVE_COLUMNS)
    for line in statement.missing:
        writer.writerow([statement.tenant, *days, "missing", plain_cell(line), *[""] * width])
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
    parts = []
    if statement.objectives:
        heads = ("Model", "Objective", "requests", "within", "share", "target", "")
        rows = [
            (
                each.model,
                each.text,
                f"{each.requests:,}",
                f"{each.within:,}",
                f"{each.share:.3%}",
                f"{each.target_share:.3%}",
                "kept" if each.is_kept else "missed",
            )
            for each in statement.objectives
        ]
        parts.append(_html_table(heads, rows))
    if statement.answered is not None:
        parts.append(f"<p>Answered: {statement.answered:.3%} of the requests that count in service objectives.</p>")
    return "".join(parts)


def _html_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


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


def attained(rows: Iterable[UsageRow]) -> tuple[AttainedObjective, ...]:
    """Return the objectives of rows by model and objective that count requests."""
    found = []
    for row in rows:
        name = row.group[Dimension.OBJECTIVE.value]
        if row.objective_requests:
            measure, limit_s, share = parse_objective_id(name)
            text = within_text(limit_s, measure)
            counts = row.objective_requests, row.within_objective
            found.append(AttainedObjective(row.group[Dimension.MODEL.value], name, *counts, text, share))
    return tuple(found)


def answered(rows: Iterable[UsageRow]) -> float | None:
    """Return the share (0-1) of requests that were answered, of rows by outcome; None if none counts in objectives."""
    counts, known = dict.fromkeys(Counts, 0), {outcome.value: outcome for outcome in Outcome}
    for row in rows:
        outcome = known.get(row.group[Dimension.OUTCOME.value])
        if outcome is not None:
            counts[RULES[outcome].objectives] += row.requests
    total = counts[Counts.SUCCESS] + counts[Counts.FAILURE]
    return counts[Counts.SUCCESS] / total if total else None

"""The month-end statement of a tenant, as CSV and as a page."""

from __future__ import annotations

import csv
from datetime import date
from io import StringIO

import pytest
from msgspec.structs import replace

from control_plane.usage.statement import make_statement, month_of, statement_csv, statement_html
from control_plane.usage.usage_request import UsageAnswer, UsageRow

FIRST, LAST = date(2026, 11, 1), date(2026, 11, 30)


def row(group: dict[str, str], requests: int, price: float) -> UsageRow:
    return UsageRow(group, requests, 0, requests, 10 * requests, 0, 2 * requests, 0, 0, 1.0, 0.0, 0, price, 0.1)


def judged(model: str, objective: str, requests: int, within: int) -> UsageRow:
    counts = {"objective_requests": requests, "within_objective": within}
    return replace(row({"model": model, "objective": objective}, requests, 0.0), **counts)


def answer(*rows: UsageRow, missing: tuple[str, ...] = ()) -> UsageAnswer:
    return UsageAnswer(FIRST, LAST, rows, 1, missing, "EUR")


STATEMENT = make_statement(
    "acme",
    [
        answer(
            row({"model": "=llama", "outcome": "ok"}, 990, 9.5),
            row({"model": "=llama", "outcome": "engine_cut"}, 10, 0.0),
            row({"model": "sdxl", "outcome": "client_left"}, 100, 0.5),
            missing=("<eu> is missing",),
        ),
        answer(row({"key": "psk-1"}, 1000, 9.5), row({"key": ""}, 100, 0.5)),
        answer(row({"day": "2026-11-27"}, 1100, 10.0), missing=("<eu> is missing",)),
        answer(
            judged("=llama", "first_byte 1.5 0.99", 1000, 989),
            judged("=llama", "first_byte 2 0.9", 100, 90),
            judged("sdxl", "", 0, 0),
        ),
    ],
    date(2026, 12, 1),
)


def test_a_statement_sums_up_models_and_the_share_of_answered_requests() -> None:
    assert [(name, each.requests, each.price) for name, each in STATEMENT.by_model] == [
        ("=llama", 1000, 9.5),
        ("sdxl", 100, 0.5),
    ]
    assert (STATEMENT.total.requests, STATEMENT.total.price, STATEMENT.currency) == (1100, 10.0, "EUR")
    assert STATEMENT.answered == 0.99
    assert STATEMENT.missing == ("<eu> is missing",)


def test_the_csv_has_each_part_and_no_formula() -> None:
    lines = list(csv.DictReader(StringIO(statement_csv(STATEMENT))))
    parts = ["model", "model", "key", "key", "day", "total", "objective", "objective", "missing"]
    assert [line["by"] for line in lines] == parts
    assert lines[0]["name"] == "'=llama"
    assert lines[-1]["name"] == "<eu> is missing"
    assert (lines[5]["price"], lines[5]["currency"], lines[5]["from"]) == ("10.0", "EUR", "2026-11-01")


def test_the_page_shows_what_is_missing_as_text() -> None:
    page = statement_html(STATEMENT)
    assert "&lt;eu&gt; is missing" in page
    assert "Answered: 99.000%" in page
    assert "<script" not in page


def test_the_statement_of_a_month_that_has_not_ended_says_so_and_amounts_are_decimal() -> None:
    parts = [
        answer(row({"model": "llama", "outcome": "ok"}, 2, 4.3 + 4.3000000000000016)),
        answer(),
        answer(),
        answer(),
    ]
    of_now = make_statement("acme", parts, LAST)
    assert of_now.missing == ("the month has not ended: 2026-11-30 is the last day in these sums",)
    assert {line["price"] for line in csv.DictReader(StringIO(statement_csv(of_now)))} == {"8.6", ""}


def test_months_are_whole() -> None:
    assert month_of("2026-11") == (FIRST, LAST)
    assert month_of("2028-02") == (date(2028, 2, 1), date(2028, 2, 29))
    assert month_of("9999-12") == (date(9999, 12, 1), date.max)
    for text in ("2026", "2026-13", "2026-1-1", "11-2026"):
        with pytest.raises(ValueError, match=r"month|isoformat|Invalid"):
            month_of(text)


def test_each_objective_is_kept_or_missed_by_the_share_within_it() -> None:
    assert [(each.model, each.is_kept) for each in STATEMENT.objectives] == [("=llama", False), ("=llama", True)]
    missed, kept = list(csv.DictReader(StringIO(statement_csv(STATEMENT))))[-3:-1]
    assert (missed["name"], missed["objective"], missed["requests"]) == ("'=llama", "begin within 1.5 s", "1000")
    assert (missed["target_share"], missed["within"], missed["within_share"], missed["kept"]) == (
        "0.99",
        "989",
        "0.989000",
        "missed",
    )
    assert (kept["objective"], kept["kept"]) == ("begin within 2 s", "kept")
    page = statement_html(STATEMENT)
    assert (
        "<td>begin within 1.5 s</td><td>1,000</td><td>989</td><td>98.900%</td><td>99.000%</td><td>missed</td>" in page
    )

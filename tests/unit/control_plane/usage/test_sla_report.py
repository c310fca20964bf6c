"""The objectives of all tenants in a month: missed ones first, with the part of the error budget that they used."""

from __future__ import annotations

from datetime import timedelta

from control_plane.usage.sla_report import make_report
from tests.unit.control_plane.usage.test_statement import LAST, answer, judged, row

AFTER = LAST + timedelta(days=1)


def of(tenant: str, each: object) -> object:
    each.group["tenant"] = tenant  # type: ignore[attr-defined]
    return each


def test_missed_objectives_come_first_with_their_error_budget() -> None:
    report = make_report(
        "2026-11",
        [
            answer(
                of("acme", judged("llama", "first_byte 1.5 0.99", 1000, 995)),
                of("acme", judged("sdxl", "total 60 0.9", 100, 80)),
                of("beta", judged("llama", "first_byte 1.5 0.99", 1000, 970)),
                of("beta", judged("llama", "", 0, 0)),
                missing=("one",),
            ),
            answer(
                of("acme", row({"outcome": "ok"}, 90, 0.0)),
                of("acme", row({"outcome": "engine_cut"}, 10, 0.0)),
                of("beta", row({"outcome": "client_left"}, 5, 0.0)),
                missing=("one", "two"),
            ),
        ],
        AFTER,
    )
    found = [
        (each.tenant, each.model, each.is_kept, round(each.used_budget, 6), each.answered_share)
        for each in report.objectives
    ]
    assert found == [
        ("acme", "sdxl", False, 2.0, 0.9),
        ("beta", "llama", False, 3.0, None),
        ("acme", "llama", True, 0.5, 0.9),
    ]
    assert report.missing == ("one", "two")


def test_an_objective_that_permits_no_miss_is_shown() -> None:
    # A share of 0.99999999999 has this identity.
    rows = [of("acme", judged("llama", "first_byte 1.5 1", 100, within)) for within in (100, 99)]
    found = make_report("2026-11", [answer(*rows), answer()], AFTER).objectives
    assert [(each.within, each.is_kept) for each in found] == [(99, False), (100, True)]
    assert found[1].used_budget == 0.0
    assert found[0].used_budget > 1.0


def test_the_report_of_a_month_that_has_not_ended_says_so() -> None:
    of_now = make_report("2026-11", [answer(of("acme", judged("llama", "total 60 0.9", 9, 9))), answer()], LAST)
    assert [each.is_kept for each in of_now.objectives] == [True]
    assert of_now.missing == ("the month has not ended: 2026-11-30 is the last day in these sums",)

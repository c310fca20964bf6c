"""The outcome of a response, and the start of its latency."""

from __future__ import annotations

import pytest

from lab.replay.outcome import Outcome, OutcomeKind, judge


def outcome(**changes: object) -> Outcome:
    fields: dict[str, object] = {
        "id": "1",
        "site": "s",
        "tenant": "t",
        "model": "m",
        "scheduled_s": 10.0,
        "started_s": 10.5,
        "sent_s": 10.6,
        "first_token_s": 11.0,
        "end_s": 13.0,
        "kind": OutcomeKind.OK,
        "status": 200,
        "code": "",
        "tries": (),
        "region": "r",
        "endpoint": "e",
        "tokens": 5,
    }
    return Outcome(**{**fields, **changes})  # type: ignore[arg-type]


def test_latency_counts_from_the_due_time() -> None:
    sent_late = outcome()
    assert (sent_late.ttft_s, sent_late.e2e_s, sent_late.lag_s) == (1.0, 3.0, 0.5)
    assert outcome(first_token_s=None).ttft_s is None


@pytest.mark.parametrize(
    ("status", "code", "whole", "kind"),
    [
        (200, "", True, OutcomeKind.OK),
        (200, "", False, OutcomeKind.FAILED),
        (200, "engine_failed", True, OutcomeKind.FAILED),
        (400, "", True, OutcomeKind.REFUSED),
        (421, "misdirected", True, OutcomeKind.REFUSED),
        (429, "saturated", True, OutcomeKind.REFUSED),
        (451, "no_permitted_region", True, OutcomeKind.REFUSED),
        (503, "none_ready", True, OutcomeKind.REFUSED),
        (503, "", True, OutcomeKind.FAILED),
        (502, "engine_failed", True, OutcomeKind.FAILED),
        (500, "", True, OutcomeKind.FAILED),
        (302, "", True, OutcomeKind.FAILED),
        (0, "", False, OutcomeKind.FAILED),
    ],
)
def test_outcomes_of_responses(status: int, code: str, whole: bool, kind: OutcomeKind) -> None:
    assert judge(status, code, whole) is kind

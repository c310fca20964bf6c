"""`penstock anycast`: what it reads of the ready URLs, and what it writes for ExaBGP."""

from __future__ import annotations

from inspect import signature

import httpx
import pytest

from control_plane.cli.commands.entries.anycast_command import TIMEOUT_S, _Announcer, _weight, anycast
from penstock.health.anycast_announcement import DampingRules

ROUTE = "route 192.0.2.0/24 next-hop self"


@pytest.mark.parametrize(
    ("answers", "weight"),
    [
        ([(200, {})], 1.0),
        ([(200, {"x-penstock-weight": "0.25"})], 0.25),
        ([(200, {"x-penstock-weight": "0"})], 0.0),
        ([(200, {"x-penstock-weight": "much"})], 0.0),
        ([(503, {"x-penstock-weight": "1"})], 0.0),
        ([(200, {"x-penstock-weight": "0.5"}), (200, {})], 0.5),
        ([(200, {}), (503, {})], 0.0),
        ([(200, {}), None], None),
    ],
)
def test_the_weight_is_the_smallest_that_the_urls_state(
    answers: list[tuple[int, dict[str, str]] | None], weight: float | None
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        found = answers[int(request.url.path[1:])]
        if found is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(found[0], headers=found[1])

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        found, why = _weight(client, [f"http://agent/{number}" for number in range(len(answers))])
        assert (found, bool(why)) == (weight, not weight)


def test_a_drained_region_is_withdrawn_and_a_returning_one_has_a_larger_med(capsys: pytest.CaptureFixture[str]) -> None:
    announcer = _Announcer([ROUTE], " community [65000:1]", 100, DampingRules(hold_s=0.0))
    for now, weight in enumerate((1.0, 1.0, 0.0, 0.0, 0.25, 1.0, None, None, None)):
        announcer._apply(weight, "", float(now))
    assert capsys.readouterr().out.splitlines() == [
        f"announce {ROUTE} med 100 community [65000:1]",
        f"withdraw {ROUTE}",
        f"announce {ROUTE} med 175 community [65000:1]",
        f"announce {ROUTE} med 100 community [65000:1]",
        f"withdraw {ROUTE}",
    ]


def test_why_a_prefix_is_withdrawn_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A URL that never answers, as one that needs another authority, would leave the prefix withdrawn silently."""
    announcer = _Announcer([ROUTE], "", 100, DampingRules(hold_s=0.0))
    for now, (weight, why) in enumerate([(None, "a"), (None, "a"), (0.0, "b"), (1.0, ""), *[(None, "c")] * 4]):
        announcer._apply(weight, why, float(now))
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "->" not in line] == [f"penstock anycast: {why}" for why in "abc"]
    assert lines[-2:] == ["penstock anycast: announced -> withdrawn", "penstock anycast: c"]


def test_an_agent_that_is_frozen_is_withdrawn_within_a_second() -> None:
    """It may freeze just after a check, and no check of it ends before its time limit."""
    every_s = signature(anycast).parameters["every_s"].default
    assert every_s + DampingRules().max_misses * TIMEOUT_S == pytest.approx(0.8)

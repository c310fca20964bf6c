"""A leader without reports gives way, but two control planes that both receive none do not alternate for ever."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.agent_clocks import MAX_DIFFERENCE_S
from penstock.leadership.giving_way import MAX_PATIENCE_S, judge

MIN_PATIENCE_S = 30.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

TIMES_S = st.floats(0.0, 1e6) | st.just(inf)
PATIENCE_S = st.floats(MIN_PATIENCE_S, MAX_PATIENCE_S)
CHECK_S = 5.0


@given(TIMES_S, TIMES_S, PATIENCE_S)
def test_a_leader_without_others_never_gives_way(report_age_s: float, led_s: float, patience_s: float) -> None:
    assert not judge(report_age_s, led_s, patience_s, has_others=False).gives_way


@given(TIMES_S, TIMES_S, PATIENCE_S)
def test_a_leader_gives_way_after_its_patience(report_age_s: float, led_s: float, patience_s: float) -> None:
    verdict = judge(report_age_s, led_s, patience_s, has_others=True)
    assert verdict.gives_way is (report_age_s > patience_s and led_s > patience_s)


@given(TIMES_S, TIMES_S, PATIENCE_S, st.booleans(), st.floats(-1e6, 1e6))
def test_reports_count_only_while_the_clocks_agree(
    report_age_s: float, led_s: float, patience_s: float, has_others: bool, ahead_s: float
) -> None:
    counted = report_age_s if abs(ahead_s) <= MAX_DIFFERENCE_S else inf
    verdict = judge(report_age_s, led_s, patience_s, has_others=has_others, clock_ahead_s=ahead_s)
    assert verdict == judge(counted, led_s, patience_s, has_others=has_others)


@given(TIMES_S, TIMES_S, PATIENCE_S, st.booleans())
def test_patience_stays_within_its_limits_and_only_a_report_ends_it(
    report_age_s: float, led_s: float, patience_s: float, has_others: bool
) -> None:
    verdict = judge(report_age_s, led_s, patience_s, has_others=has_others)
    assert MIN_PATIENCE_S <= verdict.patience_s <= MAX_PATIENCE_S
    if report_age_s <= MIN_PATIENCE_S:
        assert verdict == (False, MIN_PATIENCE_S)
    else:
        assert verdict.patience_s >= patience_s


@given(st.lists(st.booleans() | st.just(False), min_size=1, max_size=1000))
def test_leaderships_without_reports_double_in_length(reports: list[bool]) -> None:
    """The other control plane gives way too, so that this one leads again."""
    patience_s, report_age_s, led_s = MIN_PATIENCE_S, inf, 0.0
    lengths_s: list[float] = []
    for is_reported in reports + [False] * 1000:
        report_age_s, led_s = (0.0 if is_reported else report_age_s + CHECK_S), led_s + CHECK_S
        if is_reported:
            lengths_s.clear()
        gives_way, patience_s = judge(report_age_s, led_s, patience_s, has_others=True)
        if gives_way:
            lengths_s.append(led_s)
            led_s = 0.0
    assert len(lengths_s) > 2
    assert all(later > min(2 * (earlier - CHECK_S), MAX_PATIENCE_S) for earlier, later in pairwise(lengths_s[1:]))

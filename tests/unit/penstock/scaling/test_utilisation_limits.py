"""The utilisation for which endpoints are counted falls where an objective is missed, and rises again with time."""

from __future__ import annotations

import pytest

from penstock.fleet.report import PoolReport
from penstock.fleet.snapshot import FadedPool
from penstock.scaling.utilisation_limits import UtilisationLimits

CUT, MIN_UTILISATION, RELAX_S, SETTLE_S = 0.9, 0.3, 7 * 86_400.0, 600.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

KEY = ("a", "m")
MISSED, MET = frozenset({KEY}), frozenset[tuple[str, str]]()


def update(limits: UtilisationLimits, missed: frozenset[tuple[str, str]], now: float, used: float) -> float | None:
    seen = {KEY: FadedPool(PoolReport("m", 10, 10, 100, int(100 * used), 1.0), 1.0)}
    return limits.update(missed, seen, {"m": 240.0}, 0.8, now).get(KEY)


@pytest.mark.parametrize(("used", "limit"), [(1.0, CUT * 0.8), (0.5, CUT * 0.5), (0.31, MIN_UTILISATION), (0.3, None)])
def test_a_missed_objective_cuts_the_utilisation_at_which_it_was_missed(used: float, limit: float | None) -> None:
    found = update(UtilisationLimits(), MISSED, 0.0, used)
    assert found == (None if limit is None else pytest.approx(limit))


def test_the_next_cut_waits_for_new_endpoints_and_new_answers() -> None:
    limits = UtilisationLimits()
    first = update(limits, MISSED, 0.0, 0.8)
    assert first == pytest.approx(0.72)
    for now, cuts in ((SETTLE_S, 1), (SETTLE_S + 239.0, 1), (SETTLE_S + 240.0, 2), (SETTLE_S + 250.0, 2)):
        found = update(limits, MISSED, now, 0.8)
        assert found == pytest.approx(0.8 * CUT**cuts, abs=0.003)


@pytest.mark.parametrize(("days", "limit"), [(0.25, 0.72 + 0.25 / 7), (0.5, 0.72 + 0.5 / 7), (0.6, None)])
def test_a_limit_rises_by_a_seventh_a_day_up_to_the_target(days: float, limit: float | None) -> None:
    limits = UtilisationLimits()
    update(limits, MISSED, 0.0, 0.8)
    for part in range(1, 5):
        found = update(limits, MET, days * 86_400.0 * part / 4, 0.8)
    assert found == (None if limit is None else pytest.approx(limit))


def test_a_pool_without_reports_has_no_limit() -> None:
    limits = UtilisationLimits()
    update(limits, MISSED, 0.0, 0.8)
    assert limits.update(MISSED, {}, {}, 0.8, 1.0) == {}
    assert update(limits, MET, 2.0, 0.8) is None

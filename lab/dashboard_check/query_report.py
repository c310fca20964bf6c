"""report.json of a check of dashboards: the number of series that each query returned. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lab.dashboard_check.panel_queries import Query, QueryKind

EMPTY_ON_A_HEALTHY_FLEET: Mapping[str, str] = {
    r"penstock_agent_directory_age_seconds": "the engines of the demo are named by address, not by a directory",
    r"^penstock_planner_fallbacks_total$": "counts solvers that failed or timed out, which no event brings about",
}
"""Regular expressions that a query contains, with the reason why it may return nothing although the fleet lives through
a surge, an ejection, a stalled engine, the loss of a region, of the leader, of etcd and of Redis. Keep it short: an
event of the run that makes the query return data is better than an entry."""


class Answer(msgspec.Struct, frozen=True):
    """What Prometheus returned for a query."""

    query: Query
    series: int
    error: str = ""
    """Why Prometheus refused the query; empty otherwise."""

    @property
    def may_be_empty_because(self) -> str:
        """Why the query may return nothing; empty if it must return something."""
        reasons = EMPTY_ON_A_HEALTHY_FLEET.items()
        return next((reason for pattern, reason in reasons if re.search(pattern, self.query.expression)), "")

    @property
    def passed(self) -> bool:
        """Whether the query returned what it should."""
        return not self.error and (self.series > 0 or bool(self.may_be_empty_because))


def build_report(
    answers: Sequence[Answer], broken_rules: Sequence[str], missing_targets: Sequence[str]
) -> dict[str, Any]:
    """The whole report; `passed` is what the exit code says.

    Args:
        broken_rules: rules that Prometheus could not evaluate, with its error.
        missing_targets: targets that it never scraped, with its error.
    """
    empty = [answer for answer in answers if not answer.passed]
    kinds = {kind: [answer for answer in answers if answer.query.kind is kind] for kind in QueryKind}
    return {
        "passed": bool(answers) and not empty and not broken_rules and not missing_targets,
        "queries": len(answers),
        "with_data": {
            kind: f"{sum(answer.series > 0 for answer in found)} of {len(found)}" for kind, found in kinds.items()
        },
        "empty": [_row(answer) for answer in empty],
        "permitted_empty": [_row(answer) for answer in answers if answer.passed and not answer.series],
        "broken_rules": list(broken_rules),
        "missing_targets": list(missing_targets),
        "results": [_row(answer) for answer in answers],
    }


def _row(answer: Answer) -> dict[str, Any]:
    row: dict[str, Any] = {**msgspec.to_builtins(answer.query), "series": answer.series}
    if answer.error:
        row["error"] = answer.error
    if not answer.series and answer.may_be_empty_because:
        row["may_be_empty_because"] = answer.may_be_empty_because
    return row

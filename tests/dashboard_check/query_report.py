"""Builds the report of a dashboard check: the number of series that each query returned."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tests.dashboard_check.panel_queries import Query, QueryKind

EMPTY_ON_A_HEALTHY_FLEET: Mapping[str, str] = {
    r"penstock_demand_requests_per_second:(usual|avg1h offset)": "the run has no week before it",
    r"penstock_demand_requests_per_second:growth10m": "the run lasts less than ten minutes",
    r"penstock_demand_requests_per_second:max\[5m\]": "the run lasts less than ten minutes",
    r"penstock_agent_(wake_attempts_total.*failed|model_without_room)": "all models find room and wake",
    r"penstock_agent_endpoint_asleep": "the endpoint of models on demand has one loaded at any time",
    r"penstock_standby_takeover_seconds": "no region of the demo is a standby",
    r"penstock_agent_burst_": "no endpoint of the demo is a burst endpoint",
    r"penstock_agent_quality_pairs_total": "no rollout of the demo scores pairs of answers",
    r"penstock_agent_directory_age_seconds": "the engines of the demo are named by address, not by a directory",
    r"penstock_(agent_endpoint|region)_version_skew": "the engines of the demo report no versions and revisions",
    r"penstock_agent_endpoint_gpu_": "the engines of the demo have no GPUs",
    r"penstock_agent_endpoint_slowdown_ratio": "no two endpoints of a region have the same models and accelerator",
    r"penstock_agent_budget_used_ratio": "no tenant of the demo has used half of a budget for long",
    r"penstock_agent_dns_live_regions": "no agent of the demo answers DNS names",
    r"penstock_model_rollout_wait_seconds\{phase=\"rolled_back": "the rollout of the run is not rolled back",
    r"^penstock_planner_fallbacks_total$": "counts solvers that failed or timed out, which no event brings about",
}
"""Regular expressions of queries that may return no data, each with the reason. The run includes a surge, an ejection,
a stalled engine, and the loss of a region, of the leader, of etcd and of Redis. Prefer an event in the run that
produces data to a new entry."""


class Answer(msgspec.Struct, frozen=True):
    """The response of Prometheus to a query."""

    query: Query
    series: int
    error: str = ""
    """The error with which Prometheus rejected the query; empty on success."""

    @property
    def may_be_empty_because(self) -> str:
        """The reason why the query may return no data; empty if it must return data."""
        reasons = EMPTY_ON_A_HEALTHY_FLEET.items()
        return next((reason for pattern, reason in reasons if re.search(pattern, self.query.expression)), "")

    @property
    def passed(self) -> bool:
        """Whether the query succeeded and returned data, unless it may return no data."""
        return not self.error and (self.series > 0 or bool(self.may_be_empty_because))


def build_report(
    answers: Sequence[Answer], broken_rules: Sequence[str], missing_targets: Sequence[str]
) -> dict[str, Any]:
    """Return the content of report.json; `passed` determines the exit code.

    Args:
        broken_rules: rules that Prometheus could not evaluate, each with its error.
        missing_targets: targets that Prometheus could not scrape, each with its error.
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

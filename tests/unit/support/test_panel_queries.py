"""All queries of dashboards and rules are found, with variables replaced, and an empty query fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboards.__main__ import GENERATED
from tests.dashboard_check import query_report
from tests.dashboard_check.check_run import NoQueries, read_queries, rule_files
from tests.dashboard_check.panel_queries import (
    Query,
    QueryKind,
    UnknownVariable,
    dashboard_queries,
    rule_queries,
    selectors,
)
from tests.dashboard_check.query_report import Answer, build_report


def dashboard(*expressions: str) -> dict[str, Any]:
    return {
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource"},
                {
                    "name": "region",
                    "type": "query",
                    "includeAll": True,
                    "allValue": ".*",
                    "query": {"query": 'label_values(up{job=~"$job"}, site)'},
                },
                {"name": "job", "type": "custom", "current": {"value": "agents"}},
            ]
        },
        "annotations": {"list": [{"name": "Alerts", "expr": "ALERTS > 0"}, {"name": "built in"}]},
        "panels": [
            {"title": "Row", "panels": [{"title": "Inner", "targets": [{"expr": expressions[0]}]}]},
            {"title": "Text"},
            *({"title": "Outer", "targets": [{"expr": expression}]} for expression in expressions[1:]),
        ],
    }


def test_every_query_of_a_dashboard_is_found_with_its_variables_replaced() -> None:
    found = dashboard_queries(
        "d.json", dashboard('up{site=~"$region"}', "increase(x[$__range])", 'y{a=~"${job:regex}"}'), 90
    )
    assert [(query.kind, query.title, query.expression) for query in found] == [
        (QueryKind.VARIABLE, "region", 'up{job=~"agents"}'),
        (QueryKind.ANNOTATION, "Alerts", "ALERTS > 0"),
        (QueryKind.PANEL, "Inner", 'up{site=~".*"}'),
        (QueryKind.PANEL, "Outer", "increase(x[90s])"),
        (QueryKind.PANEL, "Outer", 'y{a=~"agents"}'),
    ]


def test_a_variable_that_the_dashboard_does_not_declare_is_refused() -> None:
    with pytest.raises(UnknownVariable, match=r"d.json: 'Inner': the query has the variable \$tenant"):
        dashboard_queries("d.json", dashboard('up{t="$tenant"}'), 60)


def test_alerts_are_checked_by_their_inputs_and_recordings_as_they_are() -> None:
    rules = {
        "groups": [
            {"rules": [{"record": "a:b", "expr": "sum(a)"}, {"alert": "Bad", "expr": "sum by (x) (a:b) > 1 and c"}]}
        ]
    }
    found = [(query.kind, query.title, query.expression) for query in rule_queries("r.yaml", rules)]
    assert found == [
        (QueryKind.RECORDING, "a:b", "sum(a)"),
        (QueryKind.ALERT, "Bad", "a:b"),
        (QueryKind.ALERT, "Bad", "c"),
    ]


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("up", ["up"]),
        ('sum by (site) (rate(a_total{x=~"b|{c}", y!="\\""}[5m])) > 0', ['a_total{x=~"b|{c}", y!="\\""}']),
        ("(sum(leader) or vector(0)) == 0", ["leader"]),
        ("a:b:rate1m / on (site) group_left (x) (c > bool 2) unless d offset 5m", ["a:b:rate1m", "c", "d"]),
        ("avg_over_time(max by (e) (suspect)[10m:15s]) > 0.3", ["suspect"]),
        ("histogram_quantile(0.99, sum(rate(h_bucket[1m])) without (x)) > 1e3", ["h_bucket"]),
        ("time() - a > 60 and a", ["a"]),
    ],
)
def test_selectors_of_an_expression(expression: str, found: list[str]) -> None:
    assert selectors(expression) == found


def test_the_committed_files_are_all_read() -> None:
    found = read_queries(GENERATED.parent, 60)
    assert {query.kind for query in found} == set(QueryKind)
    assert {Path(query.source) for query in found} >= {*GENERATED.glob("*.json"), *rule_files(GENERATED)}
    assert not [query for query in found if "$" in query.expression]


def test_a_folder_without_queries_is_refused(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    with pytest.raises(NoQueries, match="no dashboard and no rules"):
        read_queries(tmp_path, 60)


def test_a_report_fails_for_an_empty_query_a_refused_one_a_broken_rule_and_a_missing_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(query_report, "EMPTY_ON_A_HEALTHY_FLEET", {"^held": "nothing is held"})
    full = Answer(Query("d.json", QueryKind.PANEL, "Full", "up"), 3)
    empty = Answer(Query("d.json", QueryKind.PANEL, "Empty", "down"), 0)
    permitted = Answer(Query("d.json", QueryKind.PANEL, "Held", "held > 0"), 0)
    refused = Answer(Query("d.json", QueryKind.PANEL, "Held", "held >"), 0, "parse error")
    report = build_report([full, permitted], [], [])
    assert report["passed"]
    assert report["with_data"]["panel"] == "1 of 2"
    assert report["permitted_empty"][0]["may_be_empty_because"] == "nothing is held"
    assert [row["title"] for row in build_report([full, empty, refused], [], [])["empty"]] == ["Empty", "Held"]
    for answers, rules, targets in (
        ([full, empty], [], []),
        ([full, refused], [], []),
        ([full], ["a: b"], []),
        ([full], [], ["t"]),
        ([], [], []),
    ):
        assert not build_report(answers, rules, targets)["passed"]

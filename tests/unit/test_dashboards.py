"""The dashboards and rules are current and well-formed, and use only metrics and labels that the daemons export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from control_plane.deferred_updates import DeferredUpdates
from control_plane.metrics import ControlPlaneMetrics, PublishOutcome, ReportOutcome
from dashboards.__main__ import BOARDS, GENERATED, generate, main, stale
from dashboards.alerts import ALERTS
from dashboards.boards.board import ALERTS_FIRING, VARIABLES
from dashboards.recording_rules import RECORDINGS, STATE_CODES
from dashboards.rules import Alert
from penstock.accounts.outcome_rules import Outcome
from penstock.health.outlier_ejection import AttemptOutcome
from penstock.health.region_health import RegionState
from penstock.retries.retry_rules import RetryReason
from penstock.rollout.policy_rollout import Phase
from penstock.routing.reasons import Reason
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.label_values import QueueOutcome, RequestKind
from tests.support.paths import ROOT

SCRAPE_LABELS = {
    "agent": frozenset({"job", "instance", "site", "agent"}),
    "control_plane": frozenset({"job", "instance", "site", "control_plane"}),
}
"""What the scrape configuration adds, as dashboards/README.md says."""

PROMETHEUS_OWN = {
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "place"}),
    "up": SCRAPE_LABELS["agent"] | SCRAPE_LABELS["control_plane"],
}


@dataclass
class Mentions:
    """The metrics and labels of one PromQL expression."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    """Metric name to the labels that its matchers use."""
    grouped: set[str] = field(default_factory=set)
    """Labels in by, without, on, ignoring and the groups."""


TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<range>\[[^\]]*\])|(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)"""
    r"""|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?[smhdwy]?)|(?P<mark>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},])|(?P<space>\s+)"""
)
GROUPERS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
OPERATORS = {"and", "or", "unless", "bool", "offset"}


def mentions(expression: str) -> Mentions:
    """Scan an expression for its metrics, the labels matched on each, and the labels grouped by."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(expression):
        match = TOKEN.match(expression, position)
        assert match, f"not PromQL at {expression[position:]!r}"
        position = match.end()
        if match.lastgroup != "space":
            tokens.append((str(match.lastgroup), match.group()))
    found = Mentions()
    index = 0
    while index < len(tokens):
        kind, text = tokens[index]
        following = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        if kind == "name" and text in GROUPERS:
            end = next(at for at in range(index, len(tokens)) if tokens[at][1] == ")")
            found.grouped |= {word for what, word in tokens[index + 2 : end] if what == "name"}
            index = end
        elif kind == "name" and text not in OPERATORS and following not in {"(", *GROUPERS}:
            labels = found.metrics.setdefault(text, set())
            if following == "{":
                end = next(at for at in range(index, len(tokens)) if tokens[at][1] == "}")
                labels |= {word for what, word in tokens[index + 2 : end] if what == "name"}
                index = end
        index += 1
    return found


def exported(registry: CollectorRegistry, scraped: frozenset[str]) -> dict[str, frozenset[str]]:
    """Every series name that a registry can export, with its labels."""
    series: dict[str, frozenset[str]] = {}
    for collector in set(registry._collector_to_names):
        if isinstance(collector, DeferredUpdates):
            continue
        wrapped = isinstance(collector, MetricWrapperBase)
        (family,) = (wrapped and collector.describe()) or collector.collect()
        labelled = collector if wrapped else family
        labels = frozenset(labelled._labelnames) | scraped
        if family.type == "counter":
            series[f"{family.name}_total"] = labels
        elif family.type == "histogram":
            series |= {f"{family.name}_sum": labels, f"{family.name}_count": labels}
            series[f"{family.name}_bucket"] = labels | {"le"}
        else:
            series[family.name] = labels
    return series


KNOWN: dict[str, frozenset[str]] = {
    **exported(AgentMetrics().registry, SCRAPE_LABELS["agent"]),
    **exported(ControlPlaneMetrics().registry, SCRAPE_LABELS["control_plane"]),
    **{rule.record: frozenset(rule.labels) for rule in RECORDINGS},
    **PROMETHEUS_OWN,
}

DASHBOARDS: dict[str, dict[str, Any]] = {
    board.name: json.loads((GENERATED / f"{board.name}.json").read_text(encoding="utf-8")) for board in BOARDS
}
PANELS: list[dict[str, Any]] = [
    panel for dashboard in DASHBOARDS.values() for panel in dashboard["panels"] if panel["type"] != "row"
]
RUNBOOKS = ROOT / "docs" / "runbooks"


def expressions() -> Iterator[tuple[str, str, str]]:
    """Every expression anywhere: where it is, its text, and the legend of its series."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target.get("legendFormat", "")
    for rule in RECORDINGS:
        yield rule.record, rule.expr, ""
    for alert in ALERTS:
        yield alert.name, alert.expr, ""
    yield "annotation", ALERTS_FIRING, ""


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("where", "expression", "legend"), EXPRESSIONS, ids=[each[0] for each in EXPRESSIONS])
def test_every_metric_and_label_is_one_that_the_daemons_export(where: str, expression: str, legend: str) -> None:
    found = mentions(expression)
    assert found.metrics, f"{where} asks for nothing"
    unknown = found.metrics.keys() - KNOWN.keys()
    assert not unknown, f"{where}: nobody exports {sorted(unknown)}"
    for metric, labels in found.metrics.items():
        assert labels <= KNOWN[metric], f"{where}: {metric} has no {sorted(labels - KNOWN[metric])}"
        assert found.grouped - {"le"} <= KNOWN[metric] | {"le"}, f"{where}: {metric} lacks a label it is grouped by"
    legend_labels = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))
    named = found.grouped or frozenset().union(*(KNOWN[metric] for metric in found.metrics))
    assert legend_labels <= named, f"{where}: the legend names {sorted(legend_labels - named)}, which is summed away"


def test_the_scanner_sees_what_is_there() -> None:
    found = mentions(
        'sum by (site, le) (rate(a_bucket{model=~"x{y}",kind!="b"}[1m])) / on (site) group_left (c) max(d:e:f) > 1e-3'
    )
    assert found.metrics == {"a_bucket": {"model", "kind"}, "d:e:f": set()}
    assert found.grouped == {"site", "le", "c"}


@pytest.mark.parametrize("query", [query for _, query in VARIABLES.values()])
def test_the_choices_at_the_top_come_from_metrics_that_exist(query: str) -> None:
    match = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
    assert match
    assert match[2] in KNOWN[match[1]]


def test_the_committed_files_are_fresh() -> None:
    assert stale(GENERATED) == []
    assert {path.name for path in GENERATED.iterdir()} == generate().keys()


def test_check_shows_what_is_stale_and_writing_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], tmp_path) == 1
    assert "+++ generated/rules.yaml" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules.read_text().replace("PenstockNoLeader", "PenstockOther"))
    assert main(["--check"], tmp_path) == 1
    assert "+  - alert: PenstockNoLeader" in capsys.readouterr().out


def test_generating_twice_gives_the_same() -> None:
    assert generate() == generate()


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_every_panel_asks_a_question_and_names_an_action(panel: dict[str, Any]) -> None:
    assert panel["title"].endswith("?")
    shows, act = panel["description"].split("\n\n**What to do:** ")
    assert len(shows) > 20
    assert len(act) > 30
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_have_their_own_names_numbers_and_places() -> None:
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS)
    for dashboard in DASHBOARDS.values():
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in dashboard["panels"])
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) == 23


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_viewer_chooses_source_region_and_model(board: Any) -> None:
    declared = [variable["name"] for variable in DASHBOARDS[board.name]["templating"]["list"]]
    assert declared[:3] == ["datasource", "region", "model"]
    used = re.findall(
        r"\$(?!__)(\w+)", " ".join(t["expr"] for p in DASHBOARDS[board.name]["panels"] for t in p.get("targets", ()))
    )
    assert set(used) <= set(declared)


def test_every_state_has_a_code_of_its_own() -> None:
    assert set(STATE_CODES) == set(RegionState)
    assert len(set(STATE_CODES.values())) == len(STATE_CODES)


def test_the_rules_file_is_well_formed() -> None:
    document = yaml.safe_load((GENERATED / "rules.yaml").read_text(encoding="utf-8"))
    assert list(document) == ["groups"]
    names = [rule.get("record") or rule["alert"] for group in document["groups"] for rule in group["rules"]]
    assert len(set(names)) == len(names) == len(RECORDINGS) + len(ALERTS)
    for group in document["groups"]:
        for rule in group["rules"]:
            allowed = {"record", "expr"} if "record" in rule else {"alert", "expr", "for", "labels", "annotations"}
            assert rule.keys() == allowed
            assert not rule["expr"].count("$"), "rules know no dashboard variables"


@pytest.mark.parametrize("rule", RECORDINGS, ids=lambda rule: rule.record)
def test_a_recording_is_named_by_the_labels_it_leaves(rule: Any) -> None:
    assert re.fullmatch(r"[a-z_]+:penstock_[a-z_]+:[a-z0-9_]+", rule.record)
    grouped = re.findall(r"by \(([a-z_, ]+)\)", rule.expr)
    assert set(grouped) == {", ".join(rule.labels)}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_has_a_runbook_that_cites_panels_and_alerts_that_exist(alert: Alert) -> None:
    assert len(alert.impact) > 20
    assert not re.search(r"\$value }} s\b", alert.summary), "seconds with all their decimals; humanizeDuration"
    text = (ROOT / alert.runbook).read_text(encoding="utf-8")
    assert re.findall(r"^#+ (.*)$", text, re.MULTILINE) == [alert.name, "Meaning", "Check", "Do"]
    assert "\n\nFirst run [`penstock doctor`]" in text
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[2:]:
        steps = re.findall(r"^(\d)\. \S", part, re.MULTILINE)
        assert steps, part
        assert steps == [str(number) for number in range(1, len(steps) + 1)]
    whole = " ".join(text.split())
    titles = {dashboard["title"].removeprefix("Penstock: ") for dashboard in DASHBOARDS.values()}
    assert set(re.findall(r"[Dd]ashboards? \*([^*]+)\*", whole)) <= titles
    assert set(re.findall(r'"([^"]+\?)"', whole)) <= {panel["title"] for panel in PANELS}
    assert set(re.findall(r"\bPenstock[A-Z]\w+", whole)) <= {each.name for each in ALERTS}


def test_the_index_of_runbooks_is_complete() -> None:
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \| (.*) \|$", index, re.MULTILINE)
    assert rows == [(alert.name, alert.severity.value, alert.impact) for alert in ALERTS]
    assert {path.stem for path in RUNBOOKS.iterdir()} == {alert.name for alert in ALERTS} | {"README"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_speaks_only_of_labels_that_it_has(alert: Alert) -> None:
    found = mentions(alert.expr)
    left = found.grouped or frozenset().union(*(KNOWN[metric] for metric in found.metrics))
    assert set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.impact)) <= left


def test_alerts_named_in_panels_exist() -> None:
    named = {word for panel in PANELS for word in re.findall(r"\bPenstock[A-Z]\w+", panel["description"])}
    assert named <= {alert.name for alert in ALERTS}
    assert named


VOCABULARY: dict[str, frozenset[str]] = {
    "kind": frozenset(RequestKind),
    "outcome": frozenset({*Outcome, *QueueOutcome, *PublishOutcome, *ReportOutcome, *AttemptOutcome}),
    "reason": frozenset({*Reason, *RetryReason}),
    "state": frozenset(RegionState),
    "phase": frozenset(Phase),
    "alertstate": frozenset({"pending", "firing"}),
}


def test_words_matched_in_expressions_are_words_that_occur() -> None:
    seen = set()
    for where, expression, _ in EXPRESSIONS:
        for label, words in re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', expression):
            if label in VOCABULARY:
                seen.add(label)
                assert set(words.split("|")) <= VOCABULARY[label], f"{where}: {label} is never {words!r}"
    assert {"kind", "outcome", "state"} <= seen

"""Extracts the queries of Grafana dashboards and Prometheus rules, with variables replaced as in Grafana."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec


class QueryKind(StrEnum):
    """The purpose of a query."""

    PANEL = "panel"
    VARIABLE = "variable"
    """Provides the values of a dashboard variable."""
    ANNOTATION = "annotation"
    RECORDING = "recording"
    ALERT = "alert"
    """A selector in the expression of an alert. The expression itself returns data only while the alert is active."""


class Query(msgspec.Struct, frozen=True):
    """A query of a dashboard or a rule."""

    source: str
    """Name of the file."""
    kind: QueryKind
    title: str
    """Title of the panel, or name of the variable, annotation, recorded series or alert."""
    expression: str
    """PromQL without variables."""


_LABEL_VALUES = re.compile(r"label_values\(\s*(.+)\s*,\s*\w+\s*\)")
_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)|\[\[(\w+)\]\]")

_BRACES = r"\{(?:[^{}\"']|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')*\}"
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_SELECTOR = re.compile(rf"(?<![\w:.])([a-zA-Z_:][\w:]*)(?![\w:])\s*({_BRACES})?(?!\s*\()")
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "group_left", "group_right", "inf", "nan", "start", "end"})


class UnknownVariable(Exception):
    """A query uses a variable that its dashboard does not declare."""


def dashboard_queries(source: str, dashboard: Mapping[str, Any], range_s: int) -> list[Query]:
    """Return the queries of a dashboard.

    Args:
        source: name of the dashboard's file.
        dashboard: decoded JSON of the dashboard.
        range_s: length (s) of the displayed time range.

    Raises:
        UnknownVariable: a query uses an undeclared variable; the message names the panel and the variable.
    """
    declared = dashboard.get("templating", {}).get("list", [])
    values = {variable["name"]: _value(variable) for variable in declared}
    # Grafana derives these variables from the time range and the scrape interval.
    values |= {"__range": f"{range_s}s", "__range_s": str(range_s), "__interval": "5s", "__rate_interval": "20s"}
    found = []
    for variable in declared:
        if variable.get("type") == "query":
            expression = _label_values(_text(variable["query"]))
            found.append(Query(source, QueryKind.VARIABLE, variable["name"], _replaced(expression, values, source)))
    for annotation in dashboard.get("annotations", {}).get("list", []):
        if "expr" in annotation:
            expression = _replaced(annotation["expr"], values, source)
            found.append(Query(source, QueryKind.ANNOTATION, annotation["name"], expression))
    for panel in _panels(dashboard.get("panels", [])):
        where = f"{source}: {panel['title']!r}" if "title" in panel else source
        for target in panel.get("targets", []):
            expression = _replaced(target["expr"], values, where)
            found.append(Query(source, QueryKind.PANEL, panel.get("title", ""), expression))
    return found


def rule_queries(source: str, rules: Mapping[str, Any]) -> list[Query]:
    """Return the queries of a rule file: the expressions of recording rules, and the selectors of alerts.

    Args:
        source: name of the rule file.
        rules: decoded YAML of the rule file.
    """
    found = []
    for group in rules.get("groups", []):
        for rule in group["rules"]:
            if "record" in rule:
                found.append(Query(source, QueryKind.RECORDING, rule["record"], rule["expr"]))
            else:
                found += [
                    Query(source, QueryKind.ALERT, rule["alert"], selector) for selector in selectors(rule["expr"])
                ]
    return found


def selectors(expression: str) -> list[str]:
    """Return the distinct instant selectors of a PromQL expression in order: metric names with label matchers."""
    without_groupings = _RANGE.sub("", _GROUPING.sub("", expression))
    found = (name + (matchers or "") for name, matchers in _SELECTOR.findall(without_groupings))
    return list(dict.fromkeys(selector for selector in found if selector.lower() not in _WORDS))


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield all panels, including the panels of collapsed rows."""
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))


def _value(variable: Mapping[str, Any]) -> str:
    """Return the initial value of a variable when a dashboard is opened."""
    if variable.get("includeAll"):
        return str(variable.get("allValue") or ".+")
    current = variable.get("current", {}).get("value", "")
    return str(current) if current else ".+"


def _text(query: str | Mapping[str, Any]) -> str:
    return query if isinstance(query, str) else str(query["query"])


def _label_values(query: str) -> str:
    match = _LABEL_VALUES.fullmatch(query.strip())
    return match[1] if match is not None else query


def _replaced(expression: str, values: Mapping[str, str], where: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[3]
        if name not in values:
            raise UnknownVariable(f"{where}: the query has the variable ${name}, which the dashboard does not declare")
        return values[name]

    return _VARIABLE.sub(value, expression)

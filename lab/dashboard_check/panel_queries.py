"""The queries of Grafana dashboards and Prometheus rules, with their variables replaced as Grafana does. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec


class QueryKind(StrEnum):
    """What a query is for."""

    PANEL = "panel"
    VARIABLE = "variable"
    """The values that a dashboard offers for a variable."""
    ANNOTATION = "annotation"
    RECORDING = "recording"
    ALERT = "alert"
    """An input of an alert: a selector of its expression, which itself returns data only while the alert is active."""


class Query(msgspec.Struct, frozen=True):
    """One query."""

    source: str
    """File."""
    kind: QueryKind
    title: str
    """Of the panel; the name of the variable, the annotation, the recorded series or the alert."""
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
    """A query has a variable that its dashboard does not declare."""


def dashboard_queries(source: str, dashboard: Mapping[str, Any], range_s: int) -> list[Query]:
    """The queries of one dashboard.

    Args:
        source: name of its file.
        dashboard: its JSON.
        range_s: length (s) of the displayed time range.

    Raises:
        UnknownVariable: with the panel and the variable.
    """
    declared = dashboard.get("templating", {}).get("list", [])
    values = {variable["name"]: _value(variable) for variable in declared}
    # What Grafana computes from the range and the scrape interval.
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
    """The queries of one file of rules: recordings whole, alerts by their selectors.

    Args:
        source: name of the file.
        rules: its YAML.
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
    """The instant selectors of a PromQL expression, each once, in order: names with their label matchers."""
    without_groupings = _RANGE.sub("", _GROUPING.sub("", expression))
    found = (name + (matchers or "") for name, matchers in _SELECTOR.findall(without_groupings))
    return list(dict.fromkeys(selector for selector in found if selector.lower() not in _WORDS))


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Panels, and those within collapsed rows."""
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))


def _value(variable: Mapping[str, Any]) -> str:
    """The value of a variable in a dashboard that has just been opened."""
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

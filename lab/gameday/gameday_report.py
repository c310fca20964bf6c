"""Writes the report of game days: report.json and report.html."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from lab.gameday.gameday_run import DayResult
from lab.markup import tag, text

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:32px auto;padding:0 16px;color-scheme:light dark}"
    "td,th{text-align:left;vertical-align:top;padding:4px 12px;border-top:1px solid #8884}.bad{color:#cc2f3c}"
    "table{border-collapse:collapse;width:100%}"
)


def write_report(results: Sequence[DayResult], out: Path) -> None:
    """Write report.json and report.html into `out`."""
    report = {
        "passed": bool(results) and all(result.passed for result in results),
        "days": [{**msgspec.to_builtins(result), "passed": result.passed} for result in results],
    }
    (out / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "report.html").write_text(render(results), encoding="utf-8")


def render(results: Sequence[DayResult]) -> str:
    """Return the results as an HTML page."""
    failed = sum(not result.passed for result in results)
    missed = f"{failed} of {len(results)} faults did not have the expected outcome"
    verdict = missed if failed else "Every fault had the expected outcome"
    rows = [row for result in results for row in _rows(result)]
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            tag("title", "Penstock: game days"),
            f"<style>{STYLE}</style></head><body>",
            tag("h1", text(verdict), class_="bad" if failed else None),
            tag("table", rows),
            "</body></html>\n",
        ]
    )


def _rows(result: DayResult) -> list[str]:
    title = tag("b", text(result.fault)) + text(f": {result.what}; {result.requests} requests")
    rows = [tag("tr", tag("th", title, colspan=3))]
    for finding in result.findings:
        mark = "&#10003;" if finding.passed else "&#10007;"
        cells = tag("td", mark) + tag("td", text(finding.name)) + tag("td", text(finding.says))
        rows.append(tag("tr", cells, class_=None if finding.passed else "bad"))
    return rows

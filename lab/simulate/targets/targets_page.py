"""Writes the page of `penstock-lab sim`: targets and contenders of each scenario, in one HTML file without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from lab.simulate.targets.comparison import Target, mean
from lab.simulate.targets.scenarios import Runs

BAR_WIDTH, BAR_HEIGHT, ROW_HEIGHT, LABEL_WIDTH, VALUE_WIDTH = 420, 14, 22, 260, 130
METRICS = {
    "e2e_p50_s": "end to end, p50",
    "e2e_p99_s": "end to end, p99",
    "ttft_p99_s": "first token, p99",
    "wait_mean_s": "mean wait",
}

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c2733 }
table { border-collapse: collapse; width: 100% } td, th { padding: .3rem .6rem; text-align: left; vertical-align: top }
tr { border-bottom: 1px solid #d8dee5 } .number { text-align: right; white-space: nowrap }
.kept { color: #17703c } .missed { color: #b3261e; font-weight: 600 }
svg text { font: 12px system-ui, sans-serif; fill: #1c2733 }
"""


def write_page(targets: Sequence[Target], runs: Mapping[str, Runs], path: Path) -> None:
    """Write the page to `path`."""
    kept = sum(target.kept for target in targets)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Penstock: simulated targets</title>",
        f"<style>{STYLE}</style></head><body><h1>Targets of the decision code</h1>",
        f"<p>{kept} of {len(targets)} targets are met. Bars are means over seeds, with 95 % intervals.</p>",
        "<table><tr><th>target</th><th class='number'>limit</th><th class='number'>measured</th>"
        "<th class='number'>interval</th><th></th></tr>",
        *[_row(target) for target in targets],
        "</table>",
    ]
    for name, contenders in runs.items():
        parts.append(f"<h2>{escape(name)}</h2>")
        for metric, title in METRICS.items():
            if all(metric in measures for found in contenders.values() for measures in found):
                parts.append(f"<h3>{title} (s)</h3>{_bars(contenders, metric)}")
    path.write_text("".join(parts) + "</body></html>\n", encoding="utf-8")


def _row(target: Target) -> str:
    verdict = "<td class='kept'>kept</td>" if target.kept else "<td class='missed'>missed</td>"
    note = f"<br><small>{escape(target.note)}</small>" if target.note else ""
    low, high = target.interval
    return (
        f"<tr><td>{escape(target.name)}{note}</td><td class='number'>{escape(target.target)}</td>"
        f"<td class='number'>{target.measured:.3f}</td><td class='number'>{low:.3f} to {high:.3f}</td>{verdict}</tr>"
    )


def _bars(contenders: Runs, metric: str) -> str:
    means = {name: mean([run[metric] for run in runs]) for name, runs in contenders.items()}
    longest = max(interval[1] for _, interval in means.values()) or 1.0
    rows = []
    for row, (name, (value, (low, high))) in enumerate(sorted(means.items(), key=lambda item: item[1][0])):
        top, middle = row * ROW_HEIGHT, row * ROW_HEIGHT + ROW_HEIGHT / 2
        scale = BAR_WIDTH / longest
        colour = (
            "#1f6feb" if name.startswith("penstock") else "#9aa7b4" if name.startswith("clairvoyant") else "#5d6d7e"
        )
        end_x = LABEL_WIDTH + high * scale
        rows += [
            f"<text x='{LABEL_WIDTH - 8}' y='{middle + 4}' text-anchor='end'>{escape(name)}</text>",
            f"<rect x='{LABEL_WIDTH}' y='{top + 4}' width='{value * scale:.1f}' height='{BAR_HEIGHT}'"
            f" fill='{colour}'/>",
            f"<path d='M{LABEL_WIDTH + low * scale:.1f} {middle}H{end_x:.1f}' stroke='#111' fill='none'/>",
            f"<text x='{end_x + 8:.1f}' y='{middle + 4}'>{value:.2f}</text>",
        ]
    width, height = LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH, len(means) * ROW_HEIGHT
    return f"<svg viewBox='0 0 {width} {height}' width='{width}' height='{height}' role='img'>{''.join(rows)}</svg>"

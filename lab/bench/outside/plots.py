"""Draws the file of results as SVG: bars of every system for each contest, and the ratios of all contests.

`python -m lab.bench.outside.plots out/bench/outside.json docs/images` draws the last results again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from math import log10
from pathlib import Path
from typing import Final

import msgspec

from lab.bench.live.bench_live_report import PENSTOCK
from lab.bench.outside.outside_results import SHOWN, Contest, Results, cell, label, to_best

OURS, OTHERS, BETTER, WORSE, FAINT, TEXT = "#0b7285", "#adb5bd", "#2b8a3e", "#c92a2a", "#dee2e6", "#212529"

COLUMNS: Final = 3
PANEL_WIDTH, NAMES_WIDTH, BAR_HEIGHT, PANEL_HEAD = 300, 130, 16, 26

RATIOS: Final = (0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.5)
"""Grid lines of the ratios; a ratio beyond them is drawn at the edge."""

RATIOS_WIDTH, ROW_HEIGHT = 560, 18


def bars(contest: Contest) -> str:
    """Return a panel of bars (s) for each figure of a contest."""
    height = PANEL_HEAD + BAR_HEIGHT * len(contest.systems) + 12
    parts = [_text(8, 20, contest.title, size=14)]
    for number, name in enumerate(SHOWN):
        left, top = number % COLUMNS * PANEL_WIDTH, 32 + number // COLUMNS * height
        parts += _panel(contest, name, left, top)
    return _svg(COLUMNS * PANEL_WIDTH, 32 + -(-len(SHOWN) // COLUMNS) * height, parts)


def _panel(contest: Contest, name: str, left: int, top: int) -> Iterable[str]:
    ratio = to_best(contest, name)
    yield _text(left + 8, top + 16, f"{label(name)} (s)")
    if ratio is not None:
        yield _text(left + NAMES_WIDTH, top + 16, f"{ratio:.2f} of the best other", BETTER if ratio <= 1.0 else WORSE)
    most = max((rounds.figure(name) or 0.0 for rounds in contest.systems), default=0.0)
    for row, rounds in enumerate(contest.systems):
        value, at = rounds.figure(name), top + PANEL_HEAD + row * BAR_HEIGHT
        yield _text(left + NAMES_WIDTH - 6, at + 11, rounds.system, size=10, anchor="end")
        width = (PANEL_WIDTH - NAMES_WIDTH - 60) * (value or 0.0) / most if most else 0.0
        color, box = OURS if rounds.system == PENSTOCK else OTHERS, f'x="{left + NAMES_WIDTH}" y="{at + 2}"'
        yield f'<rect {box} width="{width:.1f}" height="{BAR_HEIGHT - 4}" fill="{color}"/>'
        yield _text(left + NAMES_WIDTH + width + 4, at + 11, cell(name, value), size=10)


def ratios(contests: Sequence[Contest]) -> str:
    """Return a point for each figure of each contest: Penstock's divided by the best other system's."""
    parts, top, left = [_text(8, 20, "Penstock divided by the best other system, less is better", size=14)], 44, 110
    bottom = top + sum(ROW_HEIGHT * (len(SHOWN) + 1) + 10 for _ in contests)
    for line in RATIOS:
        x = _place(line, left)
        color = TEXT if line == 1.0 else FAINT
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="{color}"/>')
        parts.append(_text(x, top - 6, f"{line:g}", size=10, anchor="middle"))
    for contest in contests:
        parts.append(_text(8, top + 14, contest.title, size=11))
        for number, name in enumerate(SHOWN, start=1):
            y, ratio = top + ROW_HEIGHT * number + 12, to_best(contest, name)
            parts.append(_text(left - 6, y + 4, label(name), size=10, anchor="end"))
            if ratio is not None:
                x, color = _place(ratio, left), BETTER if ratio <= 1.0 else WORSE
                parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="{color}"/>')
                parts.append(_text(x + 8, y + 4, f"{ratio:.2f}", color, size=10))
        top += ROW_HEIGHT * (len(SHOWN) + 1) + 10
    return _svg(left + RATIOS_WIDTH + 60, bottom + 10, parts)


def _place(ratio: float, left: int) -> float:
    least, most = log10(RATIOS[0]), log10(RATIOS[-1])
    return left + RATIOS_WIDTH * (min(max(log10(max(ratio, 1e-9)), least), most) - least) / (most - least)


def _text(x: float, y: float, text: str, color: str = TEXT, size: int = 12, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(width: int, height: int, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    return "\n".join((head, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>", ""))


def write_plots(results: Results, directory: Path) -> list[Path]:
    """Write the plots, and return their files."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = {f"outside-{contest.name}.svg": bars(contest) for contest in results.contests}
    drawn["outside-ratios.svg"] = ratios(results.contests)
    for name, picture in drawn.items():
        (directory / name).write_text(picture, encoding="utf-8")
    return [directory / name for name in drawn]


def main(arguments: Sequence[str]) -> int:
    """Draw results files, all of them into one picture of ratios; returns the exit code."""
    if len(arguments) < 2:
        print("usage: python -m lab.bench.outside.plots RESULTS.json... DIRECTORY", file=sys.stderr)
        return 2
    *files, directory = map(Path, arguments)
    read = [msgspec.json.decode(file.read_bytes(), type=Results) for file in files]
    together = msgspec.structs.replace(read[0], contests=[contest for each in read for contest in each.contests])
    for path in write_plots(together, directory):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The page of the live benchmark: one HTML file with plots as SVG, without scripts and outside resources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, log10
from pathlib import Path

from lab.bench.live.bench_live_report import (
    FIGURES,
    MAX_RATIO,
    PENSTOCK,
    Contest,
    Demand,
    LiveResults,
    Scores,
    to_best,
)
from lab.markup import tag, text

PLOTTED = {
    "ttft_p50_s": "Time to first token, median, s",
    "ttft_p99_s": "Time to first token, p99, s",
    "tpot_p50_s": "Time per token, median, s",
    "e2e_mean_s": "End to end, mean, s",
    "e2e_p50_s": "End to end, median, s",
    "e2e_p99_s": "End to end, p99, s",
    "gpu_s": "GPU time, s",
}

LABEL, WIDTH, ROW, TOP, BOTTOM = 150.0, 520.0, 20.0, 8.0, 26.0
"""Sizes (px) of a plot: the column of names, the total width, a row, and the space above and below the rows."""

STYLE_FILE = Path(__file__).with_name("live_page.css")


def live_page(found: LiveResults) -> str:
    """Return the page as HTML."""
    body = tag("main", [*_head(found), _ratio_section(found), *map(_contest_section, found.contests), _systems(found)])
    head = (
        tag("meta", charset="utf-8")
        + tag("title", "Penstock: live benchmark")
        + tag("style", STYLE_FILE.read_text(encoding="utf-8"))
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _head(found: LiveResults) -> Iterable[str]:
    machine, conditions = found.machine, found.conditions
    yield tag("h1", "Live benchmark of balancers")
    yield tag(
        "p",
        text(
            f"{machine.began_at}, {machine.processor}, {machine.cores} cores, load average "
            f"{machine.load_average_before} before the run. {conditions.rounds} round(s) of {conditions.seconds:g} s, "
            f"including {conditions.warm_up_seconds:g} s of warm-up; engines {conditions.time_scale:g} times as fast "
            "as the modelled hardware, times in the hardware's. Lower is better for every figure."
        ),
    )


def _ratio_section(found: LiveResults) -> str:
    figures = [figure for figure in FIGURES if any(figure in to_best(contest) for contest in found.contests)]
    head = tag("tr", [tag("th", "Penstock over the best other"), *(tag("th", text(_short(name))) for name in figures)])
    rows = []
    for contest in found.contests:
        beside = to_best(contest)
        cells = [tag("td", text(_title(contest.demand)))]
        for figure in figures:
            compared = beside.get(figure)
            if compared is None:
                cells.append(tag("td", ""))
                continue
            ratio = compared.ratio
            kind = "bad" if ratio is None or ratio > MAX_RATIO else "good" if ratio < 1 / MAX_RATIO else None
            title = f"{compared.penstock} s; {compared.best_system}: {compared.best} s"
            cells.append(tag("td", text("never" if ratio is None else f"{ratio:.2f}"), class_=kind, title=title))
        rows.append(tag("tr", cells))
    hint = f"Red: more than {MAX_RATIO:g} times the figure of the best other balancer, which may differ per cell."
    return tag("section", [tag("h2", "Ratios"), tag("p", text(hint)), _scrolled(tag("table", [head, *rows]))])


def _contest_section(contest: Contest) -> str:
    demand = contest.demand
    plots = [
        tag("figure", [tag("h3", text(title)), _plot(figure, contest.scores)])
        for figure, title in PLOTTED.items()
        if any(scores.figures.get(figure) is not None for scores in contest.scores)
    ]
    said = (
        f"{demand.what}; {demand.rate_per_s:g} of {demand.capacity_per_s:g} requests/s that {len(demand.engines)} "
        f"engines with {demand.slots} slots each can serve."
    )
    return tag(
        "section",
        [
            tag("h2", text(_title(demand))),
            tag("p", text(said)),
            tag("div", plots, class_="plots"),
            _scrolled(_figures_table(contest)),
            *(tag("p", text(f"{name}: {why}")) for name, why in contest.missing.items()),
        ],
    )


def _figures_table(contest: Contest) -> str:
    figures = [figure for figure in FIGURES if any(figure in scores.figures for scores in contest.scores)]
    others = ("cached", "slots taken", "refused", "failed")
    head = tag("tr", [tag("th", ""), *(tag("th", text(name)) for name in (*map(_short, figures), *others))])
    rows = []
    for scores in contest.scores:
        values = [scores.figures.get(figure) for figure in figures]
        cells = ["never" if value is None else f"{value:.3g}" for value in values]
        cells += [f"{scores.cached_share:.2f}", f"{scores.use:.2f}", str(scores.refused), str(scores.failed)]
        rows.append(tag("tr", [tag("td", text(scores.system)), *(tag("td", text(cell)) for cell in cells)]))
    return tag("table", [head, *rows])


def _plot(figure: str, scores: Sequence[Scores]) -> str:
    """Plot one figure of every balancer on a logarithmic axis, with the range of the rounds."""
    values = [value for entry in scores if (value := entry.figures.get(figure)) is not None and value > 0.0]
    ends = [end for entry in scores if (spread := entry.spread.get(figure)) for end in (spread.least, spread.most)]
    low, high = _axis([value for value in (*values, *ends) if value > 0.0])

    def at(value: float) -> float:
        share = (log10(max(value, low)) - log10(low)) / (log10(high) - log10(low))
        return LABEL + share * (WIDTH - LABEL - 60.0)

    height = TOP + ROW * len(scores) + BOTTOM
    shapes = []
    for tick in _ticks(low, high):
        shapes.append(tag("line", x1=at(tick), x2=at(tick), y1=TOP, y2=height - BOTTOM + 4.0))
        shapes.append(tag("text", text(f"{tick:g}"), x=at(tick), y=height - 8.0, text_anchor="middle"))
    for number, entry in enumerate(scores):
        kind, middle = "own" if entry.system == PENSTOCK else "other", TOP + ROW * (number + 0.5)
        shapes.append(tag("text", text(entry.system), x=0.0, y=middle + 4.0, class_=kind if kind == "own" else None))
        value, spread = entry.figures.get(figure), entry.spread.get(figure)
        if value is None:
            shapes.append(tag("text", "never", x=LABEL, y=middle + 4.0))
            continue
        if spread is not None and spread.least > 0.0:
            width = max(1.0, at(spread.most) - at(spread.least))
            shapes.append(tag("rect", x=at(spread.least), y=middle - 1.5, width=width, height=3.0, class_=kind))
        shapes.append(tag("circle", cx=at(value), cy=middle, r=4.5, class_=kind))
        shapes.append(tag("text", text(f"{value:.3g}"), x=at(value) + 9.0, y=middle + 4.0))
    return tag("svg", shapes, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img")


def _axis(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis that shows every value, with a minimum length."""
    if not values:
        return 0.1, 1.0
    low, high = floor(log10(min(values)) * 5) / 5, ceil(log10(max(values)) * 5) / 5
    return 10.0**low, 10.0 ** max(high, low + 0.4)


def _ticks(low: float, high: float) -> list[float]:
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    return [tick for power in powers for step in (1, 2, 5) if low <= (tick := step * 10.0**power) <= high * 1.0001]


def _systems(found: LiveResults) -> str:
    items = [
        tag("li", text(f"{system.name} {system.version}: {'; '.join(system.settings)}")) for system in found.systems
    ]
    items += [tag("li", text(f"{name} is missing: {why}")) for name, why in found.missing.items()]
    return tag("section", [tag("h2", "Settings"), tag("ul", items)])


def _title(demand: Demand) -> str:
    plural = "s" if demand.instances > 1 else ""
    return f"{demand.workload}, {demand.load:.0%} of capacity, {demand.instances} instance{plural}"


def _short(figure: str) -> str:
    return figure.removesuffix("_s").replace("p999", "p99.9").replace("_", " ")


def _scrolled(content: str) -> str:
    return tag("div", content, class_="scroll")

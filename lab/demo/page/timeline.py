"""Draws the timeline: the home demand of each region by serving region, and the events of the run."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log10

import msgspec

from lab.demo.page.svg import colour, tag, text
from lab.demo.records import EventKind, Outcome, Run, Served

LEFT, WIDTH, TOP = 104.0, 1180.0, 62.0
ROW, GAP, SCATTER = 64.0, 12.0, 130.0
STEP_S = 0.25
KERNEL_S = 0.7
"""Standard deviation (s) of the Gaussian kernel that smooths the rates."""

BAD = {
    EventKind.REGION_KILLED,
    EventKind.LEADER_KILLED,
    EventKind.ETCD_KILLED,
    EventKind.REDIS_KILLED,
    EventKind.UNEXPECTED_EXIT,
}


class Rates(msgspec.Struct, frozen=True):
    """Answered requests per second of one home region, by serving region, every STEP_S."""

    home: str
    by_server: dict[str, list[float]]


def rates(run: Run, regions: Sequence[str]) -> list[Rates]:
    """Return the smoothed rates of answered requests by home region and serving region."""
    steps = int(run.scenario.duration_s / STEP_S) + 1
    table = {home: {server: [0.0] * steps for server in regions} for home in regions}
    reach = int(3 * KERNEL_S / STEP_S)
    bell = [exp(-0.5 * (offset * STEP_S / KERNEL_S) ** 2) for offset in range(-reach, reach + 1)]
    whole = sum(bell) * STEP_S
    for request in run.served:
        if request.outcome is not Outcome.OK or request.home not in table or request.server not in table[request.home]:
            continue
        middle = round(request.due_s / STEP_S)
        row = table[request.home][request.server]
        for offset, height in enumerate(bell, -reach):
            if 0 <= middle + offset < steps:
                row[middle + offset] += height / whole
    return [Rates(home, by_server) for home, by_server in table.items()]


def draw_timeline(run: Run, regions: Sequence[str]) -> str:
    """Return the timeline as an SVG element."""
    rows = rates(run, regions)
    highest = max((max(map(sum, zip(*row.by_server.values(), strict=True))) for row in rows), default=1.0) or 1.0
    bottom = TOP + len(rows) * (ROW + GAP) + SCATTER
    return tag(
        "svg",
        [
            _phases(run, bottom),
            *(_row(run, row, TOP + i * (ROW + GAP), highest) for i, row in enumerate(rows)),
            _scatter(run, TOP + len(rows) * (ROW + GAP)),
            _events(run, bottom),
            _axis(run, bottom),
            tag("line", x1=LEFT, x2=LEFT, y1=TOP, y2=bottom, id="playhead", class_="playhead"),
            tag("rect", x=LEFT, y=TOP, width=WIDTH - LEFT, height=bottom - TOP, id="sense", class_="sense"),
        ],
        viewBox=f"0 0 {WIDTH:g} {bottom + 26:g}",
        class_="timeline",
        role="img",
        aria_label="Home demand of each region over time, by serving region",
    )


def x_of(run: Run, at_s: float) -> float:
    """Return the x coordinate of a time (s)."""
    return LEFT + (WIDTH - LEFT) * at_s / run.scenario.duration_s


def _phases(run: Run, bottom: float) -> str:
    bands = []
    for index, phase in enumerate(run.scenario.phases):
        left, right = x_of(run, phase.from_s), x_of(run, phase.to_s)
        bands.append(tag("rect", x=left, y=0, width=right - left, height=bottom, class_=f"band band-{index % 2}"))
        bands.append(tag("text", f"{index + 1} &#160;{text(phase.title)}", x=left + 8, y=18, class_="band-title"))
    return tag("g", bands)


def _row(run: Run, row: Rates, top: float, highest: float) -> str:
    base, steps = top + ROW, range(len(next(iter(row.by_server.values()))))
    below = [0.0 for _ in steps]
    areas = []
    # The home region is at the bottom, so that requests served by other regions are stacked above it.
    for server in sorted(row.by_server, key=lambda name: (name != row.home, name)):
        above = [low + rate for low, rate in zip(below, row.by_server[server], strict=True)]
        if max(row.by_server[server]) > 0:
            forth = [(x_of(run, i * STEP_S), base - ROW * above[i] / highest) for i in steps]
            back = [(x_of(run, i * STEP_S), base - ROW * below[i] / highest) for i in reversed(steps)]
            points = "L".join(f"{x:.1f} {y:.1f}" for x, y in [*forth, *back])
            areas.append(tag("path", d=f"M{points}Z", fill=colour(server), class_="area"))
        below = above
    failed = [
        tag(
            "path",
            tag("title", text(f"{request.site}: {request.detail}")),
            d=_cross(x_of(run, request.due_s), top + 8),
            class_="fail",
        )
        for request in run.served
        if request.home == row.home and request.outcome is not Outcome.OK
    ]
    label = [
        tag("circle", cx=6, cy=base - 22, r=5, fill=colour(row.home)),
        tag("text", text(row.home), x=17, y=base - 18, class_="row-name"),
        tag("text", "home demand", x=17, y=base - 4, class_="row-note"),
        tag("line", x1=LEFT, x2=WIDTH, y1=base, y2=base, class_="base"),
    ]
    return tag("g", [*label, *areas, *failed])


def _cross(x: float, y: float) -> str:
    return f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6"


FASTEST_S, SLOWEST_S = 0.02, 10.0


def _scatter(run: Run, top: float) -> str:
    base = top + SCATTER

    def y_of(seconds: float) -> float:
        part = (log10(min(max(seconds, FASTEST_S), SLOWEST_S) / FASTEST_S)) / log10(SLOWEST_S / FASTEST_S)
        return base - 8 - (SCATTER - 24) * part

    ruled = [
        tag("line", x1=LEFT, x2=WIDTH, y1=y_of(s), y2=y_of(s), class_="grid")
        + tag("text", label, x=LEFT - 8, y=y_of(s) + 4, class_="tick", text_anchor="end")
        for s, label in ((0.1, "0.1 s"), (1.0, "1 s"), (10.0, "10 s"))
    ]
    dots = [_dot(run, request, y_of(request.ttft_s)) for request in run.served if request.ttft_s is not None]
    label = [
        tag("text", "time to", x=0, y=base - 50, class_="row-note"),
        tag("text", "first token", x=0, y=base - 37, class_="row-note"),
    ]
    return tag("g", [*ruled, *label, *dots])


def _dot(run: Run, request: Served, y: float) -> str:
    return tag("circle", cx=x_of(run, request.due_s), cy=y, r=2.1, fill=colour(request.server), class_="dot")


def _events(run: Run, bottom: float) -> str:
    marks = []
    for index, event in enumerate(run.events, 1):
        x = x_of(run, min(event.at_s, run.scenario.duration_s))
        level = 40 if index % 2 else 54
        bad = " bad" if event.kind in BAD else ""
        marks.append(
            tag(
                "g",
                [
                    tag("title", f"{event.at_s:.1f} s: {text(event.text)}"),
                    tag("line", x1=x, x2=x, y1=level, y2=bottom, class_="event-line" + bad),
                    tag("circle", cx=x, cy=level - 4.0, r=8, class_="event" + bad),
                    tag("text", str(index), x=x, y=level - 0.5, class_="event-number", text_anchor="middle"),
                ],
            )
        )
    return tag("g", marks)


def _axis(run: Run, bottom: float) -> str:
    ticks = [
        tag("text", f"{s} s", x=x_of(run, s), y=bottom + 18, class_="tick", text_anchor="middle")
        for s in range(10, int(run.scenario.duration_s), 10)
    ]
    return tag("g", [tag("line", x1=LEFT, x2=WIDTH, y1=bottom, y2=bottom, class_="base"), *ticks])

"""Draws p50 and p99 of the time to the first and to the last token, by home region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10

from lab.demo.page.svg import colour, tag, text

Latency = Mapping[str, float | None]
"""The result of `lab.demo.measure.latency_ms`."""

LEFT, WIDTH, ROW, TOP = 76.0, 560.0, 46.0, 8.0
FASTEST_MS, SLOWEST_MS = 30.0, 20_000.0


def draw_latency(latency: Mapping[str, Latency], regions: Sequence[str]) -> str:
    """Return an SVG element with a line from p50 to p99 for each latency, on a logarithmic axis."""
    bottom = TOP + ROW * len(regions)
    rules = [
        tag("line", x1=_x(ms), x2=_x(ms), y1=TOP, y2=bottom, class_="grid")
        + tag("text", label, x=_x(ms), y=bottom + 16, class_="tick", text_anchor="middle")
        for ms, label in ((100.0, "0.1 s"), (1000.0, "1 s"), (10_000.0, "10 s"))
    ]
    rows = [_row(latency[name], name, TOP + i * ROW) for i, name in enumerate(regions) if name in latency]
    return tag("svg", [*rules, *rows], viewBox=f"0 0 {WIDTH:g} {bottom + 22:g}", class_="latency", role="img")


def _x(ms: float) -> float:
    part = log10(min(max(ms, FASTEST_MS), SLOWEST_MS) / FASTEST_MS) / log10(SLOWEST_MS / FASTEST_MS)
    return LEFT + (WIDTH - LEFT - 10) * part


def _row(latency: Latency, region: str, top: float) -> str:
    parts = [
        tag("circle", cx=6, cy=top + ROW / 2, r=5, fill=colour(region)),
        tag("text", text(region), x=17, y=top + ROW / 2 + 4, class_="row-name"),
    ]
    for what, y, shape in (("ttft", top + ROW / 2 - 7, "first"), ("e2e", top + ROW / 2 + 7, "whole")):
        middle, tail = latency[f"{what}_p50_ms"], latency[f"{what}_p99_ms"]
        if middle is None or tail is None:
            continue
        title = tag("title", f"{what}: p50 {middle:.0f} ms, p99 {tail:.0f} ms")
        parts.append(
            tag(
                "g",
                [
                    title,
                    tag("line", x1=_x(middle), x2=_x(tail), y1=y, y2=y, stroke=colour(region), class_=f"span {shape}"),
                    tag("circle", cx=_x(middle), cy=y, r=4.5, fill=colour(region)),
                    tag("line", x1=_x(tail), x2=_x(tail), y1=y - 4.5, y2=y + 4.5, stroke=colour(region), class_="span"),
                ],
            )
        )
    return tag("g", parts)

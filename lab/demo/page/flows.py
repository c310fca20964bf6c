"""Draws the table of flows of a phase: a row for each home region, a column for each serving region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.demo.page.svg import colour, tag, text

Counts = Mapping[str, Mapping[str, int]]
"""Number of answered requests by home region and serving region."""

CELL, LABEL, HEAD = 42.0, 56.0, 30.0


def draw_flows(counts: Counts, regions: Sequence[str]) -> str:
    """Return the table as an SVG element."""
    width, height = LABEL + CELL * len(regions), HEAD + CELL * len(regions)
    heads = [
        tag("circle", cx=LABEL + (i + 0.5) * CELL, cy=8.0, r=4.0, fill=colour(name))
        + tag("text", text(name), x=LABEL + (i + 0.5) * CELL, y=HEAD - 6, class_="cell-head", text_anchor="middle")
        for i, name in enumerate(regions)
    ]
    rows = [_row(counts.get(home, {}), home, regions, HEAD + i * CELL) for i, home in enumerate(regions)]
    return tag("svg", [*heads, *rows], viewBox=f"0 0 {width:g} {height:g}", class_="flows", role="img")


def _row(row: Mapping[str, int], home: str, regions: Sequence[str], top: float) -> str:
    total = sum(row.values())
    cells = [tag("text", text(home), x=LABEL - 8, y=top + CELL / 2 + 4, class_="cell-head", text_anchor="end")]
    for i, server in enumerate(regions):
        n, x = row.get(server, 0), LABEL + i * CELL
        cells.append(tag("rect", x=x + 1.5, y=top + 1.5, width=CELL - 3, height=CELL - 3, rx=6, class_="cell"))
        if n:
            strength = 0.25 + 0.75 * n / total
            title = tag("title", text(f"{n} of {total} requests of {home} were served by {server}"))
            box = {"x": x + 1.5, "y": top + 1.5, "width": CELL - 3, "height": CELL - 3, "rx": 6}
            cells.append(tag("rect", title, fill=colour(server), fill_opacity=f"{strength:.2f}", **box))
            weak = " weak" if strength < 0.7 else ""
            where = {"x": x + CELL / 2, "y": top + CELL / 2 + 4.5}
            cells.append(tag("text", str(n), class_="cell-number" + weak, text_anchor="middle", **where))
    return tag("g", cells)

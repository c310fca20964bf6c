"""Draws a world map with an inset of Europe: sites, regions, and an arc from each site to its serving regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import copysign, hypot, sqrt

import msgspec

from lab.demo.page.svg import colour, tag, text
from lab.demo.records import Outcome, Served
from lab.demo.world import land_dots

WIDTH, HEIGHT = 1180.0, 468.0

BEND = 0.22
"""Curvature of an arc: offset of its control point as a part of its length."""

ARC_STEPS = 40

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in SVG units."""


class Panel(msgspec.Struct, frozen=True):
    """A rectangle of the map that shows a range of latitudes and longitudes in equirectangular projection."""

    name: str
    left: float
    top: float
    width: float
    height: float
    west_deg: float
    east_deg: float
    south_deg: float
    north_deg: float
    dot_step: float
    """Distance between land dots (SVG units)."""

    def contains(self, latitude_deg: float, longitude_deg: float) -> bool:
        """Whether the panel shows the coordinates."""
        return self.west_deg <= longitude_deg <= self.east_deg and self.south_deg <= latitude_deg <= self.north_deg

    def place(self, latitude_deg: float, longitude_deg: float) -> tuple[float, float]:
        """Return the SVG coordinates of a place."""
        x = (longitude_deg - self.west_deg) / (self.east_deg - self.west_deg)
        y = (self.north_deg - latitude_deg) / (self.north_deg - self.south_deg)
        return self.left + x * self.width, self.top + y * self.height


WORLD = Panel("world", 0, 24, 772, 420, -128, 158, -42, 72, 6.6)
EUROPE = Panel("europe", 800, 0, 380, 468, -13, 26, 35, 63.5, 9.0)
PANELS = (WORLD, EUROPE)


class Place(msgspec.Struct, frozen=True):
    """The location of a region or a client site."""

    name: str
    label: str
    latitude_deg: float
    longitude_deg: float


def draw_map(regions: Sequence[Place], sites: Sequence[Place], served: Sequence[Served]) -> str:
    """Return the map as an SVG element with the arcs of the whole run. During playback the script redraws the arcs."""
    places = {place.name: place for place in [*regions, *sites]}
    flows = Counter((request.site, request.server) for request in served if request.outcome is Outcome.OK)
    most = max(flows.values(), default=1)
    arcs = [
        tag("path", d=arc(places[site], places[server]), stroke=colour(server), stroke_width=0.8 + 4.2 * sqrt(n / most))
        for (site, server), n in sorted(flows.items(), key=lambda flow: -flow[1])
        if site in places and server in places
    ]
    return tag(
        "svg",
        [
            *(_land(panel) for panel in PANELS),
            _lens(),
            tag("g", arcs, id="arcs", class_="arcs"),
            tag("g", "", id="sparks"),
            *(mark for panel in PANELS for mark in _sites(panel, sites, regions)),
            *(_region(panel, region) for panel in PANELS for region in regions if _shown(panel, region)),
        ],
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        class_="map",
        role="img",
        aria_label="Map of client sites and the regions that served them",
    )


def panel_of(a: Place, b: Place) -> Panel:
    """Return the panel of an arc: EUROPE if the inset shows both ends, else WORLD."""
    both = all(EUROPE.contains(p.latitude_deg, p.longitude_deg) for p in (a, b))
    return EUROPE if both else WORLD


def arc(a: Place, b: Place) -> str:
    """Return the SVG path of an arc between two places, curved to the north like a northern great circle."""
    panel = panel_of(a, b)
    (x1, y1), (x2, y2) = (panel.place(p.latitude_deg, p.longitude_deg) for p in (a, b))
    if abs(a.longitude_deg - b.longitude_deg) > 180.0:
        return _arc_off_the_edges(panel, a, b)
    bend = BEND * hypot(x2 - x1, y2 - y1)
    return f"M{x1:.1f} {y1:.1f}Q{(x1 + x2) / 2:.1f} {(y1 + y2) / 2 - bend:.1f} {x2:.1f} {y2:.1f}"


def _arc_off_the_edges(panel: Panel, a: Place, b: Place) -> str:
    """Return the SVG path of an arc that crosses the 180th meridian: it leaves and reenters at the panel's edges."""
    once_round = 360.0 if a.longitude_deg > b.longitude_deg else -360.0
    (x1, y1), (x2, y2) = (
        panel.place(a.latitude_deg, a.longitude_deg),
        panel.place(b.latitude_deg, b.longitude_deg + once_round),
    )
    width = panel.place(0.0, 360.0)[0] - panel.place(0.0, 0.0)[0]
    bend = BEND * hypot(x2 - x1, y2 - y1)
    path, drawing = "", False
    for step in range(ARC_STEPS + 1):
        part = step / ARC_STEPS
        x, y = x1 + part * (x2 - x1), y1 + part * (y2 - y1) - 2 * bend * part * (1 - part)
        for shown in (x, x - copysign(width, once_round)):
            if panel.left <= shown <= panel.left + panel.width:
                path += f"{'L' if drawing else 'M'}{shown:.1f} {y:.1f}"
                drawing = True
                break
        else:
            drawing = False
    return path


def _shown(panel: Panel, place: Place) -> bool:
    return panel.contains(place.latitude_deg, place.longitude_deg)


def _land(panel: Panel) -> str:
    across_deg = panel.dot_step * (panel.east_deg - panel.west_deg) / panel.width
    up_deg = panel.dot_step * sqrt(0.75) * (panel.north_deg - panel.south_deg) / panel.height
    dots = [
        panel.place(latitude, longitude)
        for longitude, latitude in land_dots(
            panel.west_deg, panel.east_deg, panel.south_deg, panel.north_deg, across_deg, up_deg
        )
    ]
    # A line of length 0 with round ends is a dot. All dots are in one path, since thousands of elements are slow.
    inset = panel.dot_step / 2
    spots = "".join(
        f"M{x:.1f} {y:.1f}h0"
        for x, y in dots
        if panel.left + inset < x < panel.left + panel.width - inset
        and panel.top + inset < y < panel.top + panel.height - inset
    )
    return tag("path", d=spots, class_="land", stroke_width=0.62 * panel.dot_step)


def _lens() -> str:
    left, top = WORLD.place(EUROPE.north_deg, EUROPE.west_deg)
    right, bottom = WORLD.place(EUROPE.south_deg, EUROPE.east_deg)
    inner = tag("rect", x=left, y=top, width=right - left, height=bottom - top, rx=4)
    outer = tag("rect", x=EUROPE.left, y=1.0, width=EUROPE.width - 1, height=EUROPE.height - 2, rx=10)
    rays = tag("path", d=f"M{right:.1f} {top:.1f}L{EUROPE.left} 8M{right:.1f} {bottom:.1f}L{EUROPE.left} {HEIGHT - 8}")
    return tag("g", [inner, outer, rays], class_="lens")


def _sites(panel: Panel, sites: Sequence[Place], regions: Sequence[Place]) -> list[str]:
    """Return dots and names of sites; a name is placed where it overlaps no region and no other name."""
    taken = [_region_box(*panel.place(r.latitude_deg, r.longitude_deg)) for r in regions if _labelled(panel, r)]
    drawn = []
    for site in sites:
        x, y = panel.place(site.latitude_deg, site.longitude_deg)
        if not _shown(panel, site):
            continue
        if not _labelled(panel, site):
            drawn.append(tag("circle", cx=x, cy=y, r=1.6, class_="site"))
            continue
        right, left = x + 6, x - 6
        wide = 5.8 * len(site.name)
        spots = [
            (right, y - 5, "start", (right, y - 15, right + wide, y - 3)),
            (left, y - 5, "end", (left - wide, y - 15, left, y - 3)),
            (right, y + 13, "start", (right, y + 3, right + wide, y + 15)),
            (left, y + 13, "end", (left - wide, y + 3, left, y + 15)),
        ]
        free = [spot for spot in spots if _fits(panel, spot[3]) and not any(_overlap(spot[3], box) for box in taken)]
        title = tag("title", text(f"{site.name}, {site.label}"))
        drawn.append(tag("circle", title, cx=x, cy=y, r=3.2, class_="site"))
        # Without a free spot, the name is only in the tooltip.
        for name_x, name_y, anchor, box in free[:1]:
            taken.append(box)
            drawn.append(tag("text", text(site.name), x=name_x, y=name_y, class_="site-name", text_anchor=anchor))
    return drawn


def _labelled(panel: Panel, place: Place) -> bool:
    """Whether the panel shows the name of a place; places within the inset have their names only in the inset."""
    return _shown(panel, place) and not (panel is WORLD and _shown(EUROPE, place))


def _region_box(x: float, y: float) -> Box:
    return x - 34, y - 9, x + 34, y + 40


def _fits(panel: Panel, box: Box) -> bool:
    return panel.left < box[0] and box[2] < panel.left + panel.width


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _region(panel: Panel, region: Place) -> str:
    x, y = panel.place(region.latitude_deg, region.longitude_deg)
    if not _labelled(panel, region):
        return tag("circle", cx=x, cy=y, r=3.5, class_="region-small", fill=colour(region.name))
    return tag(
        "g",
        [
            tag("circle", cx=x, cy=y, r=13.0, class_="halo", fill=colour(region.name)),
            tag("circle", cx=x, cy=y, r=6.5, class_="core", fill=colour(region.name)),
            tag("text", text(region.name), x=x, y=y + 25, class_="region-name", text_anchor="middle"),
            tag("text", text(region.label), x=x, y=y + 38, class_="region-city", text_anchor="middle"),
        ],
        class_="region",
        data_region=region.name,
    )

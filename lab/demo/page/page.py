"""Renders the report as one HTML file: markup, SVG images, style, script, and the data for playback."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from lab.demo.measure import Kind, kind_of
from lab.demo.page.flows import draw_flows
from lab.demo.page.latency import draw_latency
from lab.demo.page.map import Place, arc, draw_map
from lab.demo.page.svg import colour, tag, text
from lab.demo.page.timeline import BAD, LEFT, WIDTH, draw_timeline
from lab.demo.records import EventKind, Outcome, Run

LIGHT = ("#2e6fe0", "#e08600", "#8a52d6", "#d63f75", "#0f958a", "#7a7f2a", "#b5552b", "#4b6b8a")
DARK = ("#6ca4ff", "#ffb14a", "#b894ff", "#ff7fab", "#3ccdbf", "#c4ca5a", "#f08d5e", "#9cb8d6")
"""Colours of the regions in alphabetical order. The first five are chosen for the common kinds of colour vision. The
region's name is beside every coloured element or in its tooltip."""


def render_page(report: dict[str, Any], run: Run) -> str:
    """Return the page as HTML without external resources."""
    regions = sorted(region["name"] for region in report["regions"])
    body = [
        _head(report),
        _figures(report),
        _map(report, run, regions),
        _timeline(report, run, regions),
        _flows(report, regions),
        _images(report, regions),
        _latency(report, regions),
        _checks(report),
        _notes(report),
    ]
    here = files("lab.demo.page")
    style = _palette(regions) + here.joinpath("style.css").read_text(encoding="utf-8")
    script = here.joinpath("play.js").read_text(encoding="utf-8")
    # "</" would end the script element; "<\/" is the same string in JSON.
    data = json.dumps(_played(report, run, regions), separators=(",", ":")).replace("</", "<\\/")
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            tag("title", "Penstock: a planet on one machine"),
            f"<style>{style}</style></head><body>",
            tag("main", body),
            f'<script type="application/json" id="run">{data}</script><script>{script}</script></body></html>\n',
        ]
    )


def _palette(regions: Sequence[str]) -> str:
    def block(colours: Sequence[str]) -> str:
        return "".join(f"--{name}:{colours[i % len(colours)]};" for i, name in enumerate(regions))

    return f":root{{{block(LIGHT)}}}@media(prefers-color-scheme:dark){{:root{{{block(DARK)}}}}}"


def _head(report: dict[str, Any]) -> str:
    failed = [check for check in report["checks"] if not check["passed"]]
    verdict = "Every promise was kept" if not failed else f"{len(failed)} of {len(report['checks'])} checks failed"
    countries = len({site["country"] for site in report["sites"]})
    lost, surged = report["failover"]["region"], report["surge_region"]
    killed = "then the region was killed" if lost == surged else f"then {lost} was killed"
    lead = (
        f"{report['requests']['total']} chats and {report['images']['total']} image jobs from "
        f"{len(report['sites'])} cities in {countries} countries were sent to {len(report['regions'])} regions of real "
        f"processes on one machine. A surge hit {surged}; {killed} and restarted; then the leading control plane, "
        "etcd and Redis were killed."
    )
    return tag(
        "header",
        [
            tag("p", "Penstock &#183; a planet on one machine", class_="eyebrow"),
            tag("h1", [tag("span", "&#10003;" if not failed else "&#10007;", class_="seal"), text(verdict)]),
            tag("p", text(lead), class_="lead"),
            *(tag("p", f"<b>{text(check['name'])}</b>: {text(check['says'])}", class_="broken") for check in failed),
        ],
        class_="bad" if failed else "good",
    )


def _figures(report: dict[str, Any]) -> str:
    requests, failover, images = report["requests"], report["failover"], report["images"]
    figures = [
        (f"{requests['ok']}<small> / {requests['total']}</small>", "requests answered"),
        (report["residency"]["violations"], f"residency violations in {report['residency']['checked']} checked"),
        (report["spillover"]["in_surge"], "requests spilled over during the surge"),
        ("none", f"attempts at {failover['region']} after the kill")
        if failover["rerouted_s"] is None
        else (_seconds(failover["rerouted_s"]), f"until the last attempt at the killed {failover['region']}"),
        (failover["lost_not_started"], "requests lost before an engine started them"),
        (failover["streams_continued"], "streams of the killed region completed by another region"),
        (_seconds(report["failback"]["seconds"]), "until failback of the region was complete"),
        (report["control_plane_loss"]["failed_requests"], "requests failed without control plane, etcd, Redis"),
        (f"{images['ok']}<small> / {images['total']}</small>", "image jobs answered"),
    ]
    return tag(
        "section", [tag("div", [tag("b", str(n)), tag("span", text(what))]) for n, what in figures], class_="figures"
    )


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}<small> s</small>"


def _map(report: dict[str, Any], run: Run, regions: Sequence[str]) -> str:
    controls = (
        '<div class="controls"><button id="play" type="button" aria-label="Play the run">&#9654;</button>'
        f'<input id="seek" type="range" min="0" max="{run.scenario.duration_s:.1f}" step="0.1" value="0" '
        'aria-label="Time in the run"><output id="clock">whole run</output></div><p id="caption" class="caption"></p>'
    )
    strip = [_card(region) for region in sorted(report["regions"], key=lambda region: region["name"])]
    return _section(
        "Flows",
        "Lines connect client sites with the regions that served them, in the colour of the region. Play the run, or "
        "drag the slider.",
        draw_map(_places(report["regions"], "city"), _places(report["sites"], "country"), run.served),
        controls,
        tag("div", strip, class_="strip"),
    )


def _card(region: dict[str, Any]) -> str:
    name = region["name"]
    return tag(
        "div",
        [
            tag("h3", [tag("i", style=f"background:{colour(name)}"), text(name), tag("em", "", class_="state")]),
            tag(
                "p", text(f"{region['city']} · {region['agents']} agent{'s' * (region['agents'] > 1)}"), class_="where"
            ),
            tag("p", "", class_="doing"),
            tag("div", "", class_="meter"),
        ],
        class_="card",
        data_region=name,
    )


def _timeline(report: dict[str, Any], run: Run, regions: Sequence[str]) -> str:
    events = [
        tag(
            "li",
            [tag("span", f"{event['at_s']:.1f} s"), text(event["text"])],
            class_="bad" if event["kind"] in BAD else None,
        )
        for event in report["events"]
    ]
    legend = [tag("span", [tag("i", style=f"background:{colour(name)}"), text(name)]) for name in regions]
    return _section(
        "Timeline",
        "Each row shows the home demand of one region (answered requests per second, smoothed); the colour is the "
        "serving region. Each dot below is a request. A red cross is an unanswered request at its scheduled time.",
        tag("div", ["served by", *legend], class_="legend"),
        draw_timeline(run, regions),
        tag("ol", events, class_="events"),
    )


def _flows(report: dict[str, Any], regions: Sequence[str]) -> str:
    tables = [
        tag("figure", [tag("figcaption", text(phase["title"])), draw_flows(phase["who_served_whom"], regions)])
        for phase in report["phases"]
    ]
    return _section(
        "Flows by phase",
        "Rows are home regions, columns are serving regions. Cells off the diagonal are traffic outside home.",
        tag("div", tables, class_="tables"),
    )


def _images(report: dict[str, Any], regions: Sequence[str]) -> str:
    images = report["images"]
    lead = (
        f"Jobs of a text-to-image service, one at a time on each engine, under the same residency rules: "
        f"{images['ok']} of {images['total']} were answered, {images['bound_to_some_regions']} were restricted to some "
        f"regions and {images['outside_residency']} ran outside their permitted regions. Agents accounted "
        f"{images['megapixel_steps_accounted']:,.0f} of {images['megapixel_steps']:,.0f} megapixel steps."
    )
    rows = [
        ("end to end, p50", _ms(_in_ms(images["e2e_p50_s"]))),
        ("end to end, p99", _ms(_in_ms(images["e2e_p99_s"]))),
        ("lost", str(len(images["lost"]))),
    ]
    table = tag("table", [tag("tr", [tag("td", name), tag("td", value)]) for name, value in rows])
    flows = tag("figure", [tag("figcaption", "Whole run"), draw_flows(images["who_served_whom"], regions)])
    return _section("Images", lead, tag("div", [flows, table], class_="tables"))


def _in_ms(value_s: float | None) -> float | None:
    return None if value_s is None else value_s * 1000


def _latency(report: dict[str, Any], regions: Sequence[str]) -> str:
    head = "<tr><th>home region<th>requests<th>first token p50<th>p99<th>end to end p50<th>p99</tr>"
    keys = ("ttft_p50_ms", "ttft_p99_ms", "e2e_p50_ms", "e2e_p99_ms")
    rows = [
        tag("tr", [tag("td", text(name)), tag("td", str(row["requests"])), *(tag("td", _ms(row[key])) for key in keys)])
        for name, row in report["latency"].items()
    ]
    return _section(
        "Latency",
        "Time from the scheduled start of a request to its first token (upper line) and its last token (lower line): "
        "dot at p50, bar at p99, over the whole run.",
        tag("div", [draw_latency(report["latency"], regions), tag("table", [head, *rows])], class_="latencies"),
    )


def _ms(value: float | None) -> str:
    return "&#8211;" if value is None else f"{value:,.0f} ms"


def _checks(report: dict[str, Any]) -> str:
    items = [
        tag(
            "li",
            [tag("b", text(check["name"])), tag("span", text(check["says"]))],
            class_="pass" if check["passed"] else "miss",
        )
        for check in report["checks"]
    ]
    return _section("Checks", "The exit code is 0 only if every check passed.", tag("ul", items, class_="checks"))


def _notes(report: dict[str, Any]) -> str:
    facts = {
        "Workload": report["workload"],
        "Geography": report["geography"],
        "Network": report["network"],
        **{name[:1].upper() + name[1:]: meaning for name, meaning in report["definitions"].items()},
        "Made": report["made_at"],
        **report["environment"],
    }
    items = [tag("dt", text(key)) + tag("dd", text(value)) for key, value in facts.items()]
    return _section("Definitions and environment", "", tag("dl", items))


def _section(title: str, lead: str, *content: str) -> str:
    return tag("section", [tag("h2", text(title)), tag("p", text(lead), class_="hint") if lead else "", *content])


def _places(rows: Sequence[dict[str, Any]], label: str) -> list[Place]:
    return [Place(row["name"], row[label], row["latitude_deg"], row["longitude_deg"]) for row in rows]


def _played(report: dict[str, Any], run: Run, regions: Sequence[str]) -> dict[str, Any]:
    """Return the data from which the script renders any time of the run."""
    sites = _places(report["sites"], "country")
    places = {place.name: place for place in [*_places(report["regions"], "city"), *sites]}
    number = {site.name: index for index, site in enumerate(sites)}
    order = {name: index for index, name in enumerate(regions)}
    kinds = list(Kind)
    killed, ready = run.event(EventKind.REGION_KILLED), run.event(EventKind.REGION_READY)
    return {
        "duration": run.scenario.duration_s,
        "left": LEFT,
        "width": WIDTH,
        "regions": regions,
        "sites": [site.name for site in sites],
        "arcs": [[arc(site, places[region]) for region in regions] for site in sites],
        "phases": [[phase.from_s, phase.title] for phase in run.scenario.phases],
        "events": [[round(event.at_s, 2), event.text] for event in run.events],
        "dead": [
            run.scenario.lost_region,
            killed.at_s if killed else None,
            ready.at_s if ready else None,
            (ready.at_s + run.failback_ramp_s) if ready else None,
        ],
        "requests": [
            [
                round(request.due_s, 2),
                number.get(request.site, -1),
                order.get(request.home, -1),
                order.get(request.server, -1),
                round(request.ttft_s, 3) if request.ttft_s is not None else None,
                round(request.e2e_s, 3) if request.e2e_s is not None else None,
                1 if request.outcome is Outcome.OK else 0,
                kinds.index(kind_of(run, request)) if request.outcome is Outcome.OK else -1,
                1 if len(request.required) < len(regions) else 0,
            ]
            for request in run.served
        ],
        "kinds": [kind.value for kind in kinds],
    }

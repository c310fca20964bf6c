"""Renders the report as one HTML file: its data, and the modules that draw it, with the map of the operators' page."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from importlib.resources import files
from typing import Any

from lab.demo.measure import kind_of
from lab.demo.records import EventKind, Outcome, Run

SHARED_MODULES = ("countries.js", "dom.js", "fleet.js", "format.js", "land.js", "map.js", "map_layout.js")
"""Modules of the operators' page that the report uses."""


def render_page(report: dict[str, Any], run: Run) -> str:
    """Return the page as HTML without external resources."""
    shared, own = files("control_plane.ui") / "static", files("lab.demo.page")
    modules = {name: shared / name for name in SHARED_MODULES} | {"report.js": own / "report.js"}
    imports = {name: _data_url(source.read_text(encoding="utf-8")) for name, source in modules.items()}
    # "</script" and "<!--" have a meaning in script elements; "\u003c" is the same character in JSON.
    data = json.dumps(report | {"run": _played(run, report["sites"])}, separators=(",", ":")).replace("<", "\\u003c")
    style = "".join((folder / name).read_text("utf-8") for folder, name in ((shared, "style.css"), (own, "report.css")))
    failed = sum(not check["passed"] for check in report["checks"])
    verdict = f"{failed} of {len(report['checks'])} checks failed" if failed else "Every promise was kept"
    head = [
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>Penstock: {verdict}</title>",
        f"<style>{style}</style>",
        f'<script type="application/json" id="report">{data}</script>',
        f'<script type="importmap">{json.dumps({"imports": imports})}</script>',
    ]
    body = "<noscript>The page needs JavaScript; report.json has the same data.</noscript>"
    body += '<script type="module">import "report.js";</script>'
    return f'<!doctype html><html lang="en"><head>{"".join(head)}</head><body>{body}</body></html>\n'


def _data_url(module: str) -> str:
    """Return a module as a URL. A relative import has no base in a data URL, so it becomes a name of the import map."""
    source = re.sub(r'from "\./', 'from "', module)
    return f"data:text/javascript;base64,{b64encode(source.encode()).decode()}"


def _played(run: Run, sites: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the data from which the page shows any time of the run."""
    countries = {site["name"]: site["country"] for site in sites}
    killed, ready = run.event(EventKind.REGION_KILLED), run.event(EventKind.REGION_READY)
    return {
        "duration_s": run.scenario.duration_s,
        "lost": {
            "region": run.scenario.lost_region,
            "killed_s": killed.at_s if killed else None,
            "ready_s": ready.at_s if ready else None,
            "ramped_s": ready.at_s + run.failback_ramp_s if ready else None,
        },
        "requests": [
            {
                "due_s": round(request.due_s, 2),
                "country": countries.get(request.site, ""),
                "home": request.home,
                "server": request.server,
                "e2e_s": None if request.e2e_s is None else round(request.e2e_s, 2),
                "ok": request.outcome is Outcome.OK,
                "kind": kind_of(run, request) if request.outcome is Outcome.OK else "",
            }
            for request in run.served
        ],
    }

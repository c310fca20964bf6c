"""Runs a check: starts a fleet and Prometheus, runs the demo's scenario, sends every query, and writes the report."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from random import Random
from typing import Any

import httpx
import yaml
from rich.console import Console

from lab.demo.demo_fleet import demo_fleet
from lab.demo.inputs import DemoInputs, gather
from lab.demo.screen import Screen
from lab.demo.story import Story
from lab.planet.configs import control_plane_urls
from lab.planet.planet import Planet
from tests.dashboard_check.fleet_events import change_policy, inject_engine_faults, repeat_chat, set_override
from tests.dashboard_check.on_demand_agent import SITE, on_demand_agent
from tests.dashboard_check.panel_queries import Query, dashboard_queries, rule_queries
from tests.dashboard_check.prometheus import PrometheusServer, find_prometheus
from tests.dashboard_check.prometheus_api import PrometheusApi
from tests.dashboard_check.query_report import Answer, build_report

PACE = 2.0
"""Factor for the durations of the demo's scenario, so that the outage of a region exceeds the `for` of its alert."""

EVENTS_AFTER_S = 5.0
SCRAPE_INTERVAL_S = 2
SEED = 2026

PROMETHEUS_PORT = "prometheus"


class NoQueries(Exception):
    """A directory contains neither dashboards nor rules."""


async def check(dashboards: Path, out: Path, console: Console) -> dict[str, Any]:
    """Run the fleet, send every query, write report.json into `out`, and return the report.

    Raises:
        NoQueries, UnknownVariable: `dashboards` is invalid; no process was started.
        ServerError: a program is missing, or a process does not become ready.
    """
    find_prometheus()
    read_queries(dashboards, 60)
    inputs = gather(None, None, None, PACE, Random(SEED))
    async with (
        demo_fleet(inputs, out / "logs", more_ports=[PROMETHEUS_PORT]) as planet,
        on_demand_agent(planet.directory / SITE) as on_demand,
    ):
        prometheus = _prometheus(planet, on_demand, dashboards)
        try:
            await asyncio.to_thread(planet.start)
            await asyncio.to_thread(prometheus.start)
            await asyncio.to_thread(prometheus.wait_ready)
            report = await _ask_after_story(inputs, planet, dashboards, prometheus.url, console)
        finally:
            await asyncio.shield(asyncio.to_thread(prometheus.stop, 3.0))
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def read_queries(folder: Path, range_s: int) -> list[Query]:
    """Return the queries of all dashboards (*.json) and rule files (*.yaml, *.yml) below `folder`.

    Raises:
        NoQueries: `folder` contains no query.
        UnknownVariable: a query uses a variable that its dashboard does not declare.
    """
    found: list[Query] = []
    for path in sorted(folder.rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if "panels" in content:
            found += dashboard_queries(str(path), content, range_s)
    for path in rule_files(folder):
        found += rule_queries(str(path), yaml.safe_load(path.read_text(encoding="utf-8")))
    if not found:
        raise NoQueries(f"{folder}: no dashboard and no rules in this directory; run `python -m dashboards`")
    return found


def rule_files(folder: Path) -> list[Path]:
    """Return the rule files below `folder`."""
    candidates = sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml")])
    return [path for path in candidates if "groups" in (yaml.safe_load(path.read_text(encoding="utf-8")) or {})]


async def _ask_after_story(
    inputs: DemoInputs, planet: Planet, dashboards: Path, prometheus_url: str, console: Console
) -> dict[str, Any]:
    began_s = time.time()
    async with httpx.AsyncClient(base_url=prometheus_url, timeout=60) as client, asyncio.TaskGroup() as group:
        api = PrometheusApi(client)
        story = Story(planet, inputs, Screen(console))
        group.create_task(_inject_events(planet))
        group.create_task(repeat_chat(planet))
        # The scenario ends with killed control planes, so missing targets are read before the first kill.
        missing = group.create_task(_missing_targets(api))
        await story.run()
        ended_s = time.time()
        answers = []
        for query in read_queries(dashboards, int(ended_s - began_s)):
            answers.append(Answer(query, *await api.series(query.expression, began_s, ended_s)))
        return build_report(answers, await api.broken_rules(), await missing)


async def _inject_events(planet: Planet) -> None:
    await asyncio.sleep(EVENTS_AFTER_S)
    change_policy(planet.policy_dir)
    await set_override(planet, planet.admin_token)
    await inject_engine_faults(planet)


async def _missing_targets(api: PrometheusApi) -> list[str]:
    await asyncio.sleep(EVENTS_AFTER_S + 2 * SCRAPE_INTERVAL_S)
    return await api.missing_targets()


def _prometheus(planet: Planet, on_demand: str, dashboards: Path) -> PrometheusServer:
    """Return a Prometheus with the target labels that dashboards/README.md requires, and `on_demand` as a target."""
    agents = [{"targets": [on_demand], "labels": {"site": SITE, "agent": "a"}}]
    for name, where in planet.admin_urls().items():
        site, _, agent = name.partition("/")
        agents.append({"targets": [where.removeprefix("http://")], "labels": {"site": site, "agent": agent}})
    control_planes = [
        {
            "targets": [where.removeprefix("http://")],
            "labels": {"site": planet.topology.regions[0].name, "control_plane": name},
        }
        for name, where in control_plane_urls(planet.topology, planet.ports).items()
    ]
    server = PrometheusServer(
        planet.directory / "prometheus",
        port=planet.ports[PROMETHEUS_PORT],
        scrape_configs=[
            {
                "job_name": "penstock-agent",
                "static_configs": agents,
                "authorization": {"credentials": planet.agents_key},
            },
            {
                "job_name": "penstock-control-plane",
                "static_configs": control_planes,
                "authorization": {"credentials": planet.admin_token},
            },
        ],
        rule_files=rule_files(dashboards),
        interval_s=SCRAPE_INTERVAL_S,
    )
    server.log_path = planet.logs / "prometheus.log"
    return server

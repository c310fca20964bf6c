"""One notification for each incident, and none for what another alert explains, by a real Alertmanager.

Needs `amtool` and `prometheus-alertmanager` (Debian: the package `prometheus-alertmanager`; or any release), on PATH or
named by AMTOOL and ALERTMANAGER.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.servers.free_ports import free_ports
from dashboards.__main__ import GENERATED
from dashboards.alerts import ALERTS
from dashboards.notifications import INHIBITIONS
from dashboards.rules import Severity
from tests.support.wait import PATIENCE_S, pauses

CONFIG = GENERATED / "alertmanager.yaml"
AMTOOL = shutil.which(os.environ.get("AMTOOL", "amtool"))
ALERTMANAGER = shutil.which(os.environ.get("ALERTMANAGER", "prometheus-alertmanager"))
needs_amtool = pytest.mark.skipif(AMTOOL is None, reason="no amtool on PATH or in AMTOOL")
needs_alertmanager = pytest.mark.skipif(ALERTMANAGER is None, reason="no Alertmanager on PATH or in ALERTMANAGER")
SEVERITIES = {alert.name: alert.severity.value for alert in ALERTS}


def test_inhibitions_name_alerts_and_no_alert_mutes_itself() -> None:
    for inhibition in INHIBITIONS:
        assert {inhibition.source, *inhibition.targets} <= SEVERITIES.keys()
        assert inhibition.source not in inhibition.targets
    pages = {name for name, severity in SEVERITIES.items() if severity == Severity.PAGE}
    muted_by_tickets = {
        (inhibition.source, target)
        for inhibition in INHIBITIONS
        for target in inhibition.targets
        if target in pages and inhibition.source not in pages
    }
    assert not muted_by_tickets, "a ticket must not mute a page"


def test_an_alert_mutes_only_what_it_is_about() -> None:
    def about(name: str) -> set[str]:
        """The labels in an alert's summary, besides those of its place."""
        (summary,) = (alert.summary for alert in ALERTS if alert.name == name)
        return set(re.findall(r"\$labels\.(\w+)", summary)) - {"region", "site"}

    for inhibition in INHIBITIONS:
        equal = {*inhibition.equal} - {"place"}
        assert about(inhibition.source) == equal, inhibition.source
        for target in inhibition.targets:
            assert equal <= about(target), f"{target} lacks a label, and is never muted by {inhibition.source}"


@needs_amtool
def test_amtool_accepts_the_configuration_and_its_routes() -> None:
    checked = subprocess.run([str(AMTOOL), "check-config", str(CONFIG)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for severity in Severity:
        labels = [f"severity={severity.value}", "alertname=PenstockAnything", "place=eu-de"]
        command = [str(AMTOOL), "config", "routes", "test", f"--config.file={CONFIG}", *labels]
        assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip() == severity.value


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[httpx.Client]:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    options = [f"--config.file={CONFIG}", f"--storage.path={tmp_path}", "--cluster.listen-address="]
    process = subprocess.Popen(
        [str(ALERTMANAGER), *options, f"--web.listen-address={url.removeprefix('http://')}"], stderr=subprocess.DEVNULL
    )
    try:
        with httpx.Client(base_url=url) as http:
            yield http
    finally:
        process.kill()
        process.wait()


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    for pause_s in pauses():
        if holds():
            return
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(pause_s)


def alert(name: str, **labels: str) -> dict[str, Any]:
    return {"labels": {"alertname": name, "severity": SEVERITIES[name], **labels}}


@needs_alertmanager
@pytest.mark.long
def test_a_lost_region_is_one_notification_and_mutes_what_it_explains(alertmanager: httpx.Client) -> None:
    def is_ready() -> bool:
        try:
            return alertmanager.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    wait_for(is_ready)
    sent = [
        alert("PenstockRegionFailed", region="eu-de", place="eu-de"),
        alert("PenstockAvailabilityLow", region="eu-de", place="eu-de"),
        alert("PenstockEndpointDown", site="eu-de", endpoint="gpu-1", place="eu-de"),
        alert("PenstockAgentDown", site="eu-de", place="eu-de"),
        alert("PenstockEndpointDown", site="eu-es", endpoint="gpu-2", place="eu-es"),
        alert("PenstockEndpointSlow", site="eu-es", endpoint="gpu-2", place="eu-es"),
        alert("PenstockEndpointSlow", site="eu-es", endpoint="gpu-3", place="eu-es"),
    ]
    assert alertmanager.post("/api/v2/alerts", json=sent).status_code == 200
    wanted = {
        ("PenstockRegionFailed", "eu-de", ""),
        ("PenstockAvailabilityLow", "eu-de", ""),
        ("PenstockEndpointDown", "eu-es", "gpu-2"),
        ("PenstockEndpointSlow", "eu-es", "gpu-3"),
    }

    def notified() -> set[tuple[str, str, str]]:
        found = alertmanager.get("/api/v2/alerts", params={"inhibited": "false"}).json()
        rows = [each["labels"] for each in found if each["status"]["state"] == "active"]
        return {(row["alertname"], row["place"], row.get("endpoint", "")) for row in rows}

    wait_for(lambda: notified() == wanted)
    groups = alertmanager.get("/api/v2/alerts/groups", params={"inhibited": "false"}).json()
    active = [
        (group["receiver"]["name"], group["labels"]["place"])
        for group in groups
        if any(each["status"]["state"] == "active" for each in group["alerts"])
    ]
    receivers = {SEVERITIES[name] for name, place, _ in wanted if place == "eu-de"}
    assert sorted(active) == sorted([*((name, "eu-de") for name in receivers), ("ticket", "eu-es")])

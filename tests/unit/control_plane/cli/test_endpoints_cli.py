"""`penstock endpoints`: every page, as a table and as JSON."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from control_plane.cli.commands.viewing import endpoints_commands as command
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.health.engines.gpu_metrics import GpuState
from tests.support.reports import MODEL, endpoint, packed, report
from tests.unit.control_plane.cli.test_overrides_cli import penstock, printed, url

__all__ = ["penstock", "url"]


def test_every_endpoint_page_by_page(penstock: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LIMIT", 2)
    rows = (
        msgspec.structs.replace(endpoint("gpu-0", in_flight=7), gpu=GpuState(2, 0.9, 0.5, 91.0, True)),
        msgspec.structs.replace(endpoint("gpu-1", EndpointCondition.EJECTED), reason="requests failed"),
        endpoint("gpu-2", EndpointCondition.WARMING),
        msgspec.structs.replace(endpoint("gpu-3"), address="[fe80::1]:8000", zone="", models=("other",)),
        msgspec.structs.replace(endpoint("gpu-4", EndpointCondition.DOWN), reason="connection refused"),
    )
    body, headers = packed(msgspec.structs.replace(report("eu-de"), endpoints=rows, endpoints_omitted=2))
    assert penstock("endpoints").exit_code == 0
    assert httpx.post(f"{url}/v1/reports", content=body, headers=dict(headers)).status_code == 202
    table = penstock("endpoints")
    for word in (
        "eu-de",
        "gpu-4",
        "gpu-0.internal:8000",
        "[fe80::1]:8000",
        MODEL,
        "zone-a",
        "h100",
        "ejected",
        "7/25",
        "requests failed",
        "down",
        "connection refused",
        "throttled",
    ):
        assert word in table.stdout, word
    assert "2 more endpoints are omitted" in table.stderr
    listed = printed(penstock("endpoints", "--region", "eu-de", "-o", "json"))
    assert [item["name"] for item in listed] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4"]
    assert listed[0]["gpu"]["temperature_c"] == 91.0
    assert [item["name"] for item in printed(penstock("endpoints", "--state", "warming", "-o", "json"))] == ["gpu-2"]
    assert [item["name"] for item in printed(penstock("endpoints", "--model", "other", "-o", "json"))] == ["gpu-3"]
    assert printed(penstock("endpoints", "--region", "eu-es", "-o", "json")) == []
    assert penstock("endpoints", "--state", "tired").exit_code == 2

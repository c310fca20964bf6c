"""`penstock explain --record`: a logged request by the plan and the policy of its moment, and by those of now."""

from __future__ import annotations

import json
from io import StringIO
from random import Random
from typing import Any

import msgspec
import pytest
from rich.console import Console

from control_plane.cli.views.explain_view import explanation_view
from penstock.admission.model_queue import NextReason
from penstock.admission.queue_explanation import QueuedTenant, QueueExplanation
from penstock.planning.plan import ArcReason
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.routing.explain import ExplainQuery, explain
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import RegionChoice
from tests.support import planet
from tests.support.paths import PLANET
from tests.support.reports import MODEL
from tests.unit.control_plane.cli.test_overrides_cli import penstock, printed, url

__all__ = ["penstock", "url"]

LINE: dict[str, Any] = {
    "at": 1000.0, "request_id": "r-1", "tenant": "eu-personal", "model": MODEL, "path": "/v1/x", "kind": "failover",
    "server": "eu-es", "endpoint": "gpu-0", "outcome": "ok", "status": 200, "origin": "eu-de", "country": "DE",
    "policy_digest": "ab" * 32, "plan_generation": 3, "tried": {"eu-de": "unreachable"},
}  # fmt: skip


def test_a_record_is_explained_by_its_moment_and_by_now(penstock: Any) -> None:
    shown = penstock("explain", "--record", json.dumps(LINE))
    assert shown.exit_code == 0, shown.stderr
    assert "request r-1: ok, failover at eu-es/gpu-0" in shown.stdout
    assert "policy abababababab of that moment is not available" in shown.stdout
    assert "plan 3 is not kept" in shown.stdout
    assert "now, by " in shown.stdout
    found = printed(penstock("explain", "--record", json.dumps(LINE), "-o", "json"))
    assert found["explanation"]["query"]["tried"] == {"eu-de": Reason.UNREACHABLE.value}, "as the record states"
    assert found["present"]["query"]["origin"] == "eu-de"
    assert len(found["notes"]) == 3


@pytest.mark.parametrize("missing", ["at", "policy_digest", "plan_generation", "tried"])
def test_a_record_of_an_earlier_release_is_explained(penstock: Any, missing: str) -> None:
    line = {field: value for field, value in LINE.items() if field != missing}
    assert penstock("explain", "--record", json.dumps(line)).exit_code == 0


def test_the_queue_of_an_agent_is_shown_with_the_reason_of_its_next_request() -> None:
    query = ExplainQuery("eu-de", planet.MODEL, "personal")
    found = explain(planet.policy(), None, query, planet.healthy("eu-de"), Random(1))
    tenants = (QueuedTenant("acme", 2, 3, 1.25, 9.0, 3.0, 0.75, 4.5), QueuedTenant("b", BATCH_PRIORITY, 1, 2.0, 1.0))
    queue = QueueExplanation(4, NextReason.SHARE, tenants)
    shown = StringIO()
    Console(file=shown, width=200).print(explanation_view(msgspec.structs.replace(found, queue=queue)))
    (row,) = [line for line in shown.getvalue().splitlines() if "acme" in line]
    words = [word for word in row.split() if word.isalnum() or "." in word]
    assert words == ["acme", "2", "3", "75", "4.5", "s", "3", "1.2", "s", "9.0", "s"]
    assert "batch" in shown.getvalue()
    assert f"next       {NextReason.SHARE}" in shown.getvalue()


def test_a_burst_endpoint_that_serves_is_shown_with_the_room_of_its_region() -> None:
    view = msgspec.structs.replace(planet.healthy("eu-es")["eu-es"], ready=False, burst_room=4, burst_start_s=30.0)
    found = explain(planet.policy(), None, ExplainQuery("eu-de", planet.MODEL, "open"), {"eu-es": view}, Random(1))
    chosen = RegionChoice("eu-es", ArcReason.SPILLOVER, spends_credit=False, uses_burst=True)
    regions = [each for each in found.regions if each.region == "eu-es"]
    marked = (msgspec.structs.replace(regions[0], why=ArcReason.SPILLOVER, uses_burst=True),)
    shown = StringIO()
    of_burst = msgspec.structs.replace(found, chosen=chosen, refusal=None, regions=marked)
    Console(file=shown, width=240).print(explanation_view(of_burst))
    assert "burst endpoints for 4 after a start of 30 s" in shown.getvalue()
    assert shown.getvalue().count("spillover, by a burst endpoint") == 2


def test_a_batch_request_is_explained_by_the_prices_and_idle_slots(penstock: Any) -> None:
    of_fleet = ("explain", "--origin", "eu-de", "--model", planet.MODEL, "--tenant", "open", "--batch", "-o", "json")
    found = printed(penstock(*of_fleet))["query"]
    assert (found["is_batch"], found["at"] > 0.0) == (True, True)
    asked = ("explain", "--policy", str(PLANET), "--origin", "jp-tok", "--model", "llama-3.1-8b", "--tenant", "open")
    shown = penstock(*asked, "--batch").stdout
    assert "the cheapest region with idle slots serves a batch request" in shown
    assert "on a batch credit" in shown
    assert "costs_more: 1.25 for a GPU hour" in shown

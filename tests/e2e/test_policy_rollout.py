"""Rollouts to real agents under live traffic: a good policy is promoted, a bad policy is rolled back automatically."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.geoip import SITES
from lab.planet.bundle import SHIPPED_BUNDLE
from lab.planet.configs import ADMIN_TOKEN_FILE, control_plane_urls, url
from lab.planet.topology import CHAT_8B, Engine, Region, Topology, agent_port
from tests.support.control_planes import UNKEPT, rollout_rules
from tests.support.live_planets import BETWEEN_S, BODY, KEY, running
from tests.support.wait import found

WITHIN_S = 90.0
RULES = rollout_rules(
    shadow_s=5,
    canary_regions="[eu-es]",
    canary_s=5,
    min_requests=20,
    max_failure_increase=0.1,
    # Latency on a busy machine is no evidence about the policy.
    max_latency_factor=1000,
    watch_s=5,
)


def two_regions() -> Topology:
    """Frankfurt and Madrid, with an engine each."""
    regions = tuple(
        Region(name, city, ("a",), (Engine(f"{name}-small", CHAT_8B, "h100", f"{name}-1", 8),))
        for name, city in (("eu-de", "Frankfurt"), ("eu-es", "Madrid"))
    )
    return Topology(regions, SITES[:1], ("north",), time_scale=4.0)


async def ask(address: str, statuses: list[int]) -> None:
    """A client that sends requests to one region's agent in a loop."""
    async with httpx.AsyncClient(timeout=30.0) as http:
        while True:
            answer = await http.post(f"{address}/v1/chat/completions", headers=KEY, json=BODY)
            statuses.append(answer.status_code)
            await asyncio.sleep(BETWEEN_S)


@pytest.mark.timeout(400)
async def test_a_policy_that_refuses_a_tenant_affects_one_region_and_is_rolled_back(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(SHIPPED_BUNDLE, tmp_path / "policy"))
    (bundle / "rollout.yaml").write_bytes(RULES)
    async with running(tmp_path, two_regions(), bundle) as planet:
        statuses: dict[str, list[int]] = {"eu-de": [], "eu-es": []}
        asking = [
            asyncio.create_task(ask(url(planet.ports[agent_port(region, "a", "traffic")]), seen))
            for region, seen in statuses.items()
        ]
        token = (tmp_path / "state" / ADMIN_TOKEN_FILE).read_text().strip()
        (north,) = control_plane_urls(planet.topology, planet.ports).values()
        async with httpx.AsyncClient(
            headers={"authorization": f"Bearer {token}"}, timeout=30.0, limits=UNKEPT
        ) as operator:

            async def ended(number: int) -> Any:
                shown = (await operator.get(f"{north}/v1/rollouts/current")).json()
                rollout = shown.get("rollout", {})
                over = rollout.get("phase") in ("done", "rolled_back")
                return shown if over and rollout["number"] == number else None

            async def all_run(digest: str) -> bool | None:
                agents = (await operator.get(f"{north}/v1/rollouts/current")).json()["agents"]
                return True if len(agents) == 2 and {agent["in_force"] for agent in agents} == {digest} else None

            first = (await found(lambda: ended(1), WITHIN_S))["rollout"]["stable"]
            await found(lambda: all_run(first), WITHIN_S)
            spillover = bundle / "spillover.yaml"
            spillover.write_text(spillover.read_text().replace("0.8", "0.7"))
            good = (await found(lambda: ended(2), WITHIN_S))["rollout"]
            assert (good["phase"], good["stable"] != first) == ("done", True), good
            await found(lambda: all_run(good["stable"]), WITHIN_S)
            assert set(statuses["eu-de"] + statuses["eu-es"]) == {200}

            rules, permitted = bundle / "residency.yaml", "  tenants: [eu-personal]\nallow:\n  jurisdictions: "
            assert rules.read_text().count(f"{permitted}[EU]") == 1
            rules.write_text(rules.read_text().replace(f"{permitted}[EU]", f"{permitted}[US]"))
            bad = (await found(lambda: ended(3), WITHIN_S))["rollout"]
            assert (bad["phase"], bad["stable"]) == ("rolled_back", good["stable"]), bad
            assert "of requests fail" in bad["why"]
            await found(lambda: all_run(good["stable"]), WITHIN_S)
            since = {region: len(seen) for region, seen in statuses.items()}
            await found(
                lambda: asyncio.sleep(
                    0.0, True if all(len(statuses[region]) > since[region] + 10 for region in since) else None
                )
            )
            assert set(statuses["eu-de"]) == {200}, "only the canary region's clients noticed"
            assert 421 in statuses["eu-es"]
            assert set(statuses["eu-es"][since["eu-es"] + 1 :]) == {200}
        for task in asking:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    assert planet.unexpected_exits() == []

"""A drain under live traffic, on real processes: agents, engines, a WAN between two regions, a control plane, etcd.

How fast shares move is tested on a virtual clock (tests/property/test_closed_loop.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from lab.geoip import SITES
from lab.planet.configs import ADMIN_TOKEN_FILE, control_plane_urls, url
from lab.planet.topology import CHAT_8B, Engine, Region, Topology, agent_port, engine_port
from tests.support.control_planes import UNKEPT
from tests.support.live_planets import BETWEEN_S, BODY, KEY, running

ENOUGH = 20
"""As many answers in a row from one region show that all of them come from there."""


def two_regions() -> Topology:
    """Frankfurt, a little smaller and with one engine, and Madrid with three."""
    regions = tuple(
        Region(
            name,
            city,
            ("a",),
            tuple(Engine(f"{name}-{at}", CHAT_8B, "h100", f"{name}-{at}", slots) for at in range(engines)),
        )
        for name, city, engines, slots in (("eu-de", "Frankfurt", 1, 8), ("eu-es", "Madrid", 3, 3))
    )
    return Topology(regions, SITES[:1], ("north",), time_scale=4.0)


class Clients:
    """A client in Hamburg that sends requests in a loop and records the serving regions."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.regions: list[str] = []
        self.failed: list[str] = []

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=30.0) as http:
            while True:
                answer = await http.post(f"{self._address}/v1/chat/completions", headers=KEY, json=BODY)
                if answer.status_code == 200:
                    self.regions.append(answer.headers["x-penstock-region"])
                else:
                    self.failed.append(answer.text)
                await asyncio.sleep(BETWEEN_S)

    async def until(self, holds: Callable[[], bool], within_s: float = 90.0) -> None:
        async with asyncio.timeout(within_s):
            while True:
                if holds():
                    return
                await asyncio.sleep(BETWEEN_S)

    async def until_all_from(self, region: str) -> None:
        await self.until(lambda: self.regions[-ENOUGH:] == [region] * ENOUGH)


async def until_there_is_a_leader(send: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Repeat a request while there is no leader, or the leader has no reports of all regions, which is a 503."""
    async with asyncio.timeout(90.0):
        while True:
            response = await send()
            if response.status_code != 503:
                return response
            await asyncio.sleep(BETWEEN_S)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_drain_and_its_lift_across_a_leader_failure_fail_no_request(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, two_regions()) as planet:
        clients = Clients(url(planet.ports[agent_port("eu-de", "a", "traffic")]))
        asking = asyncio.create_task(clients.run())
        token = (tmp_path / "state" / ADMIN_TOKEN_FILE).read_text().strip()
        (north,) = control_plane_urls(planet.topology, planet.ports).values()
        async with httpx.AsyncClient(
            headers={"authorization": f"Bearer {token}"}, timeout=30.0, limits=UNKEPT
        ) as operator:
            await clients.until_all_from("eu-de")
            body = {"reason": "a test", "expires_in_s": 600}
            drained = await until_there_is_a_leader(lambda: operator.post(f"{north}/v1/regions/eu-de/drain", json=body))
            assert drained.status_code == 201, drained.text
            for at in (0, 1):
                engine = url(planet.ports[engine_port("eu-es", f"eu-es-{at}")])
                (await operator.post(f"{engine}/lab/faults", json={"refuse_health": True})).raise_for_status()
            await clients.until_all_from("eu-es")

            async with asyncio.timeout(90.0):
                while True:
                    # A response without a leader is a 503, which has no state.
                    if (await operator.get(f"{north}/v1/regions/eu-es")).json().get("state") == "degraded":
                        break
                    await asyncio.sleep(BETWEEN_S)
            asked = {"origin": "eu-es", "model": CHAT_8B, "tenant": "eu-personal", "country": "ES"}
            answer = await until_there_is_a_leader(lambda: operator.post(f"{north}/v1/explain", json=asked))
            explained = answer.json()["explanation"]
            (madrid,) = [region for region in explained["regions"] if region["region"] == "eu-es"]
            assert (madrid["verdict"], madrid["view"]["state"]) == ("serves", "degraded")
            metrics = (await operator.get(f"{north}/metrics")).text
            assert 'penstock_region_state{region="eu-es",state="degraded"} 1.0' in metrics

            await asyncio.to_thread(planet.kill, ["control plane north"])
            since = len(clients.regions)
            await clients.until(lambda: len(clients.regions) >= since + ENOUGH)
            assert set(clients.regions[since:]) == {"eu-es"}, "without a planner the region stays drained"
            await asyncio.to_thread(planet.restart_killed)

            undrain = f"{north}/v1/regions/eu-de/undrain"
            lifted = await until_there_is_a_leader(lambda: operator.post(undrain, json={"reason": "a test"}))
            assert lifted.status_code == 200, lifted.text
            await clients.until_all_from("eu-de")
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
    assert clients.failed == []
    assert planet.unexpected_exits() == []

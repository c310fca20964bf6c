"""An agent and a control plane whose GeoIP database is truncated, overwritten and replaced while they serve."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from adapters.servers.etcd import EtcdServer
from lab.server_starting import start_etcd
from penstock.policy.kinds.residency_rules import ResidencyRule
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.chats import BODY
from tests.support.control_planes import OPERATOR, PLANET, UNKEPT, ControlPlaneServer, control_planes
from tests.support.planet import policy
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import PATIENCE_S, until_async
from tests.unit.adapters.test_geoip_lookup import write_database

CLIENT, OTHERS = "203.0.113.9", 50
JAPANESE_CLIENTS_ELSEWHERE = ResidencyRule(
    "japanese-clients-elsewhere", client_countries=frozenset({"JP"}), allow=frozenset({"us-east"})
)
SERVED, MISDIRECTED = 200, 421


async def answers(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"choices": [], "data": []}')


class Site:
    """An agent and a control plane that read the same GeoIP file."""

    def __init__(self, agent: AgentProcess, control_plane: ControlPlaneServer, http: httpx.AsyncClient) -> None:
        self._agent, self._control_plane, self._http = agent, control_plane, http

    async def served(self, address: str) -> int:
        """The agent's status for a request of a client behind the trusted proxy."""
        url = f"http://{self._agent.faces()['traffic']}/v1/chat/completions"
        return (await self._http.post(url, content=BODY, headers={"x-forwarded-for": address})).status_code

    async def steered(self, address: str) -> list[str]:
        """The entry regions that the control plane advises."""
        params = {"ip": address, "tenant": "personal"}
        response = await self._http.get(f"{self._control_plane.url}/v1/steer", params=params, headers=OPERATOR)
        assert response.status_code == 200, response.text
        return [entry["region"] for entry in response.json()["entries"]]

    async def locates(self, country: str, address: str = CLIENT) -> bool:
        """Whether both locate a client in `country`, DE or JP."""
        served, steered = await self.served(address), await self.steered(address)
        permitted = {"DE": (SERVED, False), "JP": (MISDIRECTED, True)}
        return (served, "us-east" in steered) == permitted[country]


@pytest.mark.long
async def test_a_geoip_file_that_changes_in_place_ends_no_process(tmp_path: Path, own_etcd: EtcdServer) -> None:
    file = write_database(tmp_path / "geo.mmdb", "DE")
    await publish(own_etcd, replace(policy(JAPANESE_CLIENTS_ELSEWHERE), anonymous_tenant="open"))
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=PATIENCE_S, limits=UNKEPT))
        gpu = await stack.enter_async_context(engine(answers))
        agent = AgentProcess(
            "a",
            tmp_path / "agent",
            region="eu-de",
            etcd_endpoint=own_etcd.endpoint,
            redis_url=None,
            endpoints_file=write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], 16),
            settings={"GEOIP_FILE": str(file), "TRUSTED_PROXIES": "127.0.0.0/8"},
        )
        stack.push_async_callback(asyncio.to_thread, agent.kill)
        agent.start()
        await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
        etcd = stack.enter_context(start_etcd(tmp_path / "etcd of the control plane"))
        settings = {"POLICY_DIR": str(PLANET), "GEOIP_FILE": str(file)}
        (server,) = stack.enter_context(control_planes("a", tmp_path, etcd.endpoint, policy_settings=settings))
        site = Site(agent, server, http)
        await until_async(lambda: site.locates("DE"))

        file.write_bytes(b"")
        for number in range(1, OTHERS):
            assert await site.locates("DE", f"{number}.1.2.3"), "addresses that no cache has"
        write_database(file, "JP")
        await until_async(lambda: site.locates("JP"))
        assert agent.alive
        assert server.alive

"""A fleet under load is upgraded from the previous release, process by process, and back: no request fails.

`make test-upgrade` installs the previous release (PREVIOUS in the Makefile) into an environment of its own, which
PENSTOCK_PREVIOUS names.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.servers.etcd import EtcdServer
from adapters.servers.process import find_script
from regional_agent.upstream.address import Address
from tests.support.agent_processes import AgentProcess
from tests.support.chats import answers
from tests.support.control_planes import OPERATOR, UNKEPT, ControlPlaneServer
from tests.support.redis_server import start_redis
from tests.support.sockets import RawClient, engine, post
from tests.support.wait import PATIENCE_S, until_async

CHECKOUT = ""
PREVIOUS = os.environ.get("PENSTOCK_PREVIOUS", "")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PREVIOUS, reason="needs the previous release: run `make test-upgrade`"),
    pytest.mark.timeout(1200),
]

SERVED = {"eu-de": ("near",), "eu-es": ("near", "far")}
"""Models by region; requests for `far` that arrive in eu-de are forwarded to eu-es."""

AGENTS = [(region, name) for region in SERVED for name in ("a", "b")]
KEY = "Authorization: Bearer example-everybody"
PAUSE_S = 0.02
"""Pause (s) of a client between two requests."""

POLICY = """\
apiVersion: penstock/v1
kind: Region
name: eu-de
country: DE
latitude_deg: 50.11
longitude_deg: 8.68
---
apiVersion: penstock/v1
kind: Region
name: eu-es
country: ES
latitude_deg: 40.42
longitude_deg: -3.7
---
apiVersion: penstock/v1
kind: Model
name: near
expected_service_s: 1
---
apiVersion: penstock/v1
kind: Model
name: far
---
apiVersion: penstock/v1
kind: DataClass
name: open
---
apiVersion: penstock/v1
kind: Tenant
name: everybody
data_class: open
key_digests: ["c4d65304c4ef8a1e044f0d7fe51bd44c9af8e9f75a58d4175248bbd01449a49a"]
---
apiVersion: penstock/v1
kind: Rollout
shadow_s: 2
watch_s: 5
---
apiVersion: penstock/v1
kind: Failover
probe_timeout_s: 5
hold_down_s: 1
failback_ramp_s: 2
"""


class Fleet:
    """Two control planes and two agents in each of two regions, each of either release."""

    def __init__(self, directory: Path, etcd: EtcdServer, engines: Address, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._etcd = etcd
        self._engines = engines
        self._stack = stack
        self.policy = directory / "policy"
        self.policy.mkdir()
        self.control_planes: list[ControlPlaneServer] = []
        self.agents: dict[tuple[str, str], AgentProcess] = {}
        self._redis = {region: stack.enter_context(start_redis(directory / f"redis-{region}")) for region in SERVED}
        self._starts = 0
        self.http = httpx.AsyncClient(headers=OPERATOR, timeout=PATIENCE_S, limits=UNKEPT)

    async def start(self) -> None:
        """Start every process of the previous release."""
        (self.policy / "policy.yaml").write_text(POLICY)
        for name in ("cp-a", "cp-b"):
            server = ControlPlaneServer(name, self._directory / name, self._etcd.endpoint, self.policy)
            self._stack.push_async_callback(asyncio.to_thread, server.kill)
            self.control_planes.append(server)
            await self._run(server, PREVIOUS)
        for agent in AGENTS:
            self.agents[agent] = await self._agent(*agent, PREVIOUS)
        await self.settled()

    async def replace_control_planes(self, environment: str) -> None:
        """Restart each control plane with the release in an environment, or CHECKOUT."""
        for server in self.control_planes:
            await asyncio.to_thread(server.stop, PATIENCE_S)
            await self._run(server, environment)
            await self.settled()

    async def replace_agents(self, environment: str) -> None:
        """Start an agent of another release on the ports of each one, and stop that one, one after the other."""
        for agent, old in self.agents.items():
            fresh = await self._agent(*agent, environment, old.faces())
            await asyncio.to_thread(old.stop, PATIENCE_S)
            assert (old.returncode, '"cut": 0' in old.log_tail()) == (0, True), old.log_tail()
            self.agents[agent] = fresh
            await self.settled()

    async def settled(self) -> None:
        """Wait until a control plane leads, every agent reports to it, and each runs the plan of its epoch."""

        async def is_settled() -> bool:
            status = await self.ask("GET", "/v1/status")
            agents = (await self.ask("GET", "/v1/agents")).get("items", [])
            return (
                status.get("leader") is not None
                and {(each["region"], each["name"]) for each in agents} == set(AGENTS)
                and all(each["report_age_s"] is not None and each["report_age_s"] < 5 for each in agents)
                and {region["state"] for region in status["regions"]} == {"healthy"}
            )

        await until_async(is_settled, 120.0)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer of a control plane; empty if none answers."""
        for server in self.control_planes:
            try:
                response = await self.http.request(method, server.url + path, json=body)
            except httpx.HTTPError:
                continue
            if response.status_code < 300:
                return response.json()
            if response.status_code < 500:
                raise AssertionError(response.text)
        return {}

    async def change(self, method: str, path: str, body: Any) -> Any:
        """Make a change, again until a control plane accepts it."""
        made: list[Any] = []

        async def accepted() -> bool:
            made.append(await self.ask(method, path, body))
            return bool(made[-1])

        await until_async(accepted, 60.0)
        return made[-1]

    async def _run(self, server: ControlPlaneServer, environment: str) -> None:
        server.argv = (_program("penstock", environment), *server.argv[1:])
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(server.wait_ready, PATIENCE_S)

    async def _agent(
        self, region: str, name: str, environment: str, faces: dict[str, Address] | None = None
    ) -> AgentProcess:
        self._starts += 1
        process = AgentProcess(
            name,
            self._directory / f"{region}-{name}-{self._starts}",
            region=region,
            etcd_endpoint=self._etcd.endpoint,
            redis_url=self._redis[region].url,
            endpoints_file=self._endpoints(region),
            listens={face: faces[face] for face in ("traffic", "peer")} if faces else {},
            settings={"STATE_DIR": str(self._directory / f"state-{region}-{name}")},
        )
        process.argv = (_program("penstock-agent", environment), *process.argv[1:])
        self._stack.push_async_callback(asyncio.to_thread, process.kill)
        await asyncio.to_thread(process.start)
        await asyncio.to_thread(process.wait_ready, PATIENCE_S)
        return process

    def _endpoints(self, region: str) -> Path:
        file = self._directory / f"endpoints-{region}.yaml"
        endpoint = {"name": "gpu-0", "url": f"http://{self._engines}", "models": SERVED[region], "engine": "http"}
        file.write_text(json.dumps([endpoint | {"slots": 100}]))
        return file


class Load:
    """Clients of every agent: some keep their connection, some open one for each request."""

    def __init__(self, addresses: list[Address]) -> None:
        self.done = 0
        self.failed: list[str] = []
        self._enough = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._ask(address, model, keeps))
            for address in addresses
            for model in ("near", "far")
            for keeps in (False, True)
        ]

    async def stop(self) -> None:
        self._enough.set()
        await asyncio.wait(self._tasks, timeout=PATIENCE_S)

    async def more(self, count: int = 200) -> None:
        """Wait until so many further requests are answered."""
        wanted = self.done + count

        async def enough() -> bool:
            return self.done >= wanted

        await until_async(enough, 120.0)

    async def _ask(self, address: Address, model: str, keeps: bool) -> None:
        body = json.dumps({"model": model, "messages": []}).encode()
        while not self._enough.is_set():
            try:
                client = await RawClient.connect(address)
                while await self._one(client, body, model) and keeps and not self._enough.is_set():
                    pass
                client.close()
            except (OSError, asyncio.IncompleteReadError, AssertionError, TimeoutError) as error:
                self.failed.append(f"{address} {model}: {error!r}")
            await asyncio.sleep(PAUSE_S)

    async def _one(self, client: RawClient, body: bytes, model: str) -> bool:
        client.send(post(body, KEY))
        answer = await client.answer()
        assert answer.status == 200, answer
        assert model != "far" or answer.headers["x-penstock-region"] == "eu-es", answer
        self.done += 1
        await asyncio.sleep(PAUSE_S)
        return answer.headers.get("connection") != "close"


def _program(name: str, environment: str) -> str:
    return str(Path(environment) / "bin" / name) if environment else find_script(name)


@asynccontextmanager
async def running_fleet(tmp_path: Path, etcd: EtcdServer) -> AsyncIterator[tuple[Fleet, Load]]:
    async with AsyncExitStack() as stack:
        gpu = await stack.enter_async_context(engine(answers))
        fleet = Fleet(tmp_path, etcd, gpu.address, stack)
        stack.push_async_callback(fleet.http.aclose)
        await fleet.start()
        load = Load([process.faces()["traffic"] for process in fleet.agents.values()])
        stack.push_async_callback(load.stop)
        yield fleet, load


async def _write_state(fleet: Fleet, policy: Callable[[str], str]) -> None:
    """Write values of many kinds: a policy with its rollout, overrides, revoked keys, audit entries."""
    rolled_out = (await fleet.ask("GET", "/v1/rollouts/current"))["rollout"]["number"]
    (fleet.policy / "policy.yaml").write_text(policy((fleet.policy / "policy.yaml").read_text()))

    async def is_done() -> bool:
        rollout = (await fleet.ask("GET", "/v1/rollouts/current")).get("rollout", {})
        return bool(rollout.get("number", 0) > rolled_out and rollout["phase"] == "done")

    await until_async(is_done, 120.0)
    weight = {
        "kind": "weight",
        "region": "eu-de",
        "value": 1 - rolled_out / 10,
        "reason": "a test",
        "expires_in_s": "none",
    }
    await fleet.change("PUT", f"/v1/overrides/weight-{rolled_out}", weight)
    await fleet.change("POST", "/v1/revoked-keys", {"key_digest": f"{rolled_out:064x}", "reason": "a test"})
    await fleet.settled()


async def test_an_upgrade_and_the_return_lose_no_request(tmp_path: Path, own_etcd: EtcdServer) -> None:
    async with running_fleet(tmp_path, own_etcd) as (fleet, load):
        await load.more()
        await _write_state(fleet, lambda text: text.replace("expected_service_s: 1", "expected_service_s: 2"))
        await fleet.replace_control_planes(CHECKOUT)
        await load.more()
        await fleet.replace_agents(CHECKOUT)
        await load.more()
        await _write_state(fleet, lambda text: text.replace("expected_service_s: 2", "expected_service_s: 3"))
        await fleet.change("PUT", "/v1/drills/1", {"exercise": "step_down", "reason": "a test"})
        await load.more()
        await fleet.settled()
        await fleet.replace_agents(PREVIOUS)
        await fleet.replace_control_planes(PREVIOUS)
        await load.more()
        overrides = {each["override"]["id"] for each in (await fleet.ask("GET", "/v1/overrides"))["items"]}
        assert overrides == {"weight-1", "weight-2"}
        await _write_state(fleet, lambda text: text.replace("expected_service_s: 3", "expected_service_s: 4"))
        await load.more()
        await load.stop()
        assert load.failed == []
        print(f"{load.done} requests, {len(load.failed)} failed")

"""An upgrade of a whole agent on real etcd and Redis: nobody loses a request, and nobody notices from afar."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import msgspec
import redis

from control_plane.client import keys
from control_plane.client.codec import decode
from control_plane.client.etcd import EtcdStore
from control_plane.client.members import AgentMember
from lab.servers.etcd import EtcdServer
from lab.servers.redis import RedisServer
from regional_agent.carry.upstream import Address
from regional_agent.shared_view_lua import agent_prefix
from tests.agent_processes import AgentProcess, publish, write_endpoints
from tests.chats import BODY, SSE_HEAD, chunk
from tests.patience import PATIENCE_S, until_told
from tests.planet import MODEL, policy
from tests.sockets import Heard, RawClient, ScriptedEngine, engine, post

REGION = "eu-de"
TOKEN = "0123456789abcdef-registration"
NEW_CONNECTIONS, KEPT_CONNECTIONS = 4, 4
UPGRADES = 2


class Load:
    """Clients that ask one request after the other, and what became of them."""

    def __init__(self, process: AgentProcess) -> None:
        self.address = process.faces()["traffic"]
        self.done = 0
        self.failed: list[str] = []
        self.enough = asyncio.Event()

    async def ask(self, keep: bool) -> None:
        while not self.enough.is_set():
            try:
                client = await RawClient.connect(self.address)
                while await self._one(client) and keep and not self.enough.is_set():
                    pass
                client.close()
            except (OSError, asyncio.IncompleteReadError, AssertionError, TimeoutError) as error:
                self.failed.append(repr(error))

    async def _one(self, client: RawClient) -> bool:
        """Whether the connection may be used again."""
        client.say(post(BODY))
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"data: 1\n\ndata: [DONE]\n\n"), answer
        self.done += 1
        return answer.headers.get("connection") != "close"


async def test_an_upgrade_of_a_whole_agent(tmp_path: Path, own_etcd: EtcdServer, own_redis: RedisServer) -> None:
    hold = asyncio.Event()

    async def streams(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        if heard.header("x-request-id") == "long":
            await hold.wait()
        await asyncio.sleep(0.02)
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    await publish(own_etcd, msgspec.structs.replace(policy(), anonymous_tenant="open"))
    store = EtcdStore([own_etcd.endpoint])
    shared = redis.Redis.from_url(own_redis.url)

    async def registered() -> int:
        """The epoch that is registered; 0 for nobody."""
        item = await store.get(keys.agent(REGION, "a"))
        return decode(item.value, AgentMember).epoch if item is not None else 0

    async with AsyncExitStack() as stack:
        gpu = await stack.enter_async_context(engine(streams))
        stack.push_async_callback(store.close)

        def process(region: str, directory: str, like: AgentProcess | None = None) -> AgentProcess:
            faces = like.faces() if like is not None else {}
            one = AgentProcess(
                "a",
                tmp_path / directory,
                region=region,
                etcd_endpoint=own_etcd.endpoint,
                redis_url=own_redis.url if region == REGION else None,
                endpoints_file=write_endpoints(
                    tmp_path / region / "endpoints.yaml", [] if region == REGION else [gpu.address], slots=1000
                ),
                listens={face: faces[face] for face in ("traffic", "peer") if face in faces},
                settings={
                    "STATE_DIR": str(tmp_path / region / "state"),
                    "LIMITS": '{"idle_linger_s": 2.0}',
                    "REGISTRATION_TOKEN_FILE": str(tmp_path / "tokens"),
                },
            )
            stack.push_async_callback(asyncio.to_thread, one.kill)
            one.start()
            return one

        (tmp_path / "tokens").write_text(TOKEN)
        running, observer = process(REGION, "0"), process("eu-es", "observer")

        async def listens() -> bool:
            return bool(running.faces())

        await until_told(listens)
        await asyncio.to_thread(_register, running, gpu.address)
        for one in (running, observer):
            await asyncio.to_thread(one.wait_ready, PATIENCE_S)

        async def seen() -> str:
            status = await asyncio.to_thread(observer.status)
            return str(status["peers"][REGION]["state"])

        async def seen_healthy() -> bool:
            return await seen() == "healthy"

        await until_told(seen_healthy)
        load = Load(running)
        clients = [
            asyncio.create_task(load.ask(keep))
            for keep, count in ((False, NEW_CONNECTIONS), (True, KEPT_CONNECTIONS))
            for _ in range(count)
        ]
        try:
            for upgrade in range(1, UPGRADES + 1):
                hold.clear()
                long = await RawClient.connect(running.faces()["traffic"])
                long.say(post(BODY, "X-Request-Id: long"))
                await long.head()
                epoch = await registered()
                fresh = process(REGION, str(upgrade), like=running)
                await asyncio.to_thread(fresh.wait_ready, PATIENCE_S)
                assert fresh.faces()["traffic"] == running.faces()["traffic"]

                async def taken_over(epoch: int = epoch) -> bool:
                    return await registered() > epoch

                await until_told(taken_over)
                newest, before = await registered(), load.done
                leaving = asyncio.create_task(asyncio.to_thread(running.stop, PATIENCE_S))
                began = time.monotonic()
                while time.monotonic() - began < 2.0:
                    assert await seen() in ("healthy", "suspect"), "another region took the upgrade for a failure"
                    await asyncio.sleep(0.05)
                assert not leaving.done(), "it waits for the long one"
                assert await asyncio.to_thread(_health, running) == {"/readyz": 503, "/livez": 200}
                assert await _told_requests(shared) >= 1
                hold.set()
                assert await long.chunk() == b"data: 1\n\n"
                assert await long.chunk() == b"data: [DONE]\n\n"
                assert await long.chunk() == b""
                await leaving
                assert running.returncode == 0
                assert '"cut": 0' in running.log_tail(), running.log_tail()
                assert await registered() == newest, "the old one's withdrawal took the new one's registration"
                assert load.done > before
                running = fresh
        finally:
            load.enough.set()
            await asyncio.wait(clients, timeout=PATIENCE_S)
        assert load.failed == []

        async def nothing_told() -> bool:
            return await _told_requests(shared) == 0

        await until_told(nothing_told)
        await until_told(seen_healthy)
        await asyncio.to_thread(running.stop, PATIENCE_S)
        assert await registered() == 0


def _register(process: AgentProcess, gpu: Address) -> None:
    """The only endpoint there is registers, once: its next renewal is far away."""
    answer = httpx.put(
        f"http://{process.faces()['admin']}/v1/endpoints/gpu",
        headers={"authorization": f"Bearer {TOKEN}"},
        json={"url": f"http://{gpu}", "models": [MODEL], "slots": 1000, "engine": "http", "ttl_s": 3600},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 201, answer.text


def _health(process: AgentProcess) -> dict[str, int]:
    admin = process.faces()["admin"]
    return {path: httpx.get(f"http://{admin}{path}", timeout=PATIENCE_S).status_code for path in ("/readyz", "/livez")}


async def _told_requests(shared: redis.Redis) -> int:
    """Requests that any agent of the region says it has."""

    def look() -> int:
        found = 0
        for key in shared.scan_iter(agent_prefix(REGION) + "*"):
            told = shared.hget(key, "told")
            if told is not None:
                found += sum(load[0] for load in msgspec.json.decode(told)["loads"].values())
        return found

    return await asyncio.to_thread(look)

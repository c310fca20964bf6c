"""An agent still probes, logs and serves while a client holds as many connections as it can open."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import msgspec

from adapters.servers.etcd import EtcdServer
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.chats import BODY, answers
from tests.support.planet import policy
from tests.support.sockets import RawClient, engine, post
from tests.support.wait import PATIENCE_S

DESCRIPTORS = 300


async def test_clients_cannot_use_every_descriptor(tmp_path: Path, own_etcd: EtcdServer) -> None:
    await publish(own_etcd, msgspec.structs.replace(policy(), anonymous_tenant="open"))
    async with engine(answers) as gpu:
        agent = AgentProcess(
            "a",
            tmp_path,
            region="eu-de",
            etcd_endpoint=own_etcd.endpoint,
            redis_url=None,
            endpoints_file=write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], slots=10),
        )
        agent.argv = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", *agent.argv)
        agent.start()
        try:
            await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
            faces = agent.faces()
            hoard = [await RawClient.connect(faces["traffic"]) for _ in range(2 * DESCRIPTORS)]
            async with httpx.AsyncClient(base_url=f"http://{faces['admin']}", timeout=PATIENCE_S) as admin:
                for _ in range(20):
                    assert (await admin.get("/readyz", headers={"connection": "close"})).status_code == 200
            for client in hoard:
                client.close()
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    client = await RawClient.connect(faces["traffic"])
                    client.send(post(BODY))
                    try:
                        if (await client.answer()).status == 200:
                            break
                    except (asyncio.IncompleteReadError, ConnectionError):
                        pass
                    client.close()
            assert "Too many open files" not in agent.log_tail(100)
        finally:
            await asyncio.to_thread(agent.kill)

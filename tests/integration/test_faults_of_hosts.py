"""Whole agents on unusual hosts: without IPv4, and with a full disk."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit

import pytest
from msgspec.structs import replace

from adapters.servers.etcd import EtcdServer
from regional_agent.upstream.address import Address
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.chats import BODY, answers
from tests.support.planet import policy
from tests.support.sockets import Answer, RawClient, engine, post
from tests.support.wait import PATIENCE_S, until, until_async

OPEN = replace(policy(), anonymous_tenant="open")
OPEN_AGAIN = replace(OPEN, models={name: replace(model, request_bytes=1.0) for name, model in OPEN.models.items()})
"""The same with another digest."""


def has_ipv6() -> bool:
    """Whether a socket can listen on ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


async def ask(agent: AgentProcess, *headers: str) -> Answer:
    """Send one chat request and return the response."""
    client = await RawClient.connect(agent.faces()["traffic"])
    client.send(post(BODY, *headers))
    answer = await client.answer()
    client.close()
    return answer


async def status_has(agent: AgentProcess, field: str, value: object) -> None:
    """Wait until a field of the status page has a value."""

    async def has() -> bool:
        return bool((await asyncio.to_thread(agent.status))[field] == value)

    await until_async(has)


def log_of(agent: AgentProcess) -> list[dict[str, object]]:
    """The lines of an agent's log."""
    return [json.loads(line) for line in agent.log_path.read_bytes().splitlines() if line.startswith(b"{")]


def contents(directory: Path) -> dict[str, bytes]:
    """The files in a directory, without drafts, which are renamed once they are complete."""
    return {file.name: file.read_bytes() for file in directory.rglob("*") if file.is_file() and file.suffix != ".new"}


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")
async def test_two_regions_serve_on_hosts_without_ipv4(tmp_path: Path, own_etcd: EtcdServer) -> None:
    await publish(own_etcd, OPEN)
    listens = {face: Address("::1", 0) for face in ("traffic", "peer", "admin")}
    async with AsyncExitStack() as stack:
        gpu = await stack.enter_async_context(engine(answers, host="::1"))
        agents = {}
        for region, engines in (("eu-de", []), ("eu-es", [gpu.address])):
            agents[region] = agent = AgentProcess(
                "a",
                tmp_path / region,
                region=region,
                etcd_endpoint=own_etcd.endpoint,
                redis_url=None,
                endpoints_file=write_endpoints(tmp_path / region / "endpoints.yaml", engines, 4),
                listens=listens,
            )
            stack.push_async_callback(asyncio.to_thread, agent.kill)
            agent.start()
        await asyncio.to_thread(agents["eu-es"].wait_ready, PATIENCE_S)

        async def is_peer_healthy() -> bool:
            # Before the first policy is in force, an agent has no peers.
            peers = agents["eu-de"].status()["peers"] if agents["eu-de"].faces() else {}
            return "eu-es" in peers and peers["eu-es"]["state"] == "healthy"

        await until_async(is_peer_healthy)
        answer = await ask(agents["eu-de"])
        assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
        assert "host: [::1]:" in gpu.requests[-1].head.decode().lower()


async def test_an_agent_with_a_full_disk_serves_and_applies_plans(tmp_path: Path, own_etcd: EtcdServer) -> None:
    await publish(own_etcd, OPEN)
    async with AsyncExitStack() as stack:
        gpu = await stack.enter_async_context(engine(answers))
        agent = AgentProcess(
            "a",
            tmp_path / "a",
            region="eu-de",
            etcd_endpoint=own_etcd.endpoint,
            redis_url=None,
            endpoints_file=write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], 4),
            settings={"ACCESS_LOG_FILE": str(tmp_path / "access.log")},
        )
        stack.push_async_callback(asyncio.to_thread, agent.kill)
        agent.start()
        await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
        await status_has(agent, "policy_digest", OPEN.digest())
        await until((tmp_path / "a/state/in-force").exists)
        kept = contents(tmp_path / "a/state")
        prlimit(agent.pid, RLIMIT_FSIZE, (0, RLIM_INFINITY))
        await publish(own_etcd, OPEN_AGAIN, generation=2)
        await status_has(agent, "policy_digest", OPEN_AGAIN.digest())
        for _ in range(20):
            assert (await ask(agent)).status == 200
        # No file is written in part: the previous content is complete.
        assert kept.items() <= contents(tmp_path / "a/state").items()
        prlimit(agent.pid, RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))
        await publish(own_etcd, OPEN, generation=3)
        await status_has(agent, "policy_digest", OPEN.digest())
        await until(lambda: [line.get("event") for line in log_of(agent)].count("policy in force") == 2)
        await until(lambda: not kept.items() <= contents(tmp_path / "a/state").items())

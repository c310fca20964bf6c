"""The location header of a trusted proxy determines residency; other senders' are ignored; none is forwarded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from random import Random

from mmdb_writer import MMDBWriter
from msgspec.structs import replace
from netaddr import IPSet

from adapters.servers.etcd import EtcdServer
from penstock.policy.geography import Location
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.wire import route_context
from penstock.wire.route_context import RouteContext
from regional_agent.requests.client_location import Locator
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.upstream.address import Address
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, answers
from tests.support.identities import region_keyring
from tests.support.planet import policy
from tests.support.sockets import Answer, RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S

PROXY, STRANGER = "127.0.0.1", "127.0.0.2"
"""Addresses of this machine; the database says that the whole machine is in the US."""

RULES = (
    ResidencyRule("germans-stay", client_countries=frozenset({"DE"}), allow=frozenset({"eu-de"})),
    ResidencyRule("americans-stay", client_countries=frozenset({"US"}), allow=frozenset({"us-east"})),
    ResidencyRule("french-nowhere", client_countries=frozenset({"FR"}), deny=frozenset({"eu-de", "eu-es", "us-east"})),
)


def locator(directory: Path) -> Locator:
    writer = MMDBWriter(database_type="GeoLite2-Country")
    writer.insert_network(IPSet(["127.0.0.0/8"]), {"country": {"iso_code": "US"}})
    writer.to_db_file(str(directory / "geo.mmdb"))
    return Locator(directory / "geo.mmdb", [ip_network(PROXY)], "CF-IPCountry")


class Client:
    """One connection, kept over requests, from one of the addresses."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw

    async def ask(self, *headers: str) -> Answer:
        self.raw.send(post(BODY, *headers))
        return await self.raw.answer()

    async def outcome(self, country: str) -> tuple[int, str]:
        """Status, and the reason where it is a refusal."""
        answer = await self.ask(f"CF-IPCountry: {country}")
        return answer.status, answer.headers.get("x-penstock-refusal", "")


@asynccontextmanager
async def client(traffic: Address, ip: str) -> AsyncIterator[Client]:
    raw = RawClient(*await asyncio.open_connection(traffic.host, traffic.port, local_addr=(ip, 0)))
    try:
        yield Client(raw)
    finally:
        raw.close()


def govern(agent: Agent) -> None:
    agent.config.policy = replace(agent.config.policy, residency=RULES)


async def test_residency_follows_the_header_of_a_trusted_proxy(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    log = AccessLog(file, 1.0, Random(1))
    where = locator(tmp_path)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], locator=where, access_log=log) as agent:
        govern(agent)
        async with client(agent.traffic, PROXY) as proxy:
            for _ in range(2):
                assert await proxy.outcome("DE") == (200, "")
                assert await proxy.outcome("US") == (421, "misdirected")
                assert await proxy.outcome("FR") == (451, "no_permitted_region")
                assert await proxy.outcome("de-be") == (200, "")
                for unreadable in ("XX", "T1", "DE, DE", "Germany", ""):
                    assert await proxy.outcome(unreadable) == (451, "location_unknown")
            twice = await proxy.ask("CF-IPCountry: DE", "CF-IPCountry: DE")
            assert twice.headers["x-penstock-refusal"] == "location_unknown"
            assert (await proxy.ask("X-Forwarded-For: 127.0.0.2")).status == 421, "nothing said: the database"
            assert (await proxy.ask("X-Forwarded-For: forged, 8.8.8.8", "CF-IPCountry: DE")).status == 200
        assert len(gpu.requests) == 5
        assert all(received.header("cf-ipcountry") is None for received in gpu.requests)
    log.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    served = [(line.get("country"), line.get("subdivision")) for line in lines if line["status"] == 200]
    assert sorted(served, key=str) == [("DE", "BE")] * 2 + [("DE", None)] * 3


async def test_headers_of_other_senders_are_ignored_and_removed(tmp_path: Path) -> None:
    where = locator(tmp_path)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], locator=where) as agent:
        govern(agent)
        async with client(agent.traffic, PROXY) as proxy, client(agent.traffic, STRANGER) as outsider:
            for _ in range(2):
                assert await proxy.outcome("DE") == (200, "")
                for forged in ("DE", "de", "XX", "FR"):
                    assert await outsider.outcome(forged) == (421, "misdirected"), "in the US by its address"
                forwarded = await outsider.ask("X-Forwarded-For: 127.0.0.1", "CF-IPCountry: DE")
                assert forwarded.status == 421
            assert len(gpu.requests) == 2
            agent.config.policy = replace(agent.config.policy, residency=RULES[:1])
            assert [await outsider.outcome(forged) for forged in ("FR", "FR", "DE")] == [(200, "")] * 3
        assert len(gpu.requests) == 5
        assert all(received.header("cf-ipcountry") is None for received in gpu.requests)


async def test_the_agent_daemon_uses_the_header_setting(tmp_path: Path, own_etcd: EtcdServer) -> None:
    await publish(own_etcd, replace(policy(*RULES), anonymous_tenant="open"))
    async with engine(answers) as gpu:
        process = AgentProcess(
            "a",
            tmp_path,
            region="eu-de",
            etcd_endpoint=own_etcd.endpoint,
            redis_url=None,
            endpoints_file=write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], slots=4),
            settings={"TRUSTED_PROXIES": PROXY, "LOCATION_HEADER": "CF-IPCountry"},
        )
        process.start()
        try:
            await asyncio.to_thread(process.wait_ready, PATIENCE_S)
            traffic = process.faces()["traffic"]
            async with client(traffic, PROXY) as proxy, client(traffic, STRANGER) as outsider:
                assert await proxy.outcome("DE") == (200, "")
                assert await proxy.outcome("US") == (421, "misdirected")
                assert await outsider.outcome("DE") == (451, "location_unknown"), "there is no database either"
            assert [received.header("cf-ipcountry") for received in gpu.requests if received.body] == [None]
        finally:
            await asyncio.to_thread(process.kill)


async def test_a_peer_receives_the_location_in_the_signed_context_only(tmp_path: Path) -> None:
    heard_by_peer: list[ReceivedRequest] = []

    async def peer(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        heard_by_peer.append(received)
        await answers(e, received, writer)

    where = locator(tmp_path)
    async with (
        engine(answers) as gpu,
        engine(peer) as serving,
        running_agent(tmp_path / "serving", [gpu.address], locator=where) as server,
        running_agent(
            tmp_path / "origin", [], region="eu-es", peers={"eu-de": serving.address}, locator=where
        ) as origin,
    ):
        govern(server)
        async with client(origin.traffic, PROXY) as proxy:
            assert await proxy.outcome("DE-BE") == (200, "")
        (received,) = heard_by_peer
        token = received.header("x-penstock-route") or ""
        context = route_context.accept(token, region_keyring("eu-de"), server.config.policy, "eu-de", time.time())
        assert isinstance(context, RouteContext)
        assert context.location == Location("DE", "BE")
        assert received.header("cf-ipcountry") is None
        raw = await RawClient.connect(server.peer)
        raw.send(received.head.replace(b"\r\n\r\n", b"\r\nCF-IPCountry: FR\r\n\r\n") + received.body)
        assert (await raw.answer()).status == 200, "a German's, whatever else is said of it"
        raw.close()
        (reached,) = gpu.requests
        assert reached.header("cf-ipcountry") is None

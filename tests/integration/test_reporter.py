import asyncio
import time
from collections.abc import AsyncIterator, Callable
from random import Random

import msgspec
import pytest
from structlog.testing import capture_logs

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Put
from adapters.store.members import Member
from lab.memory_store import MemoryStore
from penstock.fleet.report import AgentReport
from penstock.wire import identity
from penstock.wire.identity import encode_certificate
from penstock.wire.peer_keys import BadSignature, Keyring
from penstock.wire.signed_report import authenticate_head
from regional_agent.telemetry import reporter
from regional_agent.telemetry.reporter import Reporter
from regional_agent.upstream.address import Address
from regional_agent.upstream.leader_link import ControlPlanes, LeaderLink
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.identities import agent_keyring, control_plane_keyring
from tests.support.small_http import Headers, SmallHttp
from tests.support.wait import PATIENCE_S, until


class ControlPlane(SmallHttp):
    """Accepts reports, with the responses of control_plane/planning/report_intake.py."""

    def __init__(self, keyring: Keyring) -> None:
        super().__init__(self._take)
        self.keyring = keyring
        self.certificate_requests = 0
        self.leading = True
        self.leader: str | None = None
        self.status = 200
        self.reports: list[AgentReport] = []

    def _take(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        if target == identity.PATH.encode():
            self.certificate_requests += 1
            return 200, encode_certificate(self.keyring.identity.peer.certificate).encode()
        assert (method, target) == (b"POST", b"/v1/reports")
        sent = {name.decode(): value.decode() for name, value in headers}
        try:
            authenticate_head(self.keyring, sent, time.time()).verify(body)
        except BadSignature as error:
            return 401, str(error).encode()
        self.reports.append(msgspec.msgpack.decode(body, type=AgentReport))
        return self.status, msgspec.json.encode({"leading": self.leading, "leader": self.leader})


@pytest.fixture
async def planes() -> AsyncIterator[list[ControlPlane]]:
    made = [ControlPlane(control_plane_keyring(name)) for name in ("a", "b")]
    for plane in made:
        await plane.start()
    yield made
    for plane in made:
        await plane.stop()


class Agent:
    def __init__(self, store: MemoryStore, *bootstrap: str) -> None:
        self.seq = 0
        self.connections = UpstreamPool()
        self.link = LeaderLink(store, ControlPlanes(bootstrap), self.connections, agent_keyring("here"), Random(1))
        self.reporter = Reporter(self.link, self.report)

    def report(self) -> AgentReport:
        self.seq += 1
        return AgentReport("here", "agent-1", 1, self.seq, 0.0)

    async def __aenter__(self) -> "Agent":
        self.link.start()
        self.reporter.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.reporter.stop()
        await self.link.stop()
        self.connections.close()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "INTERVAL_S", 0.05)
    monkeypatch.setattr(reporter, "TIMEOUT_S", PATIENCE_S)


async def elect(store: MemoryStore, plane: ControlPlane) -> None:
    await store.commit((), (Put(keys.LEADER, encode(Member("cp", plane.url))),))


async def test_reports_to_the_elected_leader_and_follows_elections(planes: list[ControlPlane]) -> None:
    store = MemoryStore()
    await elect(store, planes[0])
    async with Agent(store):
        await until(lambda: len(planes[0].reports) >= 2)
        seqs = [report.seq for report in planes[0].reports]
        assert seqs == sorted(set(seqs))
        assert planes[1].reports == []
        await elect(store, planes[1])
        await until(lambda: len(planes[1].reports) >= 2)


async def test_reports_at_once_when_woken(planes: list[ControlPlane], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "INTERVAL_S", 3600.0)
    monkeypatch.setattr(reporter, "APART_S", 0.0)
    store = MemoryStore()
    await elect(store, planes[0])
    async with Agent(store, planes[0].url) as agent:
        await until(lambda: len(planes[0].reports) == 1)
        for reports in (2, 3):
            agent.reporter.wake()
            await until(lambda reports=reports: len(planes[0].reports) == reports)


async def test_a_leader_without_tls_receives_nothing(planes: list[ControlPlane]) -> None:
    store = MemoryStore()
    await store.commit((), (Put(keys.LEADER, encode(Member("cp", "http://cp.example:80"))),))
    planes[0].leading, planes[0].leader = False, "http://cp.example:80"
    with capture_logs() as logs:
        async with Agent(store, planes[0].url):
            await until(lambda: len(planes[0].reports) >= 3)
    assert any("http://cp.example:80 is not encrypted" in str(entry.get("reason")) for entry in logs)
    assert not any(entry.get("control_plane") == "cp.example:80" for entry in logs)


async def test_finds_the_leader_without_a_store_by_receipts(planes: list[ControlPlane]) -> None:
    planes[0].leading, planes[0].leader = False, planes[1].url
    async with Agent(MemoryStore(), planes[0].url):
        await until(lambda: len(planes[1].reports) >= 3)
        assert len(planes[0].reports) == 1


async def test_finds_another_leader_after_the_leader_failed(planes: list[ControlPlane]) -> None:
    store = MemoryStore()
    await elect(store, planes[0])
    async with Agent(store, planes[0].url, planes[1].url):
        await until(lambda: planes[0].reports != [])
        await planes[0].stop()
        await until(lambda: len(planes[1].reports) >= 2)


async def test_keeps_trying_the_only_known_leader(planes: list[ControlPlane]) -> None:
    store = MemoryStore()
    await elect(store, planes[0])
    async with Agent(store):
        await until(lambda: planes[0].reports != [])
        with capture_logs() as logs:
            await planes[0].stop()
            await until(lambda: any("not delivered" in entry["event"] for entry in logs))
            await asyncio.sleep(0.3)
            planes[0].reports.clear()
            await planes[0].start()
            await until(lambda: any("accepted again" in entry["event"] for entry in logs))
        assert planes[0].reports != []
        assert sum("not delivered" in entry["event"] for entry in logs) == 1
        assert sum("accepted again" in entry["event"] for entry in logs) == 1


async def test_a_hung_leader_delays_one_report_only(
    planes: list[ControlPlane], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "TIMEOUT_S", 0.3)
    store = MemoryStore()
    planes[0].silent = True
    planes[1].leading, planes[1].leader = False, planes[0].url
    await elect(store, planes[0])
    async with Agent(store, planes[1].url):
        await until(lambda: len(planes[1].reports) >= 2)


async def test_the_leader_elected_while_the_old_one_hung_gets_the_next_report(
    planes: list[ControlPlane], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for the first exchange with the new leader on a busy machine.
    monkeypatch.setattr(reporter, "TIMEOUT_S", 2.0)
    store = MemoryStore()
    planes[0].silent = True
    await elect(store, planes[0])
    async with Agent(store, *[planes[0].url] * 20) as agent:
        await until(lambda: agent.seq >= 1)
        before = agent.seq
        await elect(store, planes[1])
        await until(lambda: planes[1].reports != [])
        assert planes[1].reports[0].seq <= before + 2


async def test_a_late_receipt_of_the_old_leader_does_not_bring_it_back(planes: list[ControlPlane]) -> None:
    agent = Agent(MemoryStore(), planes[0].url)
    old, new = (Address.parse(plane.url) for plane in planes)
    agent.link.leader = new
    agent.link.follow(msgspec.json.encode({"leading": True, "leader": None}), old)
    assert agent.link.target() == new
    agent.connections.close()


async def test_a_rejected_report_is_logged_once_and_the_next_is_sent(planes: list[ControlPlane]) -> None:
    planes[0].status = 422
    with capture_logs() as logs:
        async with Agent(MemoryStore(), planes[0].url):
            await until(lambda: len(planes[0].reports) >= 3)
    assert sum("not delivered" in entry["event"] for entry in logs) == 1


async def test_without_a_control_plane_nothing_is_sent() -> None:
    async with Agent(MemoryStore()) as agent:
        await asyncio.sleep(0.2)
        assert agent.seq == 0


async def test_an_invalid_leader_key_is_ignored(planes: list[ControlPlane]) -> None:
    store = MemoryStore()
    await store.commit((), (Put(keys.LEADER, b"garbage"),))
    planes[0].leader = "not a url"
    planes[0].leading = False
    async with Agent(store, planes[0].url):
        await until(lambda: len(planes[0].reports) >= 2)


async def test_a_control_plane_with_a_new_certificate_gets_the_next_report(planes: list[ControlPlane]) -> None:
    async with Agent(MemoryStore(), planes[0].url):
        await until(lambda: planes[0].reports != [])
        planes[0].keyring = control_plane_keyring("renewed")
        planes[0].reports.clear()
        await until(lambda: len(planes[0].reports) >= 2)
        assert planes[0].certificate_requests == 2


@pytest.mark.parametrize(
    "keyring",
    [lambda: control_plane_keyring(fleet=1), lambda: agent_keyring("there")],
    ids=["control plane of another fleet", "agent"],
)
async def test_only_a_control_plane_of_the_fleet_gets_reports(keyring: Callable[[], Keyring]) -> None:
    async with ControlPlane(keyring()) as impostor, Agent(MemoryStore(), impostor.url):
        await until(lambda: impostor.certificate_requests >= 3)
        assert impostor.requests == impostor.certificate_requests

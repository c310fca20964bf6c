"""The cache of PowerDNS is emptied when what answers depend on changes, and not otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from lab.memory_store import MemoryStore
from penstock.dns.name_answer import EntryState
from penstock.health.region_health import RegionState
from penstock.planning.plan import Closed
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.wire.peer_probe import ModelReadiness, PeerProbeResponse
from regional_agent.dns.answer_cache import AnswerCache
from regional_agent.dns.dns_service import DnsService, EntryStates
from regional_agent.peers.peer_region import PeerRegion
from tests.support.chats import NOBODY
from tests.support.planet import MODEL, plan
from tests.support.wait import until


@asynccontextmanager
async def control_socket(path: Path, commands: list[bytes]) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands.append(await reader.readline())
        writer.write(b"3\n")
        writer.close()

    server = await asyncio.start_unix_server(serve, str(path))
    async with server:
        yield


async def test_a_change_empties_the_cache_once(tmp_path: Path) -> None:
    basis, commands = ["healthy"], list[bytes]()
    asked = 0

    def read() -> str:
        nonlocal asked
        asked += 1
        return basis[0]

    cache = AnswerCache(tmp_path / "control", read)
    async with control_socket(tmp_path / "control", commands):
        cache.start()
        await until(lambda: asked > 2)
        assert commands == [], "nothing has changed"
        basis[0] = "failed"
        await until(lambda: commands == [b"PURGE\n"])
        before = asked
        await until(lambda: asked > before + 2)
        assert commands == [b"PURGE\n"]
        await cache.stop()


async def test_a_server_that_is_absent_is_asked_again(tmp_path: Path) -> None:
    basis, commands = ["healthy"], list[bytes]()
    cache = AnswerCache(tmp_path / "control", lambda: basis[0])
    cache.start()
    await asyncio.sleep(0)
    basis[0] = "failed"
    await until(lambda: cache.failed)
    async with control_socket(tmp_path / "control", commands):
        await until(lambda: commands == [b"PURGE\n"])
        await cache.stop()


def dns_service(directory: Path, read: Callable[[], dict[str, EntryState]]) -> tuple[DnsService, Any]:
    """A service without a socket, and its policy."""
    settings: Any = SimpleNamespace(dns_socket=None, dns_control_socket=None, state_dir=directory)
    others: Any = SimpleNamespace(read=read, policy_digest="", dns=SimpleNamespace(answered=None))
    return DnsService(settings, others, MemoryStore(), others, others, others), others


def test_the_basis_of_answers_is_no_newer_than_the_answers(tmp_path: Path) -> None:
    """Otherwise PowerDNS caches an answer of the old basis again after its cache was emptied."""
    states = {"eu-de": EntryState(RegionState.HEALTHY)}
    service, others = dns_service(tmp_path, lambda: states)
    assert service._view(others).states["eu-de"].state is RegionState.HEALTHY
    states = {"eu-de": EntryState(RegionState.FAILED)}
    service._basis()
    assert service._view(others).states["eu-de"].state is RegionState.FAILED


def test_a_drain_of_a_region_changes_the_basis_of_answers(tmp_path: Path) -> None:
    service, _ = dns_service(tmp_path, dict)
    plans = service._plans._plans
    plans["us-east"] = open_plan = plan("us-east", "eu-de+us-east", us_east=1.0)
    bases = [service._basis()]
    for closed_to in ("us-east", "eu-de"):
        plans[closed_to] = replace(open_plan, region=closed_to, closed=(Closed("us-east", MODEL, last_resort=True),))
        bases.append(service._basis())
    plans["us-east"] = replace(open_plan, generation=2)
    bases.append(service._basis())
    assert bases[0] != bases[1]
    assert bases[1] == bases[2], "closed to the requests of another region alone"
    assert bases[3] == bases[0]


def test_models_that_sleep_and_burst_endpoints_of_the_agent_are_of_the_basis(tmp_path: Path) -> None:
    pools, burst = (
        {"awake": SimpleNamespace(ready=1), "asleep": SimpleNamespace(ready=0)},
        {"awake": None, "rented": None},
    )
    endpoints, readiness = SimpleNamespace(pools=pools, burst_pools=burst), SimpleNamespace(shutting_down=False)
    readiness.not_ready_reason = lambda: None
    peers = PeerRegion("us-east")
    others = SimpleNamespace(entry_states=lambda: {"us-east": peers.entry_state(0.0, Failover())})
    entries = EntryStates("eu-de", cast("Any", readiness), cast("Any", endpoints), cast("Any", others))
    here = entries.read()["eu-de"]
    assert (here.ready, here.asleep, here.burst) == ({"awake"}, {"asleep"}, {"rented"})
    service, _ = dns_service(tmp_path, entries.read)
    bases = [service._basis()]
    del pools["asleep"]
    bases.append(service._basis())
    del burst["rented"]
    bases.append(service._basis())
    models = {"m": ModelReadiness(False, 0.0)}
    peers.set_addresses([NOBODY])
    said = PeerProbeResponse("us-east", "a", models, 0.75, accepts_clients=True, burst_only={"n": (1, 0.0)})
    peers.answered(NOBODY, said, 0.02, 0.0)
    bases.append(service._basis())
    assert len(set(bases)) == 4

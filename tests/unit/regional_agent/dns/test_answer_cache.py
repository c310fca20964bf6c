"""The cache of PowerDNS is emptied when what answers depend on changes, and not otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lab.memory_store import MemoryStore
from penstock.dns.name_answer import EntryState
from penstock.health.region_health import RegionState
from regional_agent.dns.answer_cache import AnswerCache
from regional_agent.dns.dns_service import DnsService
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


def test_the_basis_of_answers_is_no_newer_than_the_answers(tmp_path: Path) -> None:
    """Otherwise PowerDNS caches an answer of the old basis again after its cache was emptied."""
    states = {"eu-de": EntryState(RegionState.HEALTHY)}
    settings: Any = SimpleNamespace(dns_socket=None, dns_control_socket=None, state_dir=tmp_path)
    others: Any = SimpleNamespace(read=lambda: states, policy_digest="", dns=SimpleNamespace(answered=None))
    service = DnsService(settings, others, MemoryStore(), others, others, others)
    assert service._view(others).states["eu-de"].state is RegionState.HEALTHY
    states = {"eu-de": EntryState(RegionState.FAILED)}
    service._basis()
    assert service._view(others).states["eu-de"].state is RegionState.FAILED

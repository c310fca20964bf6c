"""The cache of PowerDNS is emptied when what answers depend on changes, and not otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from regional_agent.dns.answer_cache import AnswerCache
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

"""An upgrade under load: a new agent takes over the port, the old agent drains, and no request is lost."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from adapters.tls_contexts import ClientTls
from tests.support.certificates import has_openssl_3, make_authority, make_certificate
from tests.support.chats import BODY, SSE_HEAD, chunk
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S

UPGRADES = 3
NEW_CONNECTIONS, KEPT_CONNECTIONS = 8, 8


async def start(
    directory: Path, port: int, engine_port: int, made: Path | None
) -> tuple[asyncio.subprocess.Process, int]:
    certificates = [str(made)] if made is not None else []
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.support.takeover_agent",
            str(directory),
            str(port),
            str(engine_port),
            *certificates,
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return process, int(await process.stdout.readline())


async def test_an_upgrade_under_load_loses_no_request(tmp_path: Path) -> None:
    made = None
    # Over TLS where possible; test_takeover_daemons.py has an upgrade without.
    if has_openssl_3():
        make_authority(tmp_path, "ours")
        make_certificate(tmp_path, "ours", "one")
        made = tmp_path
    context = ClientTls(made / "ours.pem")() if made is not None else None
    done, failed, enough = 0, [], asyncio.Event()

    async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.02)
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def ask(client: RawClient) -> bool:
        """Send a request and return whether the connection may be reused."""
        nonlocal done
        client.send(post(BODY))
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"data: 1\n\ndata: [DONE]\n\n")
        done += 1
        return answer.headers.get("connection") != "close"

    async def load(address: tuple[str, int], keep: bool) -> None:
        while not enough.is_set():
            try:
                client = RawClient(*await asyncio.open_connection(*address, ssl=context))
                while await ask(client) and keep and not enough.is_set():
                    pass
                client.close()
            except (OSError, asyncio.IncompleteReadError, AssertionError, TimeoutError) as error:
                failed.append(repr(error))

    async with engine(streams) as gpu:
        running, port = await start(tmp_path / "0", 0, gpu.address.port, made)
        clients = [
            asyncio.create_task(load(("127.0.0.1", port), keep))
            for keep, count in ((False, NEW_CONNECTIONS), (True, KEPT_CONNECTIONS))
            for _ in range(count)
        ]
        try:
            for upgrade in range(1, UPGRADES + 1):
                fresh, same_port = await start(tmp_path / str(upgrade), port, gpu.address.port, made)
                assert same_port == port
                before = done
                running.terminate()
                assert running.stdout is not None
                async with asyncio.timeout(PATIENCE_S + 20):
                    cut = int(await running.stdout.readline())
                    assert await running.wait() == 0
                running = fresh
                assert (cut, done > before) == (0, True)
        finally:
            enough.set()
            await asyncio.wait(clients, timeout=PATIENCE_S)
            running.terminate()
            await running.wait()
    assert failed == []
    assert done > 100

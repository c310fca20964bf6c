"""`penstock jobs` asks the agents that the control plane knows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from typer.testing import CliRunner, Result

from adapters.access.api_keys import ApiKeys
from adapters.access.key_access import KeyAccess
from control_plane.cli.main import app
from control_plane.status.status import AgentStatus, LeaderStatus
from regional_agent.jobs import job_worker
from regional_agent.jobs.async_requests import pace_exchange
from tests.integration.test_async_requests import ended, submit
from tests.integration.test_batches import serving
from tests.integration.test_explaining import admin
from tests.support.admin_keys import ADMIN_KEY, write_admin_keys
from tests.support.identities import region_keyring
from tests.support.jobs import embeds, input_file, job_store
from tests.support.small_http import Headers, SmallHttp
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import until
from tests.unit.control_plane.cli.test_control_plane_cli import TOKEN, FakeControlPlane, status_of


async def test_the_command_shows_what_agents_run_and_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_worker, "POLL_S", 0.2)
    monkeypatch.setattr(pace_exchange, "WRITE_S", 0.1)
    monkeypatch.setattr(pace_exchange, "READ_S", 0.1)
    release = asyncio.Event()
    release.set()

    async def waits(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.body:
            await release.wait()
        await embeds(e, received, writer)

    async def rejects(method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        return 401, b'{"error": {"message": "the credential is not a valid key"}}'

    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "agents.key").touch(mode=0o600)
    (tmp_path / "agents.key").write_text(ADMIN_KEY)
    server = FakeControlPlane()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    async def run(*arguments: str) -> Result:
        given = ["jobs", "--url", server.url, "--token-file", str(tmp_path / "token"), *arguments]
        runner = CliRunner(env={"COLUMNS": "200"})
        return await asyncio.to_thread(runner.invoke, app, given, catch_exceptions=False)

    keys = KeyAccess(ApiKeys(write_admin_keys(tmp_path / "keys.yaml")), region_keyring("eu-de"), key_setting="KEYS")
    key_file = ("--agents-key-file", str(tmp_path / "agents.key"))
    store = job_store(tmp_path / "store", concurrency=2)
    try:
        async with (
            engine(waits) as gpu,
            serving(tmp_path, gpu, job_store=store) as (agent, client),
            admin(agent, keys) as address,
            SmallHttp(rejects) as elsewhere,
        ):
            known = AgentStatus("eu-de", "one", True, "http://p", f"http://{address}", 0.5)
            gone = AgentStatus("eu-es", "two", True, "http://p", "http://127.0.0.1:1", 0.5)
            other = AgentStatus("eu-fr", "three", True, "http://p", elsewhere.url, 0.5)
            status = status_of("north", server.url, LeaderStatus("north", server.url, 7))
            server.answer = msgspec.json.encode(msgspec.structs.replace(status, agents=(known, gone, other)))
            await ended(client, (await submit(client)).json()["id"])
            release.clear()
            batch = await client.started(input_file(3))
            for _ in range(5):
                await submit(client)
            await until(lambda: agent.jobs.status()["waiting_requests"] == 3)
            await until(lambda: batch in agent.jobs.worker._batches)
            refused = await run()
            assert (refused.exit_code, "--agents-key-file" in refused.stderr) == (1, True)
            shown = await run(*key_file)
            assert shown.exit_code == 0, shown.stderr
            assert batch in shown.stdout
            assert "2 requests run; the last of 3 that wait starts in " in shown.stdout
            assert "eu-es/two is omitted" in shown.stderr
            assert "eu-fr/three is omitted" in shown.stderr
            printed = json.loads((await run(*key_file, "--region", "eu-de", "-o", "json")).stdout)
            assert printed["eu-de/one"]["batches"][batch]["total"] == 3
            assert printed["eu-de/one"]["last_request_starts_at"] > 0
            release.set()
            await client.ended(batch)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""Whole daemons go on serving while every file that they use is a FIFO, and use the files once they are restored."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY, REGION_KEY
from adapters.servers.etcd import EtcdServer
from adapters.servers.redis import RedisServer
from lab.geoip import write_geoip
from tests.support.admin_keys import ADMIN_HEADERS, write_admin_keys
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.chats import BODY, answers
from tests.support.control_planes import OPERATOR, PLANET, control_planes
from tests.support.identities import authority
from tests.support.planet import policy
from tests.support.sockets import RawClient, engine, post
from tests.support.wait import PATIENCE_S, until_async

OPEN = replace(policy(), anonymous_tenant="open")
NEW_KEY = {"authorization": "Bearer the-key-after"}


@contextmanager
def fifos(files: Iterable[Path]) -> Iterator[None]:
    """Put a FIFO in place of each file; afterwards the files are as before, except for their inodes."""
    files = tuple(files)
    for file in files:
        file.rename(file.with_name(f".{file.name}.kept"))
        os.mkfifo(file)
    yield
    for file in files:
        kept = file.with_name(f".{file.name}.kept")
        fresh = file.with_name(f".{file.name}.fresh")
        shutil.copy2(kept, fresh)
        fresh.replace(file)


@pytest.mark.long
async def test_an_agent_serves_while_its_files_are_fifos(
    tmp_path: Path, own_etcd: EtcdServer, redis_server: RedisServer
) -> None:
    await publish(own_etcd, OPEN)
    write_geoip(tmp_path / "geo.mmdb")
    (tmp_path / "tokens").write_text("0123456789abcdef\n")
    (tmp_path / "engines.crt").write_bytes(authority().pem)
    async with engine(answers) as gpu:
        agent = AgentProcess(
            "a",
            tmp_path / "a",
            region="eu-de",
            etcd_endpoint=own_etcd.endpoint,
            redis_url=f"redis://127.0.0.1:{redis_server.port}",
            endpoints_file=write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], 4),
            settings={
                "UPSTREAM_CA_FILE": str(tmp_path / "engines.crt"),
                "REGISTRATION_TOKEN_FILE": str(tmp_path / "tokens"),
                "GEOIP_FILE": str(tmp_path / "geo.mmdb"),
            },
        )
        own, keys = tmp_path / "a" / "identity", tmp_path / "a" / "admin-keys.yaml"
        files = [own / name for name in (PRIVATE_KEY, CERTIFICATE, AUTHORITIES, REGION_KEY)]
        files += [keys, *(tmp_path / name for name in ("endpoints.yaml", "engines.crt", "tokens", "geo.mmdb"))]
        try:
            await asyncio.to_thread(agent.start)
            await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
            rejected: set[str] = set()

            async def rejects_all() -> bool:
                rejected.clear()
                rejected.update((await asyncio.to_thread(agent.status))["rejected_files"])
                return rejected >= {
                    "identity",
                    "tls",
                    "region_key",
                    "admin_api_keys",
                    "endpoints",
                    "registration_tokens",
                    "geoip",
                }

            async def rejects_none() -> bool:
                url = f"http://{agent.faces()['admin']}/status"
                answer = await asyncio.to_thread(httpx.get, url, headers=NEW_KEY, timeout=PATIENCE_S)
                return answer.status_code == 200 and answer.json()["rejected_files"] == {}

            with fifos(files):
                await until_async(rejects_all)
                client = await RawClient.connect(agent.faces()["traffic"])
                client.send(post(BODY))
                assert (await client.answer()).status == 200
                client.close()
                write_admin_keys(keys.with_name(f".{keys.name}.kept"), "the-key-after")
            await until_async(rejects_none)
        finally:
            await asyncio.to_thread(agent.kill)


@pytest.mark.long
async def test_a_control_plane_leads_while_its_files_are_fifos(tmp_path: Path, own_etcd: EtcdServer) -> None:
    write_geoip(tmp_path / "geo.mmdb")
    keys = write_admin_keys(tmp_path / "keys.yaml")
    (tmp_path / "peers.crt").write_bytes(authority().pem)
    bundle = Path(shutil.copytree(PLANET, tmp_path / "bundle"))
    settings = {
        "POLICY_DIR": str(bundle),
        "API_KEYS_FILE": str(keys),
        "GEOIP_FILE": str(tmp_path / "geo.mmdb"),
        "CONTROL_PLANE_CA_FILE": str(tmp_path / "peers.crt"),
    }
    with control_planes("n", tmp_path, own_etcd.endpoint, policy_settings=settings) as (server,):
        own, token = tmp_path / "n" / "identity", tmp_path / "n" / "admin.token"
        files = [own / PRIVATE_KEY, token, keys, tmp_path / "geo.mmdb", tmp_path / "peers.crt"]
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S, headers=OPERATOR) as http:

            async def leads() -> bool:
                status = (await http.get("/v1/status")).json()
                return status["leader"] is not None and status["plan"] is not None

            async def rejects_all() -> bool:
                refused = (await http.get("/v1/status")).json()["policy"]["refused"]
                log = await asyncio.to_thread(server.log_path.read_text)
                return bool(refused) and all(f"{file}: " in log for file in files)

            async def uses_the_new_key() -> bool:
                return (await http.get("/v1/status", headers=NEW_KEY)).status_code == 200

            async def accepts_the_policy() -> bool:
                return not (await http.get("/v1/status")).json()["policy"]["refused"]

            await until_async(leads)
            with fifos([*files, bundle / "residency.yaml"]):
                await until_async(rejects_all)
                assert (await http.get("/v1/whoami", headers=ADMIN_HEADERS)).status_code == 200
                assert (await http.get("/metrics")).status_code == 200
                write_admin_keys(keys.with_name(f".{keys.name}.kept"), "the-key-after")
            await until_async(uses_the_new_key)
            await until_async(accepts_the_policy)
            await until_async(leads)

"""Certificates of `penstock certs issue` are accepted by an etcd and a Redis that require certificates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis.exceptions import RedisError

from adapters.etcd.etcd_connection import Tls, tls_to
from adapters.etcd.etcd_store import EtcdStore
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.servers.redis import RedisServer
from adapters.store.config_store import StoreUnavailable
from adapters.tls_contexts import ClientTls
from regional_agent.config.settings_parts import redis_password
from regional_agent.shared_load.redis_script import RedisAddress, RedisScript
from tests.support.agent_processes import AgentProcess, write_endpoints
from tests.support.identities import agent_id, control_plane_id, write_identity
from tests.support.mutual_tls import mutual_tls_etcd, mutual_tls_relay
from tests.support.sockets import ScriptedEngine, engine
from tests.support.stores import put_when_possible
from tests.support.wait import PATIENCE_S, until_async

AGENT = agent_id("eu-de", "a")


def etcd_tls(identity_dir: Path, endpoint: str) -> Tls | None:
    """The TLS settings of a daemon on another machine, which configures only the address of etcd."""
    elsewhere = endpoint.replace("127.0.0.1", "etcd.example")
    return tls_to([elsewhere], ca=None, certificate=None, key=None, identity_dir=identity_dir, allow_plaintext=False)


def redis_tls(identity_dir: Path) -> ClientTls:
    certificate, key = identity_dir / CERTIFICATE, identity_dir / PRIVATE_KEY
    return ClientTls(None, certificate, key, further_ca=identity_dir / AUTHORITIES, alpn=())


async def test_etcd_accepts_processes_of_the_fleet_with_renewed_files(tmp_path: Path) -> None:
    with mutual_tls_etcd(tmp_path / "etcd") as endpoint:
        own = write_identity(tmp_path / "control-plane", control_plane_id())
        store = EtcdStore([endpoint], call_timeout_s=20, tls=etcd_tls(own, endpoint))
        await put_when_possible(store, "/x", b"1")

        # A certificate of another fleet, with this fleet's authorities.
        foreign_identity = write_identity(tmp_path / "stranger", AGENT, fleet=1)
        (foreign_identity / AUTHORITIES).write_bytes((own / AUTHORITIES).read_bytes())
        nameless = EtcdStore([endpoint], tls=Tls(own / AUTHORITIES))
        foreign = EtcdStore([endpoint], tls=etcd_tls(foreign_identity, endpoint))
        for refused in (nameless, foreign):
            with pytest.raises(StoreUnavailable):
                await refused.get("/x")

        write_identity(foreign_identity, AGENT)
        assert foreign.files is not None
        foreign.files.reload_if_changed()
        await put_when_possible(foreign, "/x", b"2")
        item = await store.get("/x")
        assert item is not None
        assert item.value == b"2"
        for client in (store, nameless, foreign):
            await client.close()


async def test_redis_accepts_agents_of_the_fleet_with_renewed_files(tmp_path: Path, redis_server: RedisServer) -> None:
    async with mutual_tls_relay(tmp_path / "redis", "127.0.0.1", redis_server.port) as port:
        url = f"rediss://127.0.0.1:{port}/0"
        directory = write_identity(tmp_path / "agent", AGENT, fleet=1)
        (directory / AUTHORITIES).write_bytes((tmp_path / "redis" / AUTHORITIES).read_bytes())
        tls = redis_tls(directory)
        script = RedisScript(RedisAddress(url, tls), "return ARGV[1]", PATIENCE_S)
        with pytest.raises((RedisError, OSError)):
            await script.run((), ("refused",))
        write_identity(directory, AGENT)
        tls.files.reload_if_changed()
        assert await script.run((), ("admitted",)) == b"admitted"
        await script.aclose()


async def test_a_changed_password_is_used_for_the_next_connection(tmp_path: Path, own_redis: RedisServer) -> None:
    await set_password(own_redis, "first")
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text("wrong\n")
    password = redis_password(file)
    script = RedisScript(RedisAddress(own_redis.url, password=password), "return ARGV[1]", PATIENCE_S)
    with pytest.raises(RedisError):
        await script.run((), ("refused",))
    file.write_text("first\n")
    assert password.reload_if_changed()
    assert await script.run((), ("admitted",)) == b"admitted"
    file.unlink()
    assert not password.reload_if_changed()
    await script.aclose()
    assert await script.run((), ("with the last password",)) == b"with the last password"
    await script.aclose()
    missing = RedisAddress(own_redis.url, password=redis_password(file))
    with pytest.raises(RedisError, match="cannot read the password"):
        await RedisScript(missing, "return ARGV[1]", PATIENCE_S).run((), ("refused",))


async def set_password(server: RedisServer, password: str) -> None:
    reader, writer = await asyncio.open_connection(urlsplit(server.url).hostname, server.port)
    writer.write(f"CONFIG SET requirepass {password}\r\n".encode())
    assert await reader.readline() == b"+OK\r\n"
    writer.close()


async def test_an_agent_uses_its_certificate_for_etcd_and_redis(tmp_path: Path, redis_server: RedisServer) -> None:
    directory = tmp_path / "agent"
    with mutual_tls_etcd(tmp_path / "etcd") as endpoint:
        async with (
            engine(nothing) as gpu,
            mutual_tls_relay(tmp_path / "redis", "127.0.0.1", redis_server.port) as port,
        ):
            process = AgentProcess(
                "a",
                directory,
                region="eu-de",
                etcd_endpoint=endpoint,
                redis_url=f"rediss://127.0.0.1:{port}/0",
                endpoints_file=write_endpoints(directory / "endpoints.yaml", [gpu.address], 4),
                settings={"ETCD_CA_FILE": str(directory / "identity" / AUTHORITIES)},
            )
            process.start()
            try:

                async def connected() -> bool:
                    if not process.faces():
                        return False
                    status = await asyncio.to_thread(process.status)
                    return bool(status["shared_load"]["up"]) and status["not_ready_because"] is not None

                await until_async(connected)
                store = EtcdStore([endpoint], tls=etcd_tls(directory / "identity", endpoint))
                await until_async(lambda: is_registered(store))
                await store.close()
            finally:
                await asyncio.to_thread(process.kill)


async def nothing(engine: ScriptedEngine, received: object, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def is_registered(store: EtcdStore) -> bool:
    try:
        return bool((await store.list("/penstock/v1/agents/")).items)
    except StoreUnavailable:
        return False

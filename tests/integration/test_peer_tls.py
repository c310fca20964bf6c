"""Mutual TLS between agents: the real listener and connection pool, with certificates of the fleet and of others."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509

from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.servers.etcd import EtcdServer
from adapters.tls_contexts import ClientTls, ServerTls
from penstock.wire.identity import Identity, SpiffeId, TrustBundle
from penstock.wire.peer_keys import Keyring
from regional_agent.peers.server_certificates import AgentCertificateCheck
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import ConnectFailed, UpstreamError
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.agents import running_agent
from tests.support.chats import BODY, answers
from tests.support.identities import (
    YEAR_S,
    agent_id,
    authority,
    control_plane_id,
    identity,
    renew_identity,
    write_identity,
)
from tests.support.planet import plan, policy
from tests.support.sockets import RawClient, engine, post
from tests.support.wait import PATIENCE_S, until, until_async

HERE, THERE = agent_id("eu-de"), agent_id("eu-es")


def server_tls(directory: Path) -> ServerTls:
    return ServerTls(directory / CERTIFICATE, directory / PRIVATE_KEY, directory / AUTHORITIES)


def client_tls(directory: Path) -> ClientTls:
    return ClientTls(directory / AUTHORITIES, directory / CERTIFICATE, directory / PRIVATE_KEY, check_hostname=False)


def pool_of(directory: Path, keyring: Keyring | None = None) -> UpstreamPool:
    """The connection pool of agent HERE for other regions."""
    return UpstreamPool(
        client_tls(write_identity(directory, HERE)), verify=AgentCertificateCheck(keyring or Keyring(identity(HERE)))
    )


@asynccontextmanager
async def peer(directory: Path, id_: SpiffeId, fleet: int = 0) -> AsyncIterator[Address]:
    """Run an agent of region eu-es whose certificate has the SPIFFE ID `id_`."""
    tls = server_tls(write_identity(directory / "identity", id_, fleet))
    async with engine(answers) as gpu, running_agent(directory, [gpu.address], region="eu-es", peer_tls=tls) as there:
        yield there.peer._replace(region="eu-es")


async def answered(pool: UpstreamPool, address: Address) -> bool:
    """Whether the server responds to a request; the request has no credentials, so the status does not matter."""
    try:
        return (await fetch(pool, address, FetchRequest("/v1/models"), timeout_s=PATIENCE_S)).status > 0
    except ConnectFailed:
        raise
    except UpstreamError:
        return False


async def test_requests_are_forwarded_to_an_agent_of_the_expected_region(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    tls = server_tls(write_identity(tmp_path / "identity", THERE))
    async with (
        engine(answers) as far,
        running_agent(tmp_path / "there", [far.address], region="eu-es", peer_tls=tls) as there,
        running_agent(
            tmp_path / "here",
            [],
            plan=away,
            peers={"eu-es": there.peer._replace(region="eu-es")},
            peer_pool=pool_of(tmp_path / "own"),
        ) as origin,
    ):
        client = await RawClient.connect(origin.traffic)
        for _ in range(3):
            client.send(post(BODY))
            status, headers, _ = await client.answer()
            assert (status, headers["x-penstock-region"]) == (200, "eu-es")
        client.close()


async def test_the_handshake_requests_the_server_name_of_the_address(tmp_path: Path) -> None:
    requested: list[str] = []
    tls = server_tls(write_identity(tmp_path / "identity", THERE))
    context = tls()
    context.sni_callback = lambda _socket, name, _context: requested.append(name)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    pool = pool_of(tmp_path / "own")
    for address in (
        Address("127.0.0.1", port, True, "eu-es", "eu-es-1.example"),
        Address.parse(f"https://localhost:{port}", "eu-es"),
    ):
        (await pool.connect(address)).abort()
    assert requested == ["eu-es-1.example", "localhost"]
    server.close()
    await server.wait_closed()


async def test_the_host_in_the_certificate_does_not_count(tmp_path: Path) -> None:
    directory = write_identity(tmp_path / "identity", THERE)
    key, certificate = authority().issue(THERE, ["elsewhere.example"], time.time(), YEAR_S)
    (directory / PRIVATE_KEY).write_bytes(key)
    (directory / CERTIFICATE).write_bytes(certificate)
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], region="eu-es", peer_tls=server_tls(directory)) as there,
    ):
        assert await answered(pool_of(tmp_path / "own"), there.peer._replace(region="eu-es"))


@pytest.mark.parametrize(
    ("id_", "fleet", "reason"),
    [
        (agent_id("us-east"), 0, "not an agent of region 'eu-es'"),
        (control_plane_id(), 0, "not an agent of region 'eu-es'"),
        (THERE, 1, "certificate verify failed"),
    ],
    ids=["another region", "a control plane", "another fleet"],
)
async def test_a_server_other_than_an_agent_of_the_region_receives_nothing(
    tmp_path: Path, id_: SpiffeId, fleet: int, reason: str
) -> None:
    async with peer(tmp_path, id_, fleet) as address:
        with pytest.raises(ConnectFailed, match=reason):
            await answered(pool_of(tmp_path / "own"), address)


async def test_a_revoked_server_receives_nothing(tmp_path: Path) -> None:
    now = time.time()
    revoked = TrustBundle([authority().certificate], {identity(THERE).peer.serial})
    keyring = Keyring(Identity(*authority().issue(HERE, (), now, YEAR_S), revoked, now))
    async with peer(tmp_path, THERE) as address:
        with pytest.raises(ConnectFailed, match="is revoked"):
            await answered(pool_of(tmp_path / "own", keyring), address)


async def test_a_client_without_a_certificate_of_the_fleet_is_not_served(tmp_path: Path) -> None:
    foreign_identity = write_identity(tmp_path / "stranger", HERE, fleet=1)
    trust = tmp_path / "there" / "identity" / AUTHORITIES
    async with peer(tmp_path / "there", THERE) as address:
        nameless = ClientTls(trust, check_hostname=False)
        foreign = ClientTls(trust, foreign_identity / CERTIFICATE, foreign_identity / PRIVATE_KEY, check_hostname=False)
        for tls in (nameless, foreign):
            assert not await answered(UpstreamPool(tls), address)
        assert await answered(pool_of(tmp_path / "own"), address)


async def test_plain_http_is_not_served(tmp_path: Path) -> None:
    async with peer(tmp_path, THERE) as address:
        assert not await answered(UpstreamPool(), address._replace(tls=False))


async def test_a_renewed_certificate_is_used_by_new_connections(tmp_path: Path) -> None:
    directory = write_identity(tmp_path / "identity", THERE)
    tls = server_tls(directory)
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], region="eu-es", peer_tls=tls) as there,
    ):
        context = client_tls(write_identity(tmp_path / "own", HERE))()
        before = await served_serial(there.peer, context)
        assert before == serial_in(directory)
        renew_identity(directory, THERE)
        tls.files.reload_if_changed()
        after = await served_serial(there.peer, context)
        assert after == serial_in(directory) != before


async def test_agent_processes_use_tls_without_any_setting(tmp_path: Path, own_etcd: EtcdServer) -> None:
    await publish(own_etcd, policy())
    async with engine(answers) as gpu:
        agents = {
            region: AgentProcess(
                "a",
                tmp_path / region,
                region=region,
                etcd_endpoint=own_etcd.endpoint,
                redis_url=None,
                endpoints_file=write_endpoints(tmp_path / region / "endpoints.yaml", [gpu.address], 4),
                settings=settings,
            )
            for region, settings in (("eu-de", {}), ("eu-es", {}), ("us-east", {"ALLOW_PLAINTEXT": "peers"}))
        }
        try:
            for process in agents.values():
                process.start()
            for process in agents.values():
                await asyncio.to_thread(process.wait_ready, PATIENCE_S)
            here, plain = agents["eu-de"], agents["us-east"]

            await until_async(state_of(here, "eu-es", "healthy"))
            await until_async(state_of(plain, "eu-es", "healthy"))
            await until(lambda: "us-east" in warnings_in(here, "unencrypted address"))
            assert here.faces()["peer"].tls
            assert not plain.faces()["peer"].tls
            assert here.status()["peers"]["us-east"] == {"state": "unknown", "rtt_ms": None, "agents": []}
            assert "ALLOW_PLAINTEXT" in warnings_in(plain, "may be unencrypted")
        finally:
            for process in agents.values():
                await asyncio.to_thread(process.kill)


def state_of(process: AgentProcess, region: str, state: str) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return bool((await asyncio.to_thread(process.status))["peers"][region]["state"] == state)

    return holds


def warnings_in(process: AgentProcess, text: str) -> str:
    return "\n".join(line for line in process.log_path.read_text().splitlines() if text in line)


async def served_serial(address: Address, context: ssl.SSLContext) -> int:
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(certificate).serial_number


def serial_in(directory: Path) -> int:
    return x509.load_pem_x509_certificate((directory / CERTIFICATE).read_bytes()).serial_number

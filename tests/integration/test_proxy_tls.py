"""TLS on every side: clients, peers and engines, with certificates that are replaced while the agent serves."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from adapters.files.tls_files import BadTlsFiles
from adapters.tls_contexts import ClientTls, ServerTls
from regional_agent.http.drain import drain_all
from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import ConnectFailed
from tests.support.agents import running_agent
from tests.support.certificates import has_openssl_3, make_authority, make_certificate
from tests.support.chats import ANSWER, BODY, answers
from tests.support.on_uvloop import on_uvloop
from tests.support.planet import plan
from tests.support.sockets import Answer, RawClient, engine, post
from tests.support.wait import PATIENCE_S, until

pytestmark = pytest.mark.skipif(not has_openssl_3(), reason="needs openssl >= 3 to make certificates")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    for authority in ("ours", "stranger"):
        make_authority(directory, authority)
    for name in ("one", "two", "client"):
        make_certificate(directory, "ours", name)
    make_certificate(directory, "stranger", "intruder")
    return directory


def server(made: Path, name: str = "one", client_ca: str | None = None) -> ServerTls:
    return ServerTls(made / f"{name}.pem", made / f"{name}.key", made / f"{client_ca}.pem" if client_ca else None)


def client(made: Path, name: str | None = None, ca: str = "ours") -> ClientTls:
    return ClientTls(made / f"{ca}.pem", *((made / f"{name}.pem", made / f"{name}.key") if name else ()))


async def connect(address: Address, tls: ClientTls) -> RawClient:
    streams = await asyncio.open_connection(address.host, address.port, ssl=tls(), limit=1 << 22)
    return RawClient(*streams)


async def ask_over(address: Address, tls: ClientTls) -> Answer:
    """Send a request by TLS 1.3. A client whose certificate is rejected receives the alert only when it reads."""
    connection = await connect(address, tls)
    connection.send(post(BODY))
    return await connection.answer()


def shown_to(connection: RawClient) -> str:
    """Common name of the server's certificate."""
    return dict(field[0] for field in connection.writer.get_extra_info("peercert")["subject"])["commonName"]


async def test_clients_are_served_over_tls_and_engines_receive_the_scheme(tmp_path: Path, made: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], tls=server(made)) as agent:
        over = await connect(agent.traffic, client(made))
        assert over.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        for _ in range(3):
            over.send(post(BODY))
            assert (await over.answer()).body == ANSWER
        assert gpu.requests[0].header("x-forwarded-proto") == "https"
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(agent.traffic, client(made, ca="stranger"))
        plain = await RawClient.connect(agent.traffic)
        plain.send(post(BODY))
        assert await plain.closed()
        over.close()


async def test_a_new_certificate_is_used_from_the_next_handshake_on(tmp_path: Path, made: Path) -> None:
    live = tmp_path / "live.pem", tmp_path / "live.key"

    def put(name: str) -> None:
        for target, suffix in zip(live, (".pem", ".key"), strict=True):
            fresh = target.with_suffix(".new")
            fresh.write_bytes((made / f"{name}{suffix}").read_bytes())
            os.replace(fresh, target)

    put("one")
    tls = ServerTls(*live)
    async with engine(answers) as gpu, running_agent(tmp_path / "a", [gpu.address], tls=tls) as agent:
        before = await connect(agent.traffic, client(made))
        assert shown_to(before) == "one"
        put("two")
        tls.files.reload_if_changed()
        after = await connect(agent.traffic, client(made))
        assert shown_to(after) == "two"
        live[0].write_text("no certificate")
        tls.files.reload_if_changed()
        still = await connect(agent.traffic, client(made))
        assert shown_to(still) == "two", "the last good one stays"
        for connection in (before, after, still):
            connection.send(post(BODY))
            assert (await connection.answer()).status == 200
            connection.close()


async def test_client_certificates_can_be_required(tmp_path: Path, made: Path) -> None:
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], tls=server(made, client_ca="ours")) as agent,
    ):
        known = await connect(agent.traffic, client(made, "client"))
        known.send(post(BODY))
        assert (await known.answer()).status == 200
        known.close()
        for who in (client(made), client(made, "intruder")):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await ask_over(agent.traffic, who)
        assert len(gpu.requests) == 1


def ask_again(address: Address, context: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
    """Send a request and return its TLS session; None if the connection was refused."""
    try:
        with (
            socket.create_connection((address.host, address.port), PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=address.host, session=session) as over,
        ):
            over.sendall(post(BODY, "Connection: close"))
            return over.session if over.recv(1 << 16).startswith(b"HTTP/1.1 200") else None
    except OSError:
        return None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_that_is_no_longer_trusted_cannot_resume_a_session(
    tmp_path: Path, made: Path, version: ssl.TLSVersion
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes((made / "ours.pem").read_bytes())
    tls = ServerTls(made / "one.pem", made / "one.key", trusted)
    context = client(made, "client")()
    context.maximum_version = version
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], tls=tls) as agent:
        session = await asyncio.to_thread(ask_again, agent.traffic, context, None)
        assert session is not None
        assert await asyncio.to_thread(ask_again, agent.traffic, context, session) is not None
        trusted.write_bytes((made / "stranger.pem").read_bytes())
        tls.files.reload_if_changed()
        assert await asyncio.to_thread(ask_again, agent.traffic, context, session) is None
        assert len(gpu.requests) == 2


async def test_engines_and_peers_over_tls(tmp_path: Path, made: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    both_ways = server(made, client_ca="ours")
    pool = UpstreamPool(client(made))
    async with (
        engine(answers, tls=server(made)()) as far,
        engine(answers) as near,
        running_agent(tmp_path / "server", [far.address], region="eu-es", peer_tls=both_ways, pool=pool) as there,
        running_agent(
            tmp_path / "origin",
            [near.address],
            plan=away,
            peers={"eu-es": there.peer},
            peer_pool=UpstreamPool(client(made, "client")),
        ) as origin,
    ):
        asking = await RawClient.connect(origin.traffic)
        for _ in range(2):
            asking.send(post(BODY))
            status, headers, _ = await asking.answer()
            assert (status, headers["x-penstock-region"]) == (200, "eu-es")
        assert len(far.requests) == 2
        asking.close()
    async with (
        engine(answers) as near,
        running_agent(tmp_path / "there", [near.address], region="eu-es", peer_tls=both_ways) as there,
        running_agent(
            tmp_path / "shut out",
            [near.address],
            plan=away,
            peers={"eu-es": there.peer},
            peer_pool=UpstreamPool(client(made, "intruder")),
        ) as origin,
    ):
        asking = await RawClient.connect(origin.traffic)
        asking.send(post(BODY))
        assert (await asking.answer()).headers["x-penstock-region"] == "eu-de", "a stranger's agent is let in nowhere"
        asking.close()


async def test_a_server_is_verified_by_the_requested_name(made: Path) -> None:
    async with engine(answers, tls=server(made)()) as gpu:

        async def at_home(host: str) -> tuple[str, ...]:
            return (gpu.address.host,)

        pool = UpstreamPool(client(made), at_home)
        (await pool.connect(gpu.address)).abort()
        with pytest.raises(ConnectFailed, match=r"not valid for 'gpu\.test'"):
            await pool.connect(gpu.address._replace(host="gpu.test"))


def test_invalid_files_are_named(tmp_path: Path, made: Path) -> None:
    absent = tmp_path / "absent.pem"
    with pytest.raises(BadTlsFiles, match=r"absent\.pem"):
        ServerTls(absent, made / "one.key")
    with pytest.raises(BadTlsFiles, match=r"one\.pem.*two\.key"):
        ServerTls(made / "one.pem", made / "two.key")
    with pytest.raises(BadTlsFiles, match=r"one\.key"):
        ClientTls(made / "one.key")


async def handshakes_are_counted(directory: Path, made: Path) -> None:
    limits = Limits(max_connections_per_address=2, idle_linger_s=0.0)
    async with (
        engine(answers) as gpu,
        running_agent(directory, [gpu.address], tls=server(made), limits=limits) as agent,
    ):
        silent = [await RawClient.connect(agent.traffic) for _ in range(2)]
        third = await RawClient.connect(agent.traffic)
        assert await third.closed(), "before it has cost a handshake"
        with pytest.raises(OSError):  # noqa: PT011  which one is the platform's business
            await connect(agent.traffic, client(made))
        silent.pop().send(b"no TLS at all\r\n\r\n")
        over = None
        async with asyncio.timeout(PATIENCE_S):
            while over is None:
                with suppress(OSError):
                    over = await connect(agent.traffic, client(made))
        over.send(post(BODY))
        assert (await over.answer()).status == 200
        with pytest.raises(OSError):  # noqa: PT011
            await connect(agent.traffic, client(made))
        assert len(agent.listener.connections) == 1
        for connection in (*silent, over):
            connection.close()


async def test_a_handshake_above_the_rate_of_connections_is_not_begun(tmp_path: Path, made: Path) -> None:
    limits = Limits(max_connection_rate_per_address=0.1, idle_linger_s=0.0)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], tls=server(made), limits=limits) as agent:
        first = await connect(agent.traffic, client(made))
        first.send(post(BODY))
        assert (await first.answer()).status == 200
        assert await (await RawClient.connect(agent.traffic)).closed()
        counts = agent.listener.counts
        assert (counts.accepted, counts.handshakes, counts.refused["connection_rate"]) == (1, 0, 1)


async def test_a_handshake_that_is_not_completed_counts_as_many_connections(tmp_path: Path, made: Path) -> None:
    # 104 connections at once: as many handshakes that succeed, or two that do not.
    limits = Limits(max_connection_rate_per_address=10.4, idle_linger_s=0.0)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], tls=server(made), limits=limits) as agent:
        counts = agent.listener.counts
        (await connect(agent.traffic, client(made))).close()
        for _ in range(2):
            assert counts.refused["connection_rate"] == 0
            half_open = await RawClient.connect(agent.traffic)
            await until(lambda: counts.handshakes == 1)
            half_open.close()
            await until(lambda: counts.handshakes == 0)
        assert await (await RawClient.connect(agent.traffic)).closed(), "before its handshake"
        assert counts.refused["connection_rate"] == 1
        host, port, *_ = agent.traffic
        elsewhere = RawClient(*await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0)))
        await until(lambda: counts.handshakes == 1)
        elsewhere.close()


async def test_handshakes_in_progress_count_as_connections(tmp_path: Path, made: Path) -> None:
    await handshakes_are_counted(tmp_path, made)


@on_uvloop
async def test_handshakes_in_progress_count_at_the_agent_daemon(tmp_path: Path, made: Path) -> None:
    await handshakes_are_counted(tmp_path, made)


@on_uvloop
async def test_a_slow_handshake_makes_room_for_new_ones(tmp_path: Path, made: Path) -> None:
    limits = Limits(max_connections=16, max_connections_per_address=16, idle_linger_s=0.0)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], tls=server(made), limits=limits) as agent:
        host, port, *_ = agent.traffic
        elsewhere = RawClient(*await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0)))
        await until(lambda: agent.listener.handshakes == 1)
        silent = [await RawClient.connect(agent.traffic) for _ in range(8)]
        over = await connect(agent.traffic, client(made))
        over.send(post(BODY))
        assert (await over.answer()).status == 200
        assert await silent[0].closed()
        assert agent.listener.handshakes <= 3
        for connection in (*silent, over):
            connection.close()
        await until(lambda: agent.listener.handshakes == 1)
        elsewhere.close()


async def test_a_handshake_that_never_ends_times_out(tmp_path: Path, made: Path) -> None:
    limits = Limits(head_timeout_s=0.2, idle_linger_s=0.0)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], tls=server(made), limits=limits) as agent:
        silent = await RawClient.connect(agent.traffic)
        assert await silent.closed()


async def test_a_drain_waits_for_handshakes_and_accepts_no_more(tmp_path: Path, made: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], tls=server(made)) as agent:
        slow = await asyncio.open_connection(agent.traffic.host, agent.traffic.port)
        fresh = await RawClient.connect(agent.traffic)
        await until(lambda: agent.listener.handshakes == 2)
        leaving = asyncio.create_task(drain_all([agent.listener], PATIENCE_S, agent.proxy.shut_down))
        await until(lambda: agent.listener.state.draining)
        with pytest.raises(OSError):  # noqa: PT011
            await connect(agent.traffic, client(made))
        fresh.close()
        await slow[1].start_tls(client(made)(), server_hostname=agent.traffic.host)
        over = RawClient(*slow)
        over.send(post(BODY))
        answer = await over.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        over.close()
        assert await leaving == 0

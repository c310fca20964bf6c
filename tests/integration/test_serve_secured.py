"""`penstock serve` with all security settings: mutual TLS, etcd with client certificates, API keys, and an issuer."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from adapters.access.callers import Caller, Role
from adapters.files.identity_files import CERTIFICATE, PRIVATE_KEY
from adapters.files.tls_files import BadTlsFiles
from adapters.servers.free_ports import LOOPBACK
from adapters.servers.process import ServerProcess, find_script
from adapters.store.members import Member
from adapters.tcp_acceptor import TcpAcceptor
from adapters.tls_contexts import ClientTls, ServerTls
from control_plane.leadership.leader_client import ForwardedRequest, LeaderClient, LeaderResponse, LeaderUnavailable
from penstock.wire.identity import ProcessRole, SpiffeId
from tests.support.certificates import has_openssl_3, make_authority, make_certificate
from tests.support.control_planes import OPERATOR, PLANET, TOKEN
from tests.support.identities import FLEET, agent_id, control_plane_id, control_plane_keyring, write_identity
from tests.support.identity_provider import CLIENT_ID, IdentityProvider, choose
from tests.support.issuer import AUDIENCE, rsa_key
from tests.support.on_uvloop import on_uvloop
from tests.support.reserved_ports import reserved_ports
from tests.support.secured_etcd import secured_etcd
from tests.support.wait import PATIENCE_S, found, until_async

MONITOR = SpiffeId(FLEET, ProcessRole.MONITOR, "prometheus")
DUTY = Caller("duty", Role.VIEWER)
CLIENT_SECRET = "a secret of the page at the provider"

pytestmark = pytest.mark.skipif(not has_openssl_3(), reason="needs openssl >= 3 to make certificates")


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    directory = tmp_path / "certificates"
    make_authority(directory, "authority")
    for name in ("etcd", "client", "api", "next"):
        make_certificate(directory, "authority", name)
    return directory


@pytest.fixture
def etcd(tmp_path: Path, certificates: Path) -> Iterator[str]:
    with secured_etcd(tmp_path / "etcd", certificates, "etcd") as endpoint:
        yield endpoint


@pytest.fixture
async def issuer() -> AsyncIterator[IdentityProvider]:
    issuer = IdentityProvider(one=rsa_key())
    issuer.secret = CLIENT_SECRET
    async with issuer.http:
        yield issuer


@pytest.fixture
async def url(tmp_path: Path, certificates: Path, etcd: str, issuer: IdentityProvider) -> AsyncIterator[str]:
    (tmp_path / "admin.token").write_text(TOKEN)
    (tmp_path / "client.secret").write_text(CLIENT_SECRET)
    digest = sha256(b"a key of the duty desk").hexdigest()
    (tmp_path / "keys.yaml").write_text(f"- {{name: duty, sha256: {digest}, role: viewer}}")
    with reserved_ports(1) as (port,):
        server = _server(tmp_path, certificates, etcd, issuer, port)
        server.start()
        yield f"https://{LOOPBACK}:{port}"
        await asyncio.to_thread(server.stop)


def _server(directory: Path, certificates: Path, etcd: str, issuer: IdentityProvider, port: int) -> ServerProcess:
    settings = {
        "NAME": "north",
        "LISTEN": f"{LOOPBACK}:{port}",
        "ETCD_ENDPOINTS": etcd,
        "ETCD_CA_FILE": certificates / "authority.pem",
        "ETCD_CERTIFICATE_FILE": certificates / "client.pem",
        "ETCD_KEY_FILE": certificates / "client.key",
        "POLICY_DIR": PLANET,
        "IDENTITY_DIR": write_identity(directory / "identity", control_plane_id("north")),
        "ADMIN_TOKEN_FILE": directory / "admin.token",
        "API_KEYS_FILE": directory / "keys.yaml",
        "TLS_CERTIFICATE_FILE": certificates / "api.pem",
        "TLS_KEY_FILE": certificates / "api.key",
        "TRUSTED_PROXIES": "127.0.0.1",
        "OIDC_ISSUER": issuer.url,
        "OIDC_AUDIENCE": AUDIENCE,
        "OIDC_JWKS_URL": issuer.jwks_url,
        "OIDC_ROLES": "sre=operator",
        "OIDC_CLIENT_ID": CLIENT_ID,
        "OIDC_CLIENT_SECRET_FILE": directory / "client.secret",
    }
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    return ServerProcess(
        "north",
        [find_script("penstock"), "serve"],
        log_path=directory / "north.log",
        ports=(port,),
        env=environment | {f"PENSTOCK_{key}": str(value) for key, value in settings.items()},
    )


async def test_all_security_settings_work_together(
    url: str, certificates: Path, issuer: IdentityProvider, tmp_path: Path
) -> None:
    trust = ssl.create_default_context(cafile=certificates / "authority.pem")
    async with httpx.AsyncClient(base_url=url, verify=trust, timeout=PATIENCE_S) as http:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if (await http.get("/readyz")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.1)
        names = {}
        for credential in (TOKEN, "a key of the duty desk", issuer.token("one")):
            me = await http.get("/v1/whoami", headers={"authorization": f"Bearer {credential}"})
            names[me.json()["name"]] = me.json()["role"]
        assert names == {"admin-token": "admin", "duty": "viewer", "oidc:ada": "operator"}
        left = await http.get("/ui/sign-in")
        returned = await choose(http, left.headers["location"])
        assert returned.startswith(f"{url}/ui/signed-in?"), "the default is not under the advertised URL"
        assert (await http.get(returned)).status_code == 303
        assert (await http.get("/v1/whoami", headers={"x-penstock-ui": "1"})).json()["name"] == "oidc:ada"
        assert set(http.cookies) == {"__Host-penstock-session"}
        status = (await http.get("/v1/status", headers=OPERATOR)).json()
        assert (status["url"], status["store"]["up"]) == (url, True)
        # The client address is the one in the trusted proxy's header, so failures of another address do not count.
        bad = {"authorization": "Bearer nobody", "x-forwarded-for": "192.0.2.7"}
        while (refused := await http.get("/v1/whoami", headers=bad)).status_code == 401:
            pass
        assert refused.status_code == 429
        assert (await http.get("/v1/whoami", headers=OPERATOR)).status_code == 200
        (tmp_path / "admin.token").write_text(TOKEN[::-1])

        async def old_token_is_refused() -> bool:
            return (await http.get("/v1/whoami", headers=OPERATOR)).status_code == 401

        await until_async(old_token_is_refused)
        renewed = {"authorization": f"Bearer {TOKEN[::-1]}"}
        assert (await http.get("/v1/whoami", headers=renewed)).json()["name"] == "admin-token"
    for id_, statuses in ((MONITOR, (200, 403)), (agent_id(), (401, 401))):
        files = write_identity(tmp_path / id_.role, id_)
        trust.load_cert_chain(files / CERTIFICATE, files / PRIVATE_KEY)
        async with httpx.AsyncClient(base_url=url, verify=trust, timeout=PATIENCE_S) as http:
            seen = (await http.get("/metrics")).status_code, (await http.get("/v1/status")).status_code
            assert seen == statuses, id_
    async with httpx.AsyncClient(verify=trust) as plain:
        with pytest.raises(httpx.TransportError):
            await plain.get(url.replace("https", "http") + "/livez")
    log = (tmp_path / "north.log").read_text()
    assert TOKEN not in log
    assert "a key of the duty desk" not in log
    assert CLIENT_SECRET not in log


async def test_another_control_plane_connects_only_where_it_trusts_the_certificate(
    url: str, certificates: Path, tmp_path: Path
) -> None:
    leader, asks = Member("north", url), Member("south", "https://south")
    link = LeaderClient(asks, control_plane_keyring("south"), tls=ClientTls(certificates / "authority.pem"))

    request = ForwardedRequest("GET", "/v1/regions", DUTY, "192.0.2.7")

    async def regions() -> LeaderResponse | None:
        try:
            reply = await link.forward(leader, request, PATIENCE_S)
        except LeaderUnavailable:
            return None
        return reply if reply.status == 200 else None

    assert b"Frankfurt" in (await found(regions)).body
    await link.close()
    without_authority = LeaderClient(asks, control_plane_keyring("south"))
    with pytest.raises(LeaderUnavailable, match="certificate verify failed"):
        await without_authority.forward(leader, request, PATIENCE_S)
    await without_authority.close()
    for bad in ("missing.pem", "keys.yaml"):
        with pytest.raises(BadTlsFiles, match=bad):
            ClientTls(tmp_path / bad)


class Connection:
    """An accepted connection that `serve` serves."""

    def __init__(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> None:
        self._serve = serve

    def make_protocol(self) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve)

    def on_opened(self, *, connected: bool) -> None:
        pass


def accepting(
    tls: ServerTls, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]
) -> tuple[TcpAcceptor, int]:
    """Start to accept connections; returns the acceptor and its port."""
    listening = socket.create_server((LOOPBACK, 0))
    acceptor = TcpAcceptor(listening, lambda *_: Connection(serve), tls=tls, handshake_timeout_s=PATIENCE_S)
    return acceptor, listening.getsockname()[1]


async def test_a_new_certificate_is_loaded_with_its_key(tmp_path: Path, certificates: Path) -> None:
    shown = tmp_path / "shown.pem", tmp_path / "shown.key"

    def show(name: str, *, key: bool = True) -> None:
        shown[0].write_bytes((certificates / f"{name}.pem").read_bytes())
        if key:
            shown[1].write_bytes((certificates / f"{name}.key").read_bytes())

    async def subject() -> str:
        trust = ssl.create_default_context(cafile=certificates / "authority.pem")
        _, writer = await asyncio.open_connection(LOOPBACK, port, ssl=trust)
        certificate = writer.get_extra_info("peercert")
        writer.close()
        return str(dict(pair for part in certificate["subject"] for pair in part)["commonName"])

    show("api")
    tls = ServerTls(*shown)
    acceptor, port = accepting(tls, lambda _, writer: writer.close())
    assert await subject() == "api"
    show("next", key=False)
    tls.files.reload_if_changed()
    assert await subject() == "api"
    show("next")
    tls.files.reload_if_changed()
    assert await subject() == "next"
    shown[0].unlink()
    tls.files.reload_if_changed()
    assert await subject() == "next"
    acceptor.close()
    with pytest.raises(BadTlsFiles, match=r"shown\.pem"):
        ServerTls(*shown)


@pytest.mark.parametrize(
    ("version", "options"),
    [(ssl.TLSVersion.TLSv1_2, ssl.OP_NO_TICKET), (ssl.TLSVersion.TLSv1_2, 0), (ssl.TLSVersion.TLSv1_3, 0)],
    ids=["session id", "ticket", "TLS 1.3"],
)
@on_uvloop
async def test_a_client_of_a_removed_authority_cannot_resume_a_session(
    tmp_path: Path, certificates: Path, version: ssl.TLSVersion, options: int
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes((certificates / "authority.pem").read_bytes())
    tls = ServerTls(certificates / "api.pem", certificates / "api.key", trusted)
    client = ssl.create_default_context(cafile=certificates / "authority.pem")
    client.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    client.maximum_version = version
    client.options |= options

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))
        writer.close()

    def connect(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None] | None:
        """Return the TLS session, and whether it was resumed; None if the connection was refused."""
        try:
            with (
                socket.create_connection((LOOPBACK, port), PATIENCE_S) as plain,
                client.wrap_socket(plain, server_hostname=LOOPBACK, session=session) as over,
            ):
                over.sendall(b"x")
                if over.recv(1) != b"x":
                    return None
                used = over.session, over.session_reused
                over.recv(1)  # the end: OpenSSL forgets the session of a connection that breaks off
                return used
        except (ssl.SSLError, ConnectionError):
            return None

    acceptor, port = accepting(tls, serve)
    first = await asyncio.to_thread(connect, None)
    assert first is not None
    session, _ = first
    again = await asyncio.to_thread(connect, session)
    assert again is not None
    assert again[1], "resumed"
    make_authority(tmp_path / "others", "other")
    trusted.write_bytes((tmp_path / "others" / "other.pem").read_bytes())
    tls.files.reload_if_changed()
    assert await asyncio.to_thread(connect, session) is None
    acceptor.close()

"""Authorisation at the admin listener of an agent: over TLS, by key or by client certificate."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from adapters.access.api_keys import ApiKeys
from adapters.access.callers import Role
from adapters.access.key_access import KeyAccess
from adapters.access.login_failures import BURST, LoginFailures
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.tls_contexts import ServerTls
from control_plane.cli.agent_client import KeyRejected, fetch_explanation
from control_plane.cli.api_client import Unreachable
from control_plane.cli.command_options import FleetOptions
from control_plane.cli.error_output import UsageFault
from penstock.wire.identity import Identity, ProcessRole, SpiffeId, TrustBundle
from penstock.wire.peer_keys import Keyring
from regional_agent.http.limits import Limits
from regional_agent.http.listener import Listener
from tests.support.agents import admin_service, running_agent
from tests.support.identities import FLEET, YEAR_S, agent_id, authority, control_plane_id, identity, write_identity

HERE = agent_id("eu-de", "agent-1")
MONITOR = SpiffeId(FLEET, ProcessRole.MONITOR, "prometheus")
SERVER = SpiffeId(FLEET, ProcessRole.SERVER, "etcd-1")


@asynccontextmanager
async def admin(
    directory: Path, revoked: frozenset[str] = frozenset(), *, require_client: bool = False
) -> AsyncIterator[str]:
    """The admin listener of an agent, with a key for each role whose name is the role; its URL."""
    digests = {role: sha256(role.encode()).hexdigest() for role in Role}
    entries = [f"- {{name: {role}, sha256: {digest}, role: {role}}}\n" for role, digest in digests.items()]
    (directory / "keys.yaml").write_text("".join(entries))
    own = write_identity(directory / "own", HERE)
    now = time.time()
    keyring = Keyring(
        Identity(*authority().issue(HERE, (), now, YEAR_S), TrustBundle([authority().certificate], revoked), now)
    )
    unforgotten = LoginFailures(clock=lambda: 0.0)
    access = KeyAccess(ApiKeys(directory / "keys.yaml"), keyring, key_setting="KEYS", failures=unforgotten)
    tls = ServerTls(own / CERTIFICATE, own / PRIVATE_KEY, own / AUTHORITIES, require_client=require_client)
    async with running_agent(directory / "agent", []) as agent:
        listener = Listener(admin_service(agent, access=access), Limits(idle_linger_s=0.0), tls=tls)
        _, port = await listener.start("127.0.0.1", 0)
        try:
            yield f"https://127.0.0.1:{port}"
        finally:
            listener.stop_accepting()
            await listener.drain(0.0)


def client(directory: Path, url: str, id_: SpiffeId | None = None, fleet: int = 0) -> httpx.AsyncClient:
    """A client of the listener, with the certificate of `id_`."""
    context = ssl.create_default_context(cafile=directory / "own" / AUTHORITIES)
    if id_ is not None:
        files = write_identity(directory / f"{id_.role}-{fleet}", id_, fleet)
        context.load_cert_chain(files / CERTIFICATE, files / PRIVATE_KEY)
    return httpx.AsyncClient(base_url=url, verify=context, timeout=60.0)


async def status_of(http: httpx.AsyncClient, path: str, key: str = "") -> int:
    return (await http.get(path, headers={"authorization": f"Bearer {key}"} if key else {})).status_code


async def test_a_certificate_can_be_required_in_addition_to_a_key(
    tmp_path: Path,
) -> None:
    (tmp_path / "key").write_text("0123456789abcdef")
    (tmp_path / "key").chmod(0o600)
    issued = write_identity(tmp_path / "monitor", MONITOR)
    environment = {
        "PENSTOCK_URL": "https://unused",
        "PENSTOCK_CONTEXTS_FILE": str(tmp_path / "contexts"),
        "PENSTOCK_AGENTS_KEY_FILE": str(tmp_path / "key"),
        "PENSTOCK_CA_FILE": str(issued / AUTHORITIES),
    }
    async with admin(tmp_path, require_client=True) as url:
        for identity_dir, expected in ({}, Unreachable), ({"PENSTOCK_CLIENT_IDENTITY_DIR": str(issued)}, KeyRejected):
            access = FleetOptions().agent_access(environment=environment | identity_dir)
            with pytest.raises(expected):
                await asyncio.to_thread(fetch_explanation, url, {"model": "m"}, access)
    with pytest.raises(UsageFault, match="not a usable identity"):
        FleetOptions().agent_access(environment=environment | {"PENSTOCK_CLIENT_IDENTITY_DIR": str(tmp_path)})


async def test_health_is_open_and_each_page_has_its_role(tmp_path: Path) -> None:
    async with admin(tmp_path) as url, client(tmp_path, url) as http:
        assert await status_of(http, "/livez") == 200
        assert await status_of(http, "/readyz") == 503  # no endpoint
        required = {"/metrics": Role.MONITOR, "/status": Role.VIEWER, "/explain?model=m": Role.VIEWER}
        for path, role in required.items():
            refused = await http.get(path)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "KEYS" in refused.json()["error"]["message"]
            for caller in Role:
                permitted = await status_of(http, path, caller)
                assert permitted == (200 if caller.covers(role) else 403), (path, caller)
        assert await status_of(http, "/other") == 404


@pytest.mark.parametrize(
    ("id_", "status"), [(MONITOR, 200), (SERVER, 401), (HERE, 401), (control_plane_id(), 401)], ids=str
)
async def test_a_certificate_has_the_permissions_of_its_role(tmp_path: Path, id_: SpiffeId, status: int) -> None:
    async with admin(tmp_path) as url, client(tmp_path, url, id_) as http:
        assert await status_of(http, "/metrics") == status
        assert await status_of(http, "/status") == (403 if status == 200 else 401)
        assert await status_of(http, "/status", "viewer") == 200


async def test_foreign_and_revoked_certificates_permit_nothing(tmp_path: Path) -> None:
    async with admin(tmp_path, frozenset({identity(MONITOR).peer.serial})) as url:
        async with client(tmp_path, url, MONITOR) as revoked:
            assert await status_of(revoked, "/metrics") == 401
        async with client(tmp_path, url, MONITOR, fleet=1) as foreign:
            with pytest.raises(httpx.TransportError):
                await status_of(foreign, "/livez")
        async with httpx.AsyncClient(base_url=url.replace("https", "http")) as plain:
            with pytest.raises(httpx.TransportError):
                await status_of(plain, "/livez")


async def test_keys_cannot_be_guessed(tmp_path: Path) -> None:
    async with admin(tmp_path) as url, client(tmp_path, url) as http:
        for number in range(BURST):
            assert await status_of(http, "/status", f"guess {number}") == 401
        limited = await http.get("/status", headers={"authorization": "Bearer viewer"})
        assert limited.status_code == 429
        assert int(limited.headers["retry-after"]) >= 1
        assert await status_of(http, "/livez") == 200

"""Sessions of browsers that were revoked: by sign-out, by an admin, at another control plane, before a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random

import httpx
import msgspec
import pytest

from adapters.access.api_keys import ApiKeys
from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.config_store import ConfigStore, Delete, StoreError
from adapters.store.members import Member
from control_plane.audit.audit_log import AuditLog
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from control_plane.policy.folder import FolderReader
from control_plane.ui.browser_sessions import COOKIE, LIFETIME_S, BrowserSessions, Session
from control_plane.ui.session_revocations import CLOCK_DIFFERENCE_S, MAX_SESSIONS, SessionRevocations
from lab.memory_store import MemoryStore
from penstock.log_chains.audit_log_chain import AuditEntry
from tests.support.api_app import TOKEN, served
from tests.support.clocks import SetClock
from tests.support.faulty_store import FaultyStore
from tests.support.identities import control_plane_id, keyring_of_fleet
from tests.support.paths import PLANET
from tests.support.wait import until, until_async

PAGE = {"x-penstock-ui": "1"}
ADMIN = Caller("ada", Role.ADMIN)


@pytest.fixture
def clock() -> SetClock:
    return SetClock(1_000_000.0)


@asynccontextmanager
async def revocations_on(store: ConfigStore, clock: SetClock) -> AsyncIterator[SessionRevocations]:
    """The revocations of one control plane, which follow the store."""
    revocations = SessionRevocations(store, AuditLog(store, clock), rng=Random(1), clock=clock)
    revocations.informer.start()
    await revocations.informer.wait_synced()
    try:
        yield revocations
    finally:
        await revocations.informer.stop()


def begun(clock: SetClock, caller: str = "eve") -> Session:
    sessions = BrowserSessions(b"secret", clock)
    session = sessions.open(sessions.seal("key", caller))
    assert session is not None
    return session


@pytest.fixture
async def http(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    listed = [
        {"name": name, "sha256": sha256(name.encode()).hexdigest(), "role": name} for name in ("viewer", "operator")
    ]
    (tmp_path / "keys.yaml").write_bytes(msgspec.json.encode(listed))
    transport = httpx.ASGITransport(served(control_plane, Access(TOKEN, ApiKeys(tmp_path / "keys.yaml"))))
    async with httpx.AsyncClient(transport=transport, base_url="http://north") as client:
        yield client


async def sign_in(http: httpx.AsyncClient, key: str) -> dict[str, str]:
    """Headers of the page with a new session."""
    answer = await http.post("/v1/session", headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 204, answer.text
    value = answer.cookies[COOKIE]
    http.cookies.clear()
    return {**PAGE, "cookie": f"{COOKIE}={value}"}


async def status(http: httpx.AsyncClient, headers: dict[str, str]) -> int:
    return (await http.get("/v1/whoami", headers=headers)).status_code


async def test_a_cookie_does_not_count_after_its_sign_out(http: httpx.AsyncClient) -> None:
    first, second = await sign_in(http, "viewer"), await sign_in(http, "viewer")
    assert (await status(http, first), await status(http, second)) == (200, 200)
    assert (await http.delete("/v1/session", headers=first)).status_code == 204
    assert (await status(http, first), await status(http, second)) == (401, 200)
    # A request with a credential instead of a session ends no session.
    assert (await http.delete("/v1/session", headers={"authorization": "Bearer viewer"})).status_code == 204
    assert await status(http, second) == 200


async def test_an_admin_ends_the_sessions_of_a_caller(control_plane: ControlPlane, http: httpx.AsyncClient) -> None:
    viewer, operator = await sign_in(http, "viewer"), await sign_in(http, "operator")
    body = {"caller": "viewer", "reason": "left the team"}
    refused = await http.post("/v1/session/revocations", json=body, headers={"authorization": "Bearer operator"})
    assert (refused.status_code, await status(http, viewer)) == (403, 200)
    done = await http.post("/v1/session/revocations", json=body, headers={"authorization": TOKEN.header()})
    assert (done.status_code, done.content) == (204, b"")
    assert (await status(http, viewer), await status(http, operator)) == (401, 200)
    (entry,) = await control_plane.audit.page(1, 1)
    assert isinstance(entry, AuditEntry)
    assert (entry.caller, entry.action, entry.target) == ("admin-token", "session.revoke", "viewer")
    assert entry.reason == "left the team"


@asynccontextmanager
async def serving(prefix: str) -> AsyncIterator[httpx.AsyncClient]:
    """A control plane with the same private key, of the fleet with this prefix."""
    keyring = keyring_of_fleet(control_plane_id("north"), prefix)
    reader, member = FolderReader(PLANET), Member("north", "http://north")
    made = ControlPlane(MemoryStore(), member, keyring=keyring, policy_reader=reader)
    app = made.create_api(Access(TOKEN), browser_secret=b"the private key")
    await made.start()
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://north") as client:
            yield client
    finally:
        await made.stop()


async def test_a_cookie_does_not_count_in_another_fleet_with_the_same_certificate() -> None:
    """Its operators may be other people, with other roles."""
    async with serving("/staging/") as staging, serving("/penstock/") as one, serving("/penstock/") as restarted:
        credential = TOKEN.header().removeprefix("Bearer ")
        of_staging, own = await sign_in(staging, credential), await sign_in(one, credential)
        for member, page in ((staging, of_staging), (one, own), (restarted, own)):
            # Once it has read the revocations.
            await until_async(partial(_is_accepted, member, page))
        assert (await status(one, of_staging), await status(restarted, of_staging)) == (401, 401)


async def _is_accepted(http: httpx.AsyncClient, page: dict[str, str]) -> bool:
    return await status(http, page) == 200


async def test_other_control_planes_and_a_restart_know_a_revocation(clock: SetClock) -> None:
    store = MemoryStore()
    async with revocations_on(store, clock) as one, revocations_on(store, clock) as other:
        left, kept = begun(clock), begun(clock)
        await one.revoke(left)
        await until(lambda: other.is_revoked(left))
        assert (one.is_revoked(left), one.is_revoked(kept), other.is_revoked(kept)) == (True, False, False)
        # Both change the revocations of one caller.
        also = begun(clock)
        await other.revoke(also)
        await until(lambda: one.is_revoked(also))
        assert one.is_revoked(left)
        await one.revoke_all(ADMIN, "eve", "lost her group")
        await until(lambda: other.is_revoked(kept))
        clock.now += CLOCK_DIFFERENCE_S + 1
        assert not other.is_revoked(begun(clock))
        assert not other.is_revoked(begun(clock, "adam"))
    clock.now += 1
    again = begun(clock)
    clock.now += 1
    restarted = SessionRevocations(store, AuditLog(store, clock), rng=Random(1), clock=clock)
    assert restarted.is_revoked(again) is None, "sessions from before the start wait for the store"
    assert restarted.is_revoked(begun(clock)) is False
    async with revocations_on(store, clock) as restarted:
        assert (restarted.is_revoked(again), restarted.is_revoked(kept)) == (False, True)
    await store.close()


async def test_a_revocation_counts_without_the_store_and_outlasts_a_deletion(clock: SetClock) -> None:
    shared = MemoryStore()
    store = FaultyStore(shared)
    async with revocations_on(store, clock) as revocations:
        stored, unstored = begun(clock), begun(clock)
        await revocations.revoke(stored)
        (item,) = (await shared.list(keys.REVOKED_SESSIONS)).items
        assert item.lease_id != 0
        await shared.commit([], [Delete(item.key)])
        store.away = True
        with pytest.raises(StoreError):
            await revocations.revoke(unstored)
        assert revocations.is_revoked(stored)
        assert revocations.is_revoked(unstored)
        store.away = False
    await shared.close()


async def test_a_store_that_is_away_does_not_keep_a_person_signed_in(
    control_plane: ControlPlane, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await sign_in(http, "viewer")

    async def away(*_: object) -> None:
        raise StoreError("away")

    monkeypatch.setattr(control_plane._store, "commit", away)
    answer = await http.delete("/v1/session", headers=session)
    assert answer.status_code == 503
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert await status(http, session) == 401


async def test_revocations_of_one_caller_are_bounded_and_forgotten(clock: SetClock) -> None:
    store = MemoryStore()
    async with revocations_on(store, clock) as revocations:
        kept = begun(clock)
        for _ in range(MAX_SESSIONS):
            await revocations.revoke(begun(clock))
        assert not revocations.is_revoked(kept)
        await revocations.revoke(begun(clock))
        assert revocations.is_revoked(kept), "above the limit, every session of the caller ends"
        (item,) = (await store.list(keys.REVOKED_SESSIONS)).items
        assert len(item.value) < 4096
        assert len(store._leases) == 1
        clock.now += LIFETIME_S + 1
        await revocations.revoke(begun(clock, "adam"))
        assert set(revocations._known) == {"adam"}
    await store.close()

"""Publication of the keys of identity providers by the leader."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from adapters.store import keys
from adapters.store.config_store import Delete, Put
from control_plane.auth import bounded_fetch
from control_plane.tenants.issuer_key_publisher import IssuerKeyPublisher
from lab.memory_store import MemoryStore
from penstock.policy.kinds import issuers
from penstock.policy.policy import Policy
from regional_agent.tenants.issuer_registry import IssuerRegistry
from regional_agent.tenants.tenant_index import TenantIndex
from tests.support.issuer import AUDIENCE, Issuer, rsa_key
from tests.support.planet import policy
from tests.support.wait import PATIENCE_S, until

RSA = rsa_key()


class Published:
    """A publisher of two issuers whose keys have one URL, on a clock that each tick advances by 5 s."""

    def __init__(self, store: MemoryStore, epoch: int, provider: Issuer) -> None:
        fast = issuers.Issuer("fast", "https://a.example", provider.jwks_url, (AUDIENCE,), tier="silver", refresh_s=5)
        slow = replace(fast, name="slow", issuer="https://b.example", refresh_s=60)
        in_force = replace(policy(), issuers={"fast": fast, "slow": slow})
        self.store, self.provider = store, provider
        self.fast = fast
        self.rolled_out: Policy | None = None
        self._now = 0.0
        self.publisher = IssuerKeyPublisher(
            store, lambda: (in_force, self.rolled_out), lambda: epoch, Random(1), lambda: self._now
        )

    def advance(self) -> None:
        self._now += 5.0

    async def tick(self) -> None:
        self.advance()
        await self.publisher.tick()
        await self.publisher.fetches.wait()

    async def names(self) -> set[str]:
        listed = await self.store.list(keys.ISSUERS)
        return {item.key.removeprefix(keys.ISSUERS) for item in listed.items}


@pytest.fixture
async def published(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Published]:
    monkeypatch.setattr(bounded_fetch, "FETCH_TIMEOUT_S", PATIENCE_S)
    provider, store = Issuer(one=RSA), MemoryStore()
    await store.commit((), (Put(keys.LEADER, b"x"),))
    leader = await store.get(keys.LEADER)
    assert leader is not None
    async with provider.http:
        made = Published(store, leader.create_revision, provider)
        made.publisher.informer.start()
        await made.publisher.informer.wait_synced()
        yield made
        await made.publisher.informer.stop()
        await made.publisher.close()
        await store.close()


async def test_issuers_with_one_url_and_different_intervals_are_both_published(published: Published) -> None:
    published.provider.answer = (503, b"")
    await published.tick()
    published.provider.answer = None
    for _ in range(13):
        await published.tick()
    assert await published.names() == {"fast", "slow"}


async def test_a_provider_that_does_not_respond_delays_no_other(published: Published) -> None:
    publisher, fast = published.publisher, ("fast", published.fast.jwks_url)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/keys"
        hung = replace(published.fast, name="hung", jwks_url=url)
        published.rolled_out = replace(policy(), issuers={"hung": hung})
        for answer in ((503, b""), None):
            published.provider.answer = answer
            published.advance()
            await publisher.tick()
            await until(lambda: not publisher.fetches.is_running(fast))
        assert "fast" in await published.names()
        assert publisher.fetches.is_running(("hung", url))


async def test_a_rollout_that_changes_the_url_has_the_keys_of_both(published: Published, tmp_path: Path) -> None:
    elsewhere = replace(published.fast, jwks_url=f"{published.provider.url}/other-keys")
    published.rolled_out = replace(policy(), issuers={"fast": elsewhere})
    await published.tick()
    registry = IssuerRegistry(published.store, tmp_path, TenantIndex(), Random(1))
    registry.start()
    await until(lambda: bool(registry.find(published.fast, "one")))
    await until(lambda: bool(registry.find(elsewhere, "one")))
    await until(lambda: (stored := registry._file.load()) is not None and len(stored.sets) == 3)
    await registry.stop()
    again = IssuerRegistry(MemoryStore(), tmp_path, TenantIndex(), Random(1))
    again.start()
    assert again.find(published.fast, "one")
    assert again.find(elsewhere, "one")
    assert not again.find(replace(elsewhere, jwks_url="https://third.example"), "one")
    await again.stop()


async def test_a_former_leader_does_not_report_keys_as_published(published: Published) -> None:
    await published.store.commit((), (Delete(keys.LEADER),))
    with capture_logs() as logs:
        await published.tick()
    assert await published.names() == set()
    assert logs == []

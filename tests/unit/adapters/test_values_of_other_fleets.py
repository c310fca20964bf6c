"""Stored values of one fleet have no effect in another fleet of the same authority, and an upgrade binds old values."""

from __future__ import annotations

import time

import pytest
import structlog

from adapters.store import keys
from adapters.store.config_store import Put
from adapters.store.signed_store import EARLIER_MARK, MARK, UNAUTHENTIC, SignedStore
from lab.memory_store import MemoryStore
from penstock.wire.fleet_binding import GRACE_S, FleetBinding
from penstock.wire.session import Sessions
from tests.support.identities import (
    agent_id,
    agent_sessions,
    control_plane_id,
    control_plane_sessions,
    sessions_of_fleet,
)

PRODUCTION = "/production/"
OTHERS = {
    "another prefix": (control_plane_sessions(), "/staging/"),
    "another name and the same prefix": (sessions_of_fleet(control_plane_id(), name="staging"), PRODUCTION),
    "another name and another prefix": (sessions_of_fleet(control_plane_id(), name="staging"), "/staging/"),
    "the default prefix": (control_plane_sessions(), keys.DEFAULT_PREFIX),
    "the earlier form": (sessions_of_fleet(control_plane_id(), FleetBinding(bound_from=2e10)), PRODUCTION),
}
COPIED = (keys.LEADER, keys.FLEET, keys.plan("eu"), keys.policy("p"), keys.OVERRIDES, keys.audit_entry(1))


async def copy_from(sessions: Sessions, prefix: str, to: MemoryStore, key: str) -> None:
    """Copy a value that `sessions` signed under `prefix` to the prefix of production."""
    staging = MemoryStore()
    await SignedStore(staging, sessions, prefix=prefix).commit([], [Put(key, b"lax")])
    item = await staging.get(prefix + key.removeprefix(keys.DEFAULT_PREFIX))
    assert item is not None
    await to.commit([], [Put(PRODUCTION + key.removeprefix(keys.DEFAULT_PREFIX), item.value)])


async def value(store: SignedStore, key: str) -> bytes:
    item = await store.get(key)
    assert item is not None
    return item.value


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("key", COPIED)
async def test_a_copied_value_is_empty(other: str, key: str) -> None:
    etcd = MemoryStore()
    await copy_from(*OTHERS[other], etcd, key)
    for reader in (agent_sessions(), control_plane_sessions()):
        with structlog.testing.capture_logs() as logs:
            assert await value(SignedStore(etcd, reader, prefix=PRODUCTION), key) == UNAUTHENTIC
        (line,) = logs
        assert line["key"] == key
        assert any(word in line["reason"] for word in ("fleet with prefix", "another fleet", "earlier release")), line


@pytest.mark.parametrize("other", OTHERS)
async def test_a_copied_registration_is_empty(other: str) -> None:
    sessions, prefix = OTHERS[other]
    sender = sessions_of_fleet(agent_id("eu"), sessions.identity.binding, sessions.identity.id.trust_domain)
    etcd = MemoryStore()
    await copy_from(sender, prefix, etcd, keys.agent("eu", "agent-1"))
    assert await value(SignedStore(etcd, agent_sessions("us"), prefix=PRODUCTION), keys.agent("eu", "agent-1")) == b""


async def test_a_changed_prefix_in_the_value_does_not_bring_it_over() -> None:
    etcd = MemoryStore()
    await copy_from(control_plane_sessions(), "/staging/", etcd, keys.LEADER)
    (item,) = (await etcd.list(PRODUCTION)).items
    await etcd.commit([], [Put(item.key, item.value.replace(b"/staging/", PRODUCTION.encode(), 1))])
    assert await value(SignedStore(etcd, agent_sessions(), prefix=PRODUCTION), keys.LEADER) == UNAUTHENTIC


class Upgrade:
    """A fleet whose values an earlier release signed, and which is bound from a stated time."""

    def __init__(self) -> None:
        self.now = time.time()
        self.bound_from = self.now + 3600.0
        self.binding = FleetBinding(PRODUCTION, self.bound_from)
        self.etcd = MemoryStore()
        self.store = self.store_of(sessions_of_fleet(control_plane_id(), self.binding))
        self.upgraded = self.store_of(control_plane_sessions())
        """Reads and writes as after the upgrade."""
        self.at(self.now)

    def store_of(self, sessions: Sessions) -> SignedStore:
        return SignedStore(self.etcd, sessions, prefix=PRODUCTION, clock=lambda: self.now)

    def at(self, now: float) -> None:
        self.now = now
        self.binding.advance(now)

    async def mark(self, key: str) -> bytes:
        item = await self.etcd.get(PRODUCTION + key.removeprefix(keys.DEFAULT_PREFIX))
        assert item is not None
        return item.value.split(b" ")[0]


async def test_an_upgrade_binds_every_value_at_the_stated_time() -> None:
    fleet = Upgrade()
    await fleet.store.commit([], [Put(key, key.encode()) for key in COPIED])
    lease = await fleet.etcd.grant_lease(60)
    agent = fleet.store_of(sessions_of_fleet(agent_id("eu"), fleet.binding))
    await agent.commit([], [Put(keys.agent("eu", "agent-1"), b"lives", lease)])
    assert {await fleet.mark(key) for key in COPIED} == {EARLIER_MARK}, "processes of the earlier release read it"
    assert await value(fleet.upgraded, keys.LEADER) == UNAUTHENTIC

    fleet.at(fleet.bound_from + 1.0)
    assert await value(fleet.store, keys.LEADER) == keys.LEADER.encode(), "until the leader has signed it again"
    assert await fleet.store.sign_again() == len(COPIED)
    assert await fleet.store.sign_again() == 0
    assert {await fleet.mark(key) for key in COPIED} == {MARK}
    for key in COPIED:
        assert await value(fleet.upgraded, key) == key.encode()
    assert await fleet.mark(keys.agent("eu", "agent-1")) == EARLIER_MARK, "only the agent may sign it"
    assert await agent.sign_again(keys.agent("eu", "agent-2")) == 0
    assert await agent.sign_again(keys.agent("eu", "agent-1")) == 1
    item = await fleet.upgraded.get(keys.agent("eu", "agent-1"))
    assert item is not None
    assert (item.value, item.lease_id) == (b"lives", lease)


async def test_the_earlier_form_is_refused_an_hour_after_the_upgrade() -> None:
    fleet = Upgrade()
    await fleet.store.commit([], [Put(keys.LEADER, b"payload")])
    fleet.at(fleet.bound_from + GRACE_S - 1.0)
    assert await value(fleet.store, keys.LEADER) == b"payload"
    fleet.at(fleet.bound_from + GRACE_S + 1.0)
    with structlog.testing.capture_logs() as logs:
        assert await value(fleet.store, keys.LEADER) == UNAUTHENTIC
    assert "an earlier release signed it" in logs[0]["reason"]
    assert "docs/upgrading.md" in logs[0]["reason"]
    assert await fleet.store.sign_again() == 0, "and is not signed again"


async def test_a_value_that_is_not_authentic_is_not_signed_again() -> None:
    fleet = Upgrade()
    await fleet.store_of(sessions_of_fleet(agent_id("eu"), fleet.binding)).commit([], [Put(keys.OVERRIDES, b"forged")])
    fleet.at(fleet.bound_from + 1.0)
    assert await fleet.store.sign_again() == 0
    assert await value(fleet.upgraded, keys.OVERRIDES) == UNAUTHENTIC


async def test_a_fleet_is_renamed_with_the_same_steps() -> None:
    fleet = Upgrade()
    await fleet.upgraded.commit([], [Put(keys.LEADER, b"payload")])
    renamed = fleet.store_of(sessions_of_fleet(control_plane_id(), fleet.binding, name="staging"))
    after = fleet.store_of(sessions_of_fleet(control_plane_id(), FleetBinding(PRODUCTION), name="staging"))
    assert await value(renamed, keys.LEADER) == b"payload"
    assert await value(after, keys.LEADER) == UNAUTHENTIC
    fleet.at(fleet.bound_from + 1.0)
    assert await renamed.sign_again() == 1
    assert await value(after, keys.LEADER) == b"payload"
    assert await value(fleet.upgraded, keys.LEADER) == UNAUTHENTIC, "the fleet with the earlier name"

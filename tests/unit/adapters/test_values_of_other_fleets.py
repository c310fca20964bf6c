"""Stored values of one fleet have no effect in another fleet of the same authority."""

from __future__ import annotations

import pytest
import structlog

from adapters.store import keys
from adapters.store.config_store import Put
from adapters.store.signed_store import UNAUTHENTIC, SignedStore
from lab.memory_store import MemoryStore
from penstock.wire.peer_keys import Keyring
from tests.support.identities import (
    agent_id,
    agent_keyring,
    control_plane_id,
    control_plane_keyring,
    keyring_of_fleet,
)

PRODUCTION = "/production/"
OTHERS = {
    "another prefix": (control_plane_keyring(), "/staging/"),
    "another name and the same prefix": (keyring_of_fleet(control_plane_id(), name="staging"), PRODUCTION),
    "another name and another prefix": (keyring_of_fleet(control_plane_id(), name="staging"), "/staging/"),
    "the default prefix": (control_plane_keyring(), keys.DEFAULT_PREFIX),
}
COPIED = (keys.LEADER, keys.FLEET, keys.plan("eu"), keys.policy("p"), keys.OVERRIDES, keys.audit_entry(1))


async def copy_from(keyring: Keyring, prefix: str, to: MemoryStore, key: str) -> None:
    """Copy a value that `keyring` signed under `prefix` to the prefix of production."""
    staging = MemoryStore()
    await SignedStore(staging, keyring, prefix=prefix).commit([], [Put(key, b"lax")])
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
    for reader in (agent_keyring(), control_plane_keyring()):
        with structlog.testing.capture_logs() as logs:
            assert await value(SignedStore(etcd, reader, prefix=PRODUCTION), key) == UNAUTHENTIC
        (line,) = logs
        assert line["key"] == key
        assert any(word in line["reason"] for word in ("fleet with prefix", "another fleet")), line


@pytest.mark.parametrize("other", OTHERS)
async def test_a_copied_registration_is_empty(other: str) -> None:
    keyring, prefix = OTHERS[other]
    sender = keyring_of_fleet(agent_id("eu"), keyring.identity.prefix, keyring.identity.id.trust_domain)
    etcd = MemoryStore()
    await copy_from(sender, prefix, etcd, keys.agent("eu", "agent-1"))
    assert await value(SignedStore(etcd, agent_keyring("us"), prefix=PRODUCTION), keys.agent("eu", "agent-1")) == b""


async def test_a_changed_prefix_in_the_value_does_not_bring_it_over() -> None:
    etcd = MemoryStore()
    await copy_from(control_plane_keyring(), "/staging/", etcd, keys.LEADER)
    (item,) = (await etcd.list(PRODUCTION)).items
    await etcd.commit([], [Put(item.key, item.value.replace(b"/staging/", PRODUCTION.encode(), 1))])
    assert await value(SignedStore(etcd, agent_keyring(), prefix=PRODUCTION), keys.LEADER) == UNAUTHENTIC

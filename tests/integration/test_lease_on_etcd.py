"""A registration on a real etcd: crashes of etcd, a wiped store, and expiry."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.store.lease import Registration
from lab.server_starting import start_etcd
from tests.support.running import running
from tests.support.stores import Following, put_when_possible
from tests.support.wait import until

KEY = "/agents/a"


@pytest.fixture
async def store(own_etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    """A client of the test's own etcd."""
    store = EtcdStore([own_etcd.endpoint])
    yield store
    await store.close()


def registration(store: EtcdStore) -> Registration:
    return Registration(store, KEY, b"me", ttl_s=1, rng=Random(1))


async def test_the_key_survives_a_crash_of_etcd_and_is_removed_on_stop(own_etcd: EtcdServer, store: EtcdStore) -> None:
    async with Following(store, KEY) as following:
        async with running(registration(store)):
            await following.until(lambda: KEY in following.values)
            own_etcd.kill()
            await asyncio.to_thread(own_etcd.restart)
            await put_when_possible(store, KEY + "/marker", b"")
            await following.until(lambda: KEY + "/marker" in following.values)
            await following.until(lambda: following.values.get(KEY) == b"me")
            # The lease is kept alive beyond its time to live.
            await asyncio.sleep(2.0)
            await following.until(lambda: KEY in following.values)
        await following.until(lambda: KEY not in following.values)


async def test_the_key_is_restored_in_a_wiped_store(tmp_path: Path, own_etcd: EtcdServer, store: EtcdStore) -> None:
    async with running(registration(store)) as mine:
        await until(lambda: mine.registered)
        own_etcd.kill()
        shutil.rmtree(tmp_path / "etcd" / "data")
        with await asyncio.to_thread(start_etcd, tmp_path / "etcd", client_port=own_etcd.client_port):
            async with Following(store, KEY) as following:
                await following.until(lambda: following.values.get(KEY) == b"me")


async def test_key_expires_without_renewal(own_etcd: EtcdServer, store: EtcdStore) -> None:
    of_the_dead = EtcdStore([own_etcd.endpoint])
    mine = registration(of_the_dead)
    mine.start()
    await until(lambda: mine.registered)
    async with Following(store, KEY) as following:
        await of_the_dead.close()
        await following.until(lambda: KEY not in following.values)
    await mine.stop()


async def test_stops_while_etcd_is_hung(own_etcd: EtcdServer, store: EtcdStore) -> None:
    mine = registration(store)
    mine.start()
    await until(lambda: mine.registered)
    own_etcd.pause()
    await mine.stop()
    assert not mine.registered

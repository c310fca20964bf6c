"""Fixtures that several tests over real servers use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.store.config_store import ConfigStore
from adapters.store.signed_store import SignedStore
from lab.memory_store import MemoryStore
from tests.support.control_planes import Operator
from tests.support.engines import Connect, EngineProcess
from tests.support.identities import control_plane_keyring
from tests.support.wait import PATIENCE_S


@pytest.fixture
async def store(own_etcd: EtcdServer) -> AsyncIterator[SignedStore]:
    """The fleet's values in the test's own etcd, as a control plane reads and writes them."""
    store = SignedStore(EtcdStore([own_etcd.endpoint], call_timeout_s=20), control_plane_keyring())
    yield store
    await store.close()


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    """A client of control planes."""
    async with Operator() as operator:
        yield operator


@pytest.fixture(params=["memory", "etcd"])
async def either_store(request: pytest.FixtureRequest) -> AsyncIterator[ConfigStore]:
    """Run the test on each kind of store: etcd and the store in memory."""
    if request.param == "memory":
        memory = MemoryStore()
        yield memory
        await memory.close()
    else:
        server: EtcdServer = request.getfixturevalue("own_etcd")
        etcd = EtcdStore([server.endpoint], call_timeout_s=20)
        yield etcd
        await etcd.close()


@pytest.fixture
async def connect(engines: EngineProcess) -> AsyncIterator[Connect]:
    """Return a function that connects to a fake engine of the module, by the engine's name."""
    clients: list[httpx.AsyncClient] = []

    def to(name: str) -> httpx.AsyncClient:
        clients.append(httpx.AsyncClient(base_url=engines.urls[name], timeout=PATIENCE_S))
        return clients[-1]

    yield to
    for client in clients:
        await client.aclose()

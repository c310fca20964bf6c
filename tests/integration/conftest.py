"""Fixtures that several tests over real servers use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from control_plane.client.etcd import EtcdStore
from lab.servers.etcd import EtcdServer
from tests.control_planes import Operator


@pytest.fixture
async def store(own_etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    """A client of the test's own etcd."""
    store = EtcdStore([own_etcd.endpoint])
    yield store
    await store.close()


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    """Somebody who asks control planes."""
    async with Operator() as operator:
        yield operator

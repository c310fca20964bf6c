"""A real etcd that exceeds its space quota: leadership is kept, and plans are published once space is free."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random

import pytest

from adapters.etcd.etcd_store import EtcdStore
from adapters.store.config_store import Put, StoreUnavailable
from adapters.store.signed_store import SignedStore
from lab.server_starting import start_etcd
from regional_agent.config.active_config import ActiveConfig
from tests.support.control_planes import OPERATOR, Agents, Operator, control_planes
from tests.support.identities import control_plane_keyring
from tests.support.reports import offered
from tests.support.stores import free_etcd_space
from tests.support.wait import until, until_async

QUOTA_BYTES = 16 * 1024 * 1024
JUNK_BYTES = 700_000
EU = ("eu-de", "eu-es")


async def fill(store: EtcdStore) -> None:
    """Write until etcd rejects it."""
    for _ in range(2 * QUOTA_BYTES // JUNK_BYTES):
        await store.commit((), (Put("/junk", os.urandom(JUNK_BYTES)),))


async def test_an_etcd_over_its_quota_stops_changes_only(tmp_path: Path) -> None:
    etcd = await asyncio.to_thread(start_etcd, tmp_path / "etcd", quota_bytes=QUOTA_BYTES)
    client = EtcdStore([etcd.endpoint], call_timeout_s=20)
    agent = ActiveConfig(
        "eu-de", SignedStore(client, control_plane_keyring()), tmp_path / "agent", Random(1), lambda policy: None
    )
    agent.start()
    try:
        with control_planes("ab", tmp_path, etcd.endpoint) as servers:
            async with Operator() as operator, Agents([server.url for server in servers]) as agents:
                agents.demand = {"eu-de": (offered(10.0, *EU),)}
                leader, epoch = await operator.leader_among(servers)
                await until(lambda: agent.plan is not None and bool(agent.plan.classes))
                with pytest.raises(StoreUnavailable, match="space exceeded"):
                    await fill(client)
                agents.demand = {"eu-de": (offered(10.0, *EU), offered(10.0, "eu-de"))}

                async def is_refused() -> bool:
                    page = (await operator.http.get(f"{leader.url}/metrics", headers=OPERATOR)).text
                    return 'outcome="store_unavailable"' in page

                await until_async(is_refused)
                status = await operator.status(leader)
                assert (status.leading, status.epoch) == (True, epoch)
                held = agent.plan
                assert held is not None
                assert not agent.refused
                await free_etcd_space(etcd, (await client.list("/")).revision)
                await until(lambda: agent.plan is not None and agent.plan.generation > held.generation)
    finally:
        await agent.stop()
        await client.close()
        etcd.kill()

"""An etcd that lost its data: its revisions restart, and agents with larger epochs accept the new plans."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.config_store import Put
from adapters.store.signed_store import SignedStore
from regional_agent.config.active_config import ActiveConfig
from tests.support.control_planes import Agents, Operator, control_planes
from tests.support.identities import control_plane_keyring
from tests.support.reports import offered
from tests.support.wait import until

EU = ("eu-de", "eu-es")


async def test_agents_follow_the_plans_of_a_store_that_was_wiped(own_etcd: EtcdServer, tmp_path: Path) -> None:
    store = SignedStore(EtcdStore((own_etcd.endpoint,), call_timeout_s=20), control_plane_keyring())
    agent = ActiveConfig("eu-de", store, tmp_path / "agent", Random(1), lambda policy: None)
    try:
        # A store with a history, so that its epochs are larger than those of one that begins.
        for number in range(300):
            await store.commit([], [Put(keys.ROOT + "history", str(number).encode())])
        agent.start()
        with control_planes("a", tmp_path, own_etcd.endpoint) as servers:
            async with Operator() as operator, Agents([server.url for server in servers]) as agents:
                agents.demand = {"eu-de": (offered(10.0, *EU),)}
                agents.applied = lambda region: (agent.plan.epoch, agent.plan.generation) if agent.plan else (0, 0)
                _, epoch = await operator.leader_among(servers)
                await until(lambda: agent.plan is not None and agent.plan.epoch == epoch > 300)

                own_etcd.kill()
                shutil.rmtree(tmp_path / "etcd" / "data")
                (tmp_path / "etcd" / "data").mkdir(mode=0o700)
                await asyncio.to_thread(own_etcd.restart)

                leader, anew = await operator.leader_among(servers, besides=epoch)
                assert anew < 300
                await until(lambda: agent.plan is not None and agent.plan.epoch > epoch)
                assert not agent.refused
                assert agent.plan is not None
                assert (await operator.status(leader)).epoch == anew
    finally:
        await agent.stop()
        await store.close()

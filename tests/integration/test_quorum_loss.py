"""An etcd cluster loses its quorum: there is no leader, agents keep their plans, and a leader plans once it is back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from adapters.etcd.etcd_store import EtcdStore
from adapters.store.signed_store import SignedStore
from regional_agent.config.active_config import ActiveConfig
from tests.support.control_planes import Agents, Operator, control_planes
from tests.support.etcd_cluster import start_etcd_cluster
from tests.support.identities import control_plane_keyring
from tests.support.reports import offered
from tests.support.wait import until

EU = ("eu-de", "eu-es")


async def test_without_a_quorum_agents_keep_their_plans_and_there_is_no_leader(tmp_path: Path) -> None:
    cluster = await asyncio.to_thread(start_etcd_cluster, tmp_path / "etcd")
    endpoints = [server.endpoint for server in cluster]
    store = SignedStore(EtcdStore(endpoints), control_plane_keyring())
    agent = ActiveConfig("eu-de", store, tmp_path / "agent", Random(1), lambda policy: None)
    agent.start()
    try:
        with control_planes("ab", tmp_path, ",".join(endpoints)) as servers:
            async with Operator() as operator, Agents([server.url for server in servers]) as agents:
                agents.demand = {"eu-de": (offered(10.0, *EU),)}
                await operator.leader_among(servers)
                await until(lambda: agent.plan is not None and bool(agent.plan.classes))
                for member in cluster[1:]:
                    member.pause()
                for server in servers:
                    await operator.until(server, lambda status: not status.leading and not status.store.up)
                held = agent.plan
                assert held is not None
                assert agent.policy is not None
                assert not agent.refused
                for member in cluster[1:]:
                    member.resume()
                leader, epoch = await operator.leader_among(servers)
                assert epoch >= held.epoch
                await until(lambda: agent.plan is not None and agent.plan.generation > held.generation)
                await operator.until(leader, lambda status: status.store.up)
    finally:
        await agent.stop()
        await store.close()
        for member in cluster:
            member.kill()

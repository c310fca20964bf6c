"""Two fleets that use one etcd under one prefix by mistake: the first fleet keeps its leader and its policy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Put
from adapters.store.signed_store import SignedStore
from penstock.planning.plan import RegionPlan
from regional_agent.config.active_config import ActiveConfig
from tests.support.control_planes import Operator, control_planes
from tests.support.identities import agent_keyring, control_plane_keyring
from tests.support.planet import policy
from tests.support.wait import until, until_async


async def test_a_control_plane_of_another_fleet_does_not_lead(
    own_etcd: EtcdServer, operator: Operator, tmp_path: Path
) -> None:
    with control_planes("x", tmp_path / "other", own_etcd.endpoint, fleet=1) as (other,):
        await operator.leader_among([other])
    with control_planes("a", tmp_path / "own", own_etcd.endpoint, elected=False) as (own,):
        await until_async(lambda: _has_logged(own.log_path, b"the store belongs to another fleet"))
        assert not (await operator.status(own)).leading
        with control_planes("y", tmp_path / "others", own_etcd.endpoint, fleet=1) as (second,):
            await operator.leader_among([second])
            assert not (await operator.status(own)).leading
            assert (await operator.status(own)).leader is None, "it does not follow the leader of another fleet"


async def _has_logged(log: Path, text: bytes) -> bool:
    return text in await asyncio.to_thread(log.read_bytes)


@pytest.mark.parametrize(("name", "fleet"), [("cp-1", 1), ("cp-2", 0)], ids=["other fleet", "own fleet"])
async def test_the_plans_of_another_fleet_are_ignored(
    store: SignedStore, own_etcd: EtcdServer, tmp_path: Path, name: str, fleet: int
) -> None:
    reader = SignedStore(EtcdStore([own_etcd.endpoint]), agent_keyring("eu-de"))
    config = ActiveConfig("eu-de", reader, tmp_path, Random(1), lambda policy: None)
    config.start()
    try:
        await _publish(store, 1)
        await until(lambda: config.plan is not None)
        writer = SignedStore(EtcdStore([own_etcd.endpoint]), control_plane_keyring(name, fleet))
        await _publish(writer, 2)
        await writer.close()
        await until(lambda: reader.rejected > 0 or _generation(config) == 2)
        await asyncio.sleep(0.1)
        assert _generation(config) == (1 if fleet else 2)
    finally:
        await config.stop()
        await reader.close()


def _generation(config: ActiveConfig) -> int:
    return config.plan.generation if config.plan is not None else 0


async def _publish(store: SignedStore, generation: int) -> None:
    in_force = replace(policy(), anonymous_tenant="open")
    plan = RegionPlan("eu-de", generation, 1, in_force.digest(), 0.0, ())
    await store.commit((), (Put(keys.policy(in_force.digest()), encode(in_force)),))
    await store.commit((), (Put(keys.plan("eu-de"), encode(plan)),))

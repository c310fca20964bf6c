"""Two fleets that use one etcd under one prefix by mistake: the first fleet keeps its leader and its policy.

A fleet whose values an earlier release signed, without the fleet, is another fleet too, until it is upgraded.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
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
from penstock.overrides.overrides import OverrideSet
from penstock.planning.plan import RegionPlan
from penstock.wire.fleet_binding import FleetBinding
from regional_agent.config.active_config import ActiveConfig
from tests.support.control_planes import Operator, control_planes
from tests.support.identities import agent_sessions, control_plane_id, control_plane_sessions, sessions_of_fleet
from tests.support.paths import PLANET
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
    reader = SignedStore(EtcdStore([own_etcd.endpoint]), agent_sessions("eu-de"))
    config = ActiveConfig("eu-de", reader, tmp_path, Random(1), lambda policy: None)
    config.start()
    try:
        await _publish(store, 1)
        await until(lambda: config.plan is not None)
        writer = SignedStore(EtcdStore([own_etcd.endpoint]), control_plane_sessions(name, fleet))
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


async def test_the_leader_signs_the_values_of_an_earlier_release_again(
    own_etcd: EtcdServer, operator: Operator, tmp_path: Path
) -> None:
    now = time.time()
    raw = EtcdStore([own_etcd.endpoint])
    earlier = SignedStore(raw, sessions_of_fleet(control_plane_id("old"), FleetBinding(bound_from=now + 3600.0)))
    reader = SignedStore(raw, agent_sessions("eu-de"))
    digest = policy().digest()
    await earlier.commit((), (Put(keys.FLEET, b"old"), Put(keys.policy(digest), encode(policy()))))
    await earlier.commit((), (Put(keys.OVERRIDES, encode(OverrideSet(()))),))
    try:
        with control_planes("a", tmp_path / "without", own_etcd.endpoint, elected=False) as (own,):
            await until_async(lambda: _has_logged(own.log_path, b"an earlier release signed it"))
            assert not (await operator.status(own)).leading
        settings = {"POLICY_DIR": str(PLANET), "BOUND_FROM": datetime.fromtimestamp(now - 1.0, UTC).isoformat()}
        with control_planes("b", tmp_path / "with", own_etcd.endpoint, policy_settings=settings) as (own,):
            await operator.leader_among([own])
            await until_async(lambda: _is_readable(reader, keys.policy(digest)))
            await until_async(lambda: _is_readable(reader, keys.OVERRIDES))
            assert b"signatures of every fleet of the authority are accepted" in own.log_path.read_bytes()
        with control_planes("c", tmp_path / "after", own_etcd.endpoint) as (own,):
            await operator.leader_among([own])
    finally:
        await raw.close()


async def _is_readable(reader: SignedStore, key: str) -> bool:
    item = await reader.get(key)
    return item is not None and item.value != b""

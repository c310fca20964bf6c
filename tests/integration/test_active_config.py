import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore, Delete, KeyValue, Listing, Put, StoreUnavailable
from lab.memory_store import MemoryStore
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.revoked_keys import RevokedKey, RevokedKeySet
from regional_agent.config.active_config import ActiveConfig, InForce
from regional_agent.config.last_known_good import StateFile
from tests.support.policy_releases import before_logics_had_names, with_a_logic_to_come
from tests.support.wait import until

POLICY = Policy(
    regions={name: Region(name, "DE", 50.0, 8.0) for name in ("here", "there")},
    models={"m": Model("m")},
    tenants={},
    residency=(),
)
NEWER_POLICY = msgspec.structs.replace(POLICY, models={"m": Model("m"), "n": Model("n")})
FOREIGN_POLICY = msgspec.structs.replace(POLICY, regions={"there": POLICY.regions["there"]})


def plan(
    epoch: int, generation: int, policy: Policy = POLICY, region: str = "here", server: str = "here"
) -> RegionPlan:
    classes = (ClassPlan("m", "here+there", (Arc(server, 1.0, ArcReason.HOME),), ()),)
    return RegionPlan(region, generation, epoch, policy.digest(), 0.0, classes)


async def publish(store: ConfigStore, what: RegionPlan, *policies: Policy) -> None:
    for policy in policies:
        await store.commit((), (Put(keys.policy(policy.digest()), encode(policy)),))
    await store.commit((), (Put(keys.plan("here"), encode(what)),))


class Agent:
    def __init__(self, store: ConfigStore, state_dir: Path) -> None:
        self.policies: list[Policy] = []
        self.active_config = ActiveConfig("here", store, state_dir, Random(1), self.policies.append)

    async def has_applied(self, wanted: RegionPlan) -> None:
        await until(lambda: self.active_config.plan == wanted)


Start = Callable[..., Agent]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    agents: list[Agent] = []

    def start(store: ConfigStore) -> Agent:
        agent = Agent(store, tmp_path)
        agent.active_config.start()
        agents.append(agent)
        return agent

    yield start
    for agent in agents:
        await agent.active_config.stop()


async def test_nothing_is_in_force_before_the_first_publication(start: Start) -> None:
    agent = start(MemoryStore())
    assert (agent.active_config.policy, agent.active_config.plan, agent.active_config.policy_digest) == (None, None, "")
    assert agent.active_config.no_policy_reason().startswith("no policy accepted yet: the store has not been read")
    await until(lambda: agent.active_config.age_s() < math.inf)
    assert agent.active_config.refused == ""
    assert "the store has no plan for region here; check that the policy" in agent.active_config.no_policy_reason()


async def test_an_agent_without_policy_reports_what_it_rejected(start: Start) -> None:
    store = MemoryStore()
    agent = start(store)
    await publish(store, plan(1, 1))
    await until(lambda: agent.active_config.refused != "")
    assert (
        agent.active_config.no_policy_reason()
        == f"no policy accepted yet: policy {POLICY.digest()[:12]} is not in the store"
    )


async def test_policy_and_plan_come_into_force_together(start: Start) -> None:
    store = MemoryStore()
    agent = start(store)
    await publish(store, plan(1, 1), POLICY)
    await agent.has_applied(plan(1, 1))
    assert (agent.active_config.policy, agent.active_config.policy_digest) == (POLICY, POLICY.digest())
    await publish(store, plan(1, 2))
    await agent.has_applied(plan(1, 2))
    await publish(store, plan(2, 1, NEWER_POLICY), NEWER_POLICY)
    await agent.has_applied(plan(2, 1, NEWER_POLICY))
    assert agent.policies == [POLICY, NEWER_POLICY]


async def test_a_disk_that_stalls_does_not_delay_later_plans(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, stalled, resumed = StateFile.write, threading.Event(), threading.Event()

    def stalling(file: StateFile[InForce], value: InForce) -> None:
        stalled.set()
        resumed.wait()
        write(file, value)

    monkeypatch.setattr(StateFile, "write", stalling)
    store = MemoryStore()
    agent = start(store)
    try:
        await publish(store, plan(1, 1), POLICY)
        await until(stalled.is_set)
        await publish(store, plan(1, 2))
        await agent.has_applied(plan(1, 2))
    finally:
        resumed.set()
    file = StateFile(tmp_path / "in-force", InForce)
    await until(lambda: file.load() == InForce(POLICY, plan(1, 2)))


async def test_a_policy_of_an_earlier_release_is_applied_under_its_digest(start: Start) -> None:
    store = MemoryStore()
    agent = start(store)
    raw, digest = before_logics_had_names(POLICY)
    await store.commit((), (Put(keys.policy(digest), raw),))
    under_it = msgspec.structs.replace(plan(1, 1), policy_digest=digest)
    await publish(store, under_it)
    await agent.has_applied(under_it)
    assert (agent.active_config.policy, agent.active_config.policy_digest) == (POLICY, digest)


async def test_an_invalid_configuration_is_rejected_with_the_reason(start: Start) -> None:
    store = MemoryStore()
    agent = start(store)
    await publish(store, plan(5, 5), POLICY)
    await agent.has_applied(plan(5, 5))
    blob = encode(plan(6, 1))
    impostor = msgspec.structs.replace(plan(6, 1), policy_digest="f" * 64)
    await store.commit((), (Put(keys.policy("f" * 64), encode(NEWER_POLICY)),))
    await store.commit((), (Put(keys.policy("e" * 64), b"{}"),))
    to_come, named = with_a_logic_to_come(NEWER_POLICY)
    await store.commit((), (Put(keys.policy(named), to_come),))
    cases: list[tuple[bytes, str]] = [
        (encode(plan(4, 99)), "does not supersede plan 5/5"),
        (encode(plan(5, 4)), "does not supersede plan 5/5"),
        (encode(msgspec.structs.replace(plan(5, 5), made_at=9.0)), "does not supersede plan 5/5"),
        (encode(plan(6, 1, region="there")), "is for region there"),
        (encode(plan(6, 1, server="mars")), "no region mars"),
        (encode(plan(6, 1, FOREIGN_POLICY)), "is not in the store"),
        (encode(impostor), "has the content of"),
        (encode(msgspec.structs.replace(impostor, policy_digest="e" * 64)), "not a stored Policy"),
        (
            encode(msgspec.structs.replace(impostor, policy_digest=named)),
            "bad Policy: Invalid enum value 'crystal_ball' - at `$.objective.planner`; if a newer release wrote it,",
        ),
        (b"\xff garbage", "not a stored RegionPlan"),
        (blob.replace(b'"version":1', b'"version":2'), "upgrade it"),
        (encode(POLICY), "expected a RegionPlan"),
    ]
    for value, reason in cases:
        await store.commit((), (Put(keys.plan("here"), value),))
        await until(lambda reason=reason: reason in agent.active_config.refused)
        assert agent.active_config.plan == plan(5, 5)
        assert agent.active_config.policy is agent.policies[0]
    await store.commit((), (Put(keys.policy(FOREIGN_POLICY.digest()), encode(FOREIGN_POLICY)),))
    await publish(store, plan(6, 2, FOREIGN_POLICY))
    await until(lambda: "has no region here" in agent.active_config.refused)
    assert agent.active_config.refused_digest == FOREIGN_POLICY.digest()
    await publish(store, plan(6, 3))
    await agent.has_applied(plan(6, 3))
    assert (agent.active_config.refused, agent.active_config.refused_digest) == ("", "")
    assert len(agent.policies) == 1


async def test_region_draws_follow_the_plan_in_force(start: Start) -> None:
    store = MemoryStore()
    agent = start(store)

    def served() -> dict[tuple[str, str], list[str]]:
        samplers = agent.active_config.samplers
        served = {key: [choice.region for choice in sampler.choices] for key, sampler in samplers.items()}
        assert served.pop(("m", "here"), ["here"]) == ["here"], "home alone needs no plan"
        return served

    assert agent.active_config.samplers == {}
    await publish(store, plan(1, 1), POLICY)
    await agent.has_applied(plan(1, 1))
    assert served() == {("m", "here+there"): ["here"]}
    await publish(store, plan(1, 2, server="there"))
    await agent.has_applied(plan(1, 2, server="there"))
    assert served() == {("m", "here+there"): ["there"]}
    await publish(store, plan(1, 1))
    await until(lambda: "does not supersede" in agent.active_config.refused)
    assert served() == {("m", "here+there"): ["there"]}


async def test_a_plan_that_is_deleted_stays_in_force(start: Start) -> None:
    store = MemoryStore()
    agent = start(store)
    await publish(store, plan(1, 1), POLICY)
    await agent.has_applied(plan(1, 1))
    await store.commit((), (Delete(keys.plan("here")),))
    await publish(store, plan(1, 2))
    await agent.has_applied(plan(1, 2))
    await store.commit((), (Delete(keys.plan("here")),))
    await asyncio.sleep(0.1)
    assert agent.active_config.plan == plan(1, 2)


async def test_another_region_with_a_longer_name_is_not_this_one(start: Start) -> None:
    store = MemoryStore()
    agent = start(store)
    await store.commit((), (Put(keys.plan("here-2"), encode(plan(9, 9, region="here-2"))),))
    await publish(store, plan(1, 1), POLICY)
    await agent.has_applied(plan(1, 1))
    assert agent.active_config.refused == ""


class Flaky(MemoryStore):
    """A store that is unavailable for single keys only."""

    away = True

    async def get(self, key: str) -> KeyValue | None:
        if self.away:
            raise StoreUnavailable("no quorum")
        return await super().get(key)


async def test_an_unreadable_policy_is_read_again(start: Start) -> None:
    store = Flaky()
    agent = start(store)
    await publish(store, plan(1, 1), POLICY)
    await until(lambda: "no quorum" in agent.active_config.refused)
    assert agent.active_config.refused_digest == "", "it may be read yet"
    assert agent.active_config.plan is None
    store.away = False
    await agent.has_applied(plan(1, 1))
    assert agent.active_config.refused == ""


async def test_etcd_killed_then_back(start: Start, own_etcd: EtcdServer) -> None:
    store = EtcdStore([f"127.0.0.1:{own_etcd.client_port}"])
    agent = start(store)
    await publish(store, plan(1, 1), POLICY)
    await agent.has_applied(plan(1, 1))
    await asyncio.to_thread(own_etcd.kill)
    await until(lambda: agent.active_config.age_s() > 1.0)
    assert (agent.active_config.policy, agent.active_config.plan) == (POLICY, plan(1, 1))
    restarted_at = time.monotonic()
    await asyncio.to_thread(own_etcd.restart)
    await publish(store, plan(1, 2))
    await agent.has_applied(plan(1, 2))
    assert agent.active_config.age_s() < time.monotonic() - restarted_at
    await agent.active_config.stop()
    await store.close()


async def test_an_agent_that_starts_without_etcd_serves_by_its_last_configuration(
    start: Start, own_etcd: EtcdServer, tmp_path: Path
) -> None:
    endpoint = f"127.0.0.1:{own_etcd.client_port}"
    store = EtcdStore([endpoint])
    agent = start(store)
    await publish(store, plan(3, 4), POLICY)
    await agent.has_applied(plan(3, 4))
    await until(lambda: (tmp_path / "in-force").exists())
    await agent.active_config.stop()
    await store.close()
    await asyncio.to_thread(own_etcd.kill)

    store = EtcdStore([endpoint])
    again = start(store)
    assert (again.active_config.policy, again.active_config.plan) == (POLICY, plan(3, 4))
    assert again.active_config.age_s() == math.inf
    assert again.policies == [POLICY]
    await asyncio.to_thread(own_etcd.restart)
    await until(lambda: again.active_config.age_s() < math.inf)
    await publish(store, plan(3, 3))
    await until(lambda: "does not supersede" in again.active_config.refused)
    assert again.active_config.plan == plan(3, 4)
    await again.active_config.stop()
    await store.close()


async def test_a_saved_configuration_of_another_region_or_a_damaged_one_is_ignored(
    tmp_path: Path, start: Start
) -> None:
    store = MemoryStore()
    agent = start(store)
    await publish(store, plan(1, 1), POLICY)
    await agent.has_applied(plan(1, 1))
    await until(lambda: (tmp_path / "in-force").exists())
    await agent.active_config.stop()
    moved = ActiveConfig("there", MemoryStore(), tmp_path, Random(1), agent.policies.append)
    moved.start()
    assert moved.policy is None
    await moved.stop()
    file = tmp_path / "in-force"
    file.write_bytes(file.read_bytes()[:-1])
    damaged = start(MemoryStore())
    assert damaged.active_config.policy is None


KEY, OTHER_KEY = "1" * 64, "2" * 64
WITH_KEYS = msgspec.structs.replace(POLICY, tenants={"acme": Tenant("acme", "open", key_digests=(KEY, OTHER_KEY))})


async def revoke(store: ConfigStore, *entries: RevokedKey) -> None:
    await store.commit((), (Put(keys.REVOKED_KEYS, encode(RevokedKeySet(entries))),))


def keys_of(agent: Agent) -> tuple[str, ...]:
    policy = agent.active_config.policy
    return policy.tenants["acme"].key_digests if policy is not None else ()


async def test_a_revoked_key_is_in_no_policy_that_comes_into_force(start: Start) -> None:
    store = MemoryStore()
    agent = start(store)
    await publish(store, plan(1, 1, WITH_KEYS), WITH_KEYS)
    await until(lambda: keys_of(agent) == (KEY, OTHER_KEY))
    await revoke(store, RevokedKey(KEY, 1.0, "a", "leaked"))
    await until(lambda: keys_of(agent) == (OTHER_KEY,))
    config = agent.active_config
    assert config.policy is agent.policies[-1]
    assert config.policy is not None
    assert config.policy.revoked_ids == {KEY[:16]}
    assert config.policy_digest == config.policy.digest() == WITH_KEYS.digest()
    assert config.status()["revoked_keys"] == {"count": 1, "changed_at": 1.0}
    # A newer policy, and a rollback to the one before: neither makes the key valid.
    newer = msgspec.structs.replace(WITH_KEYS, models=NEWER_POLICY.models)
    await publish(store, plan(2, 1, newer), newer)
    await agent.has_applied(plan(2, 1, newer))
    assert keys_of(agent) == (OTHER_KEY,)
    await publish(store, plan(3, 1, WITH_KEYS))
    await agent.has_applied(plan(3, 1, WITH_KEYS))
    assert keys_of(agent) == (OTHER_KEY,)
    await revoke(store, RevokedKey(KEY, 2.0, "a", "a mistake", lifted=True))
    await until(lambda: keys_of(agent) == (KEY, OTHER_KEY))
    assert config.policy == WITH_KEYS
    assert not config.policy.revoked_ids


@pytest.mark.parametrize("loss", [Delete(keys.REVOKED_KEYS), Put(keys.REVOKED_KEYS, b""), None], ids=str)
async def test_a_lost_or_forged_list_makes_no_key_valid(start: Start, loss: Delete | Put | None) -> None:
    store = MemoryStore()
    agent = start(store)
    await publish(store, plan(1, 1, WITH_KEYS), WITH_KEYS)
    await revoke(store, RevokedKey(KEY, 2.0, "a", "leaked"))
    await until(lambda: keys_of(agent) == (OTHER_KEY,))
    older = Put(keys.REVOKED_KEYS, encode(RevokedKeySet((RevokedKey(KEY, 1.0, "a", "r", lifted=True),))))
    await store.commit((), (loss or older,))
    await revoke(store, RevokedKey(OTHER_KEY, 3.0, "a", "leaked, too"))
    await until(lambda: keys_of(agent) == ())


async def test_a_restarted_agent_knows_the_revoked_keys_without_the_store(start: Start, tmp_path: Path) -> None:
    store = MemoryStore()
    agent = start(store)
    await publish(store, plan(1, 1, WITH_KEYS), WITH_KEYS)
    await revoke(store, RevokedKey(KEY, 1.0, "a", "leaked"))
    await until(lambda: keys_of(agent) == (OTHER_KEY,))
    stored = StateFile(tmp_path / "revoked-keys", RevokedKeySet)
    in_force = StateFile(tmp_path / "in-force", InForce)
    await until(lambda: stored.load() is not None and in_force.load() is not None)
    await agent.active_config.stop()
    saved = in_force.load()
    assert saved is not None
    assert saved.policy == WITH_KEYS, "the policy is stored as it was published"
    again = start(MemoryStore())
    assert keys_of(again) == (OTHER_KEY,)
    assert all(KEY not in policy.tenants["acme"].key_digests for policy in again.policies)


class SlowToRevoke(MemoryStore):
    """A store that cannot read the list of revoked keys for some time."""

    away = True

    async def list(self, prefix: str, *, values: bool = True) -> Listing:
        if self.away and prefix == keys.REVOKED_KEYS:
            raise StoreUnavailable("no quorum")
        return await super().list(prefix, values=values)


async def test_no_policy_of_the_store_is_in_force_before_the_revoked_keys_are_read(start: Start) -> None:
    """An agent with an empty disk knows no revoked key; without this, it accepts them for some time."""
    store = SlowToRevoke()
    await publish(store, plan(1, 1, WITH_KEYS), WITH_KEYS)
    await revoke(store, RevokedKey(KEY, 1.0, "a", "leaked"))
    agent = start(store)
    await until(lambda: agent.active_config.age_s() < math.inf)
    for _ in range(20):
        await asyncio.sleep(0)
    assert agent.policies == []
    store.away = False
    await agent.has_applied(plan(1, 1, WITH_KEYS))
    assert [policy.tenants["acme"].key_digests for policy in agent.policies] == [(OTHER_KEY,)]

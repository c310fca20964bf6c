import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest

from adapters.configuration.settings_loader import BadSettings
from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.servers.redis import RedisServer
from adapters.store import keys
from adapters.store.codec import decode, encode
from adapters.store.config_store import KeyValue, Put
from adapters.store.members import AgentMember
from adapters.store.signed_store import SignedStore
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.fleet.report import AgentReport
from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, DrainedEndpoint, RegionPlan
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.pools.placement import Reservation
from penstock.routing.reasons import Reason
from penstock.wire import identity, peer_probe
from penstock.wire.identity import encode_certificate
from penstock.wire.peer_keys import Keyring, PeerKeys, Purpose
from penstock.wire.peer_probe import PeerProbeRequest
from regional_agent import runtime
from regional_agent.config.settings import AgentSettings
from regional_agent.peers import agent_addresses
from regional_agent.runtime import AgentCredentials, AgentRuntime
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.upstream.upstream_pool import UpstreamPool, UpstreamPools
from tests.support.identities import agent_keyring, control_plane_keyring, introduce
from tests.support.reservations import release, reserve
from tests.support.shared_loads import region_keys
from tests.support.small_http import Headers, SmallHttp
from tests.support.wait import PATIENCE_S, found, until

POLICY = Policy(
    regions={name: Region(name, "DE", 50.0, 8.0) for name in ("eu-de", "eu-es")},
    models={"m": Model("m", 2.0), "n": Model("n", 2.0)},
    tenants={},
    residency=(),
    failover=Failover(hold_down_s=0.1, failback_ramp_s=0.1),
)


def plan(region: str, generation: int = 1) -> RegionPlan:
    classes = (ClassPlan("m", "eu-de+eu-es", (Arc(region, 1.0, ArcReason.HOME),), ()),)
    return RegionPlan(region, generation, 7, POLICY.digest(), 0.0, classes)


class Site:
    """One region: an engine, a control plane that records reports, and the inputs and peer socket of an agent."""

    def __init__(self, region: str, directory: Path, etcd: EtcdServer, redis: RedisServer) -> None:
        self.region = region
        self.directory = directory / region
        self.directory.mkdir(exist_ok=True)
        self.etcd, self.redis = etcd, redis
        self.engine = SmallHttp(lambda *_: (200, b""))
        self.engines = [(self.engine, "m", 4)]
        """Engines with their models and slots."""
        self.control_plane = SmallHttp(self._take_report)
        self.peer = SmallHttp(self._answer_probe)
        self.reports: list[AgentReport] = []
        self.metrics = AgentMetrics()
        self.keyring = agent_keyring(region)
        self.runtime: AgentRuntime | None = None

    def settings(self) -> AgentSettings:
        return AgentSettings(
            region=self.region,
            name="agent-1",
            traffic_listen="127.0.0.1:0",
            peer_listen="127.0.0.1:0",
            admin_listen="127.0.0.1:0",
            etcd_endpoints=(f"127.0.0.1:{self.etcd.client_port}",),
            control_plane_urls=(self.control_plane.url,),
            redis_url=self.redis.url,
            endpoints_file=self.directory / "endpoints.yaml",
            identity_dir=self.directory / "unused",
            allow_plaintext="peers",
            state_dir=self.directory / "state",
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[AgentRuntime]:
        async with AsyncExitStack() as stack:
            for server in (*(engine for engine, _, _ in self.engines), self.control_plane, self.peer):
                await stack.enter_async_context(server)
            (self.directory / "endpoints.yaml").write_text(
                "".join(
                    f"- {{name: gpu-{at}, url: '{engine.url}', models: [{models}], slots: {slots}, queue: 2}}\n"
                    for at, (engine, models, slots) in enumerate(self.engines)
                )
            )
            pool = UpstreamPool()
            stack.callback(pool.close)
            self.runtime = AgentRuntime(
                self.settings(),
                AgentCredentials(self.keyring, region_keys(self.region)),
                UpstreamPools(pool),
                self.metrics,
                Random(1),
            )
            async with self.runtime as runtime:
                await runtime.announce(
                    peer_url=self.peer.url, admin_url="http://127.0.0.1:1", to_peers=ssl.create_default_context
                )
                yield runtime

    def _take_report(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        if target == identity.PATH.encode():
            return 200, encode_certificate(control_plane_keyring().identity.peer.certificate).encode()
        self.reports.append(msgspec.msgpack.decode(body, type=AgentReport))
        return 200, b'{"leading": true, "leader": null}'

    def _answer_probe(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        assert self.runtime is not None
        if target == identity.PATH.encode():
            return 200, self.runtime.responder.certificate.encode()
        sent = dict(headers)
        return self.runtime.responder.answer(sent.get(peer_probe.HEADER.encode()), sent.get(identity.HEADER.encode()))


async def publish(etcd: EtcdServer) -> None:
    store = SignedStore(EtcdStore([etcd.endpoint], call_timeout_s=PATIENCE_S), control_plane_keyring())
    await store.commit((), (Put(keys.policy(POLICY.digest()), encode(POLICY)),))
    for region in POLICY.regions:
        await store.commit((), (Put(keys.plan(region), encode(plan(region))),))
    await store.close()


@pytest.fixture
async def sites(tmp_path: Path, own_etcd: EtcdServer, own_redis: RedisServer) -> list[Site]:
    return [Site(region, tmp_path, own_etcd, own_redis) for region in POLICY.regions]


async def test_models_that_share_an_engine_are_reported_and_granted_once(
    sites: list[Site], own_etcd: EtcdServer
) -> None:
    de, es = sites
    de.engines = [(de.engine, "m, n", 10), (SmallHttp(lambda *_: (200, b"")), "n", 10)]
    async with de.running() as here, es.running() as there:
        await publish(own_etcd)
        await until(lambda: here.endpoints.pools["n"].ready == 2)
        await until(lambda: here.readiness.not_ready_reason() is None and there.readiness.not_ready_reason() is None)
        await until(lambda: bool(de.reports) and de.reports[-1].groups[:1] != () and de.reports[-1].pools[1].ready == 2)
        report = de.reports[-1]
        assert {pool.model: pool.slots for pool in report.pools} == {"m": 10, "n": 20}
        assert [(group.models, group.endpoints, group.slots) for group in report.groups] == [(("m", "n"), 1, 10)]
        assert here.status()["groups"] == report.groups

        def granted(origin: str, **wanted: int) -> dict[str, int]:
            prober = agent_keyring("eu-es", origin)
            peer_keys = prober.keys_with(de.keyring.identity.peer.certificate, time.time())
            question = PeerProbeRequest("eu-es", origin, "eu-de", "nonce", time.time(), wanted)
            certificate = encode_certificate(prober.identity.peer.certificate).encode()
            status, body = here.responder.answer(peer_probe.seal_request(question, peer_keys).encode(), certificate)
            assert status == 200, body
            models = peer_probe.open_response(body, question, peer_keys).models
            return {model: models[model].credits for model in wanted}

        # 80 % of 20 slots are for overflow, 8 of them on the engine that both models use.
        first = granted("x", m=6)
        assert first == {"m": 6}
        assert granted("y", n=99) == {"n": 10}
        assert granted("z", m=99) == {"m": 0}


async def test_two_regions_discover_each_other(sites: list[Site], own_etcd: EtcdServer) -> None:
    de, es = sites
    async with de.running() as here, es.running() as there:
        assert str(here.readiness.not_ready_reason()).startswith("no policy accepted yet")
        await publish(own_etcd)
        await until(lambda: here.readiness.not_ready_reason() is None and there.readiness.not_ready_reason() is None)
        await until(lambda: here.peers.state("eu-es") is there.peers.state("eu-de") is RegionState.HEALTHY)
        view = here.peers.view("eu-es", "m", time.monotonic())
        assert (view.ready, view.credits) == (True, 0)

        engine = here.endpoints.pools["m"].endpoints[0]
        held = [reserve(here.shared_load, Reservation(engine)) for _ in range(6)]
        assert here.router.batch.views((), "m", 0.0)["eu-de"].expected_wait_s == pytest.approx(3 * 2.0 / 4)
        await until(lambda: here.peers.view("eu-es", "m", time.monotonic()).credits == 3)
        for reservation in held:
            release(here.shared_load, reservation)

        for _ in range(5):
            here.demand.offered("m", residency_class(frozenset(POLICY.regions)))
        await until(lambda: any(report.demand for report in de.reports))
        report = next(report for report in de.reports if report.demand)
        assert (report.region, report.agent, report.refused_plan) == ("eu-de", "agent-1", "")
        assert (report.policy_digest, report.plan_epoch, report.plan_generation) == (POLICY.digest(), 7, 1)
        assert [(pool.model, pool.ready, pool.slots) for pool in report.pools] == [("m", 1, 4)]
        (gpu,) = report.endpoints or ()
        assert (gpu.name, gpu.address, gpu.models, gpu.slots) == ("gpu-0", de.engine.url[7:], ("m",), 4)
        assert [(peer.region, peer.state) for peer in report.peers] == [("eu-es", RegionState.HEALTHY)]
        assert report.demand[0].residency == "eu-de+eu-es"

        status = msgspec.json.decode(msgspec.json.encode(here.status()))
        assert status["ready"] is True
        assert status["peers"]["eu-es"]["state"] == "healthy"
        here.update_metrics({"m": 2})
        text = de.metrics.render().decode()
        assert 'penstock_agent_peer_state{region="eu-es",state="healthy"} 1.0' in text
        assert 'penstock_agent_endpoint_ready{endpoint="gpu-0"} 1.0' in text
        assert 'penstock_agent_endpoint_slots{endpoint="gpu-0"} 4.0' in text
        assert 'penstock_agent_endpoint_requests_total{endpoint="gpu-0",outcome="served"} 0.0' in text
        assert "penstock_agent_shared_load_up 1.0" in text
        assert "penstock_agent_plan_epoch 7.0" in text
        assert 'penstock_agent_file_rejected{file="endpoints"} 0.0' in text

        file = de.directory / "endpoints.yaml"
        good, before = file.read_text(), here.endpoints.sources.specs
        file.write_text("- name: 7")
        await until(lambda: de.reports[-1].rejected_files != ())
        assert de.reports[-1].rejected_files[0].startswith(f"{file}:1: ")
        assert here.endpoints.sources.specs == before
        assert here.status()["rejected_files"].keys() == {"endpoints"}
        here.update_metrics({})
        assert 'penstock_agent_file_rejected{file="endpoints"} 1.0' in de.metrics.render().decode()
        file.write_text(good)
        await until(lambda: de.reports[-1].rejected_files == ())
        here.update_metrics({})
        assert 'penstock_agent_file_rejected{file="endpoints"} 0.0' in de.metrics.render().decode()


async def test_an_endpoint_that_an_operator_drains_receives_nothing_across_restarts(
    sites: list[Site], own_etcd: EtcdServer
) -> None:
    de, _ = sites
    de.engines = [(de.engine, "m", 4), (SmallHttp(lambda *_: (200, b"")), "m", 6)]
    await publish(own_etcd)
    store = SignedStore(EtcdStore([own_etcd.endpoint]), control_plane_keyring())
    drains = (DrainedEndpoint("gpu-1", "drain endpoint x of eu-de/gpu-1: heat"), DrainedEndpoint("gone", "y"))
    drained = msgspec.structs.replace(plan("eu-de", 2), drained_endpoints=drains)
    async with de.running() as here:
        await until(lambda: here.endpoints.pools["m"].slots == 10)
        busy = here.endpoints.pools["m"].endpoints[1]
        running = reserve(here.shared_load, Reservation(busy))
        await store.commit((), (Put(keys.plan("eu-de"), encode(drained)),))
        await until(lambda: here.endpoints.pools["m"].slots == 4)
        assert (here.endpoints.pools["m"].ready, here.endpoints.pools["m"].in_flight) == (1, 0)
        model = POLICY.models["m"]
        considered = {each.name: each for each in here.router.local.consider(model, "", "", 0.0)}
        assert considered["gpu-1"].reason is Reason.ENDPOINT_DRAINING
        assert considered["gpu-1"].detail == drains[0].because
        await until(lambda: [pool.slots for report in de.reports[-1:] for pool in report.pools] == [4])
        report = de.reports[-1]
        assert (report.pools[0].endpoints, report.pools[0].ready) == (1, 1), "what an operator withdraws is no failure"
        (row,) = [row for row in report.endpoints or () if row.name == "gpu-1"]
        assert (row.condition, row.reason, row.in_flight) == (EndpointCondition.DRAINING, drains[0].because, 1)
        release(here.shared_load, running)
        assert busy.view.in_flight == 0
        await until(lambda: b"heat" in _read(de.directory / "state/in-force"))
    await store.close()
    await asyncio.to_thread(own_etcd.kill)
    async with de.running() as again:
        await until(lambda: again.endpoints.pools["m"].ready == 1)
        await until(lambda: again.endpoints.pools["m"].endpoints[1].health.ready)
        assert [view.name for view in again.endpoints.pools["m"].views if view.takes_more] == ["gpu-0"]
        again.endpoints.use_drains({})
        assert again.endpoints.pools["m"].slots == 10


async def test_a_probe_with_the_certificate_of_another_region_is_rejected(
    sites: list[Site], own_etcd: EtcdServer
) -> None:
    de, _ = sites
    await publish(own_etcd)
    question = PeerProbeRequest("eu-es", "agent-1", "eu-de", "nonce", time.time(), {})
    async with de.running() as here:
        await until(lambda: here.config.policy is not None)

        def status(prober: Keyring) -> int:
            sealed = peer_probe.seal_request(question, introduce(prober, de.keyring))
            certificate = encode_certificate(prober.identity.peer.certificate)
            return here.responder.answer(sealed.encode(), certificate.encode())[0]

        assert status(agent_keyring("eu-es")) == 200
        assert status(agent_keyring("us-east")) == 403
        assert status(agent_keyring("eu-es", "agent-2")) == 403
        assert status(control_plane_keyring()) == 403
        foreign = agent_keyring("eu-es", fleet=1)
        sealed = PeerKeys(foreign.identity, de.keyring.identity.peer).seal(Purpose.PROBE, b"{}")
        certificate = encode_certificate(foreign.identity.peer.certificate)
        assert here.responder.answer(sealed.encode(), certificate.encode())[0] == 401
        assert here.responder.answer(None, None)[0] == 401


async def test_registers_and_withdraws(sites: list[Site], own_etcd: EtcdServer) -> None:
    de, es = sites
    store = SignedStore(EtcdStore([own_etcd.endpoint]), control_plane_keyring())
    await publish(own_etcd)

    async def registered() -> AgentMember | None:
        item = await store.get(keys.agent("eu-de", "agent-1"))
        return decode(item.value, AgentMember) if item is not None else None

    async with de.running() as here, es.running() as there:
        member = await found(registered)
        assert (member.region, member.name, member.peer_url) == ("eu-de", "agent-1", de.peer.url)
        await until(lambda: there.peers.view("eu-de", "m", time.monotonic()).ready)
        await here.withdraw()
        assert await registered() is None
        await until(lambda: not there.peers.view("eu-de", "m", time.monotonic()).ready)
    await store.close()


@pytest.mark.parametrize(
    ("name", "url", "message"),
    [
        ("agent-0", None, "agent agent-0 of the region has the same address"),
        (
            "agent-1",
            "https://10.0.0.1:1",
            "an agent agent-1 of the region runs on another host, at https://10.0.0.1:1,",
        ),
    ],
)
async def test_an_agent_with_the_address_or_the_name_of_another_does_not_start(
    sites: list[Site],
    own_etcd: EtcdServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    url: str | None,
    message: str,
) -> None:
    monkeypatch.setattr(runtime, "REGISTRATION_TTL_S", 0)
    # An agent that cannot read the store in time starts without this check.
    monkeypatch.setattr(agent_addresses, "READ_TIMEOUT_S", PATIENCE_S)
    de, _ = sites
    store = SignedStore(EtcdStore([own_etcd.endpoint]), agent_keyring("eu-de", name))
    async with de.peer:
        other = AgentMember("eu-de", name, url or de.peer.url, "http://127.0.0.1:1", 1)
        await store.commit((), (Put(keys.agent("eu-de", name), encode(other)),))
    with pytest.raises(BadSettings, match=message):
        async with de.running():
            pass
    assert de.reports == [], "they would displace those of the other one"
    await store.close()


async def test_a_successor_that_just_registered_keeps_the_region_ready(sites: list[Site], own_etcd: EtcdServer) -> None:
    site = sites[0]
    store = SignedStore(EtcdStore([own_etcd.endpoint]), site.keyring)
    await publish(own_etcd)

    async def registered() -> KeyValue | None:
        return await store.get(keys.agent("eu-de", "agent-1"))

    async with site.running() as leaving:
        item = await found(registered)
        await leaving._directory.stop()
        member = decode(item.value, AgentMember)
        successor = msgspec.structs.replace(member, epoch=member.epoch + 1)
        await store.commit((), (Put(item.key, encode(successor)),))
        await leaving.withdraw()
        assert not leaving.responder.shutting_down
    await store.close()


async def test_starts_and_serves_without_control_plane_etcd_and_redis(
    sites: list[Site], own_etcd: EtcdServer, own_redis: RedisServer
) -> None:
    de, es = sites
    await publish(own_etcd)
    async with es.running() as there:
        async with de.running() as here:
            await until(lambda: here.peers.view("eu-es", "m", time.monotonic()).ready)
            await until(lambda: (de.directory / "state/in-force").exists())
            await until(lambda: b"eu-es" in _read(de.directory / "state/agents"))
            await until(lambda: b"eu-de" in _read(es.directory / "state/agents"))
            epoch = here.status()["epoch"]
        await asyncio.to_thread(own_etcd.kill)
        await asyncio.to_thread(own_redis.kill)
        async with de.running() as again:
            assert again.status()["epoch"] > epoch
            assert again.config.plan == plan("eu-de")
            await until(lambda: again.readiness.not_ready_reason() is None)
            await until(lambda: again.peers.view("eu-es", "m", time.monotonic()).ready)
            reservation = reserve(again.shared_load, Reservation(again.endpoints.pools["m"].endpoints[0]))
            assert again.endpoints.pools["m"].in_flight == 1
            release(again.shared_load, reservation)
            assert again.endpoints.pools["m"].in_flight == 0
            assert not again.shared_load.up
            await until(lambda: there.peers.state("eu-de") is not RegionState.UNKNOWN)


async def test_series_of_removed_objects_are_removed(sites: list[Site], own_etcd: EtcdServer) -> None:
    de, _ = sites
    await publish(own_etcd)
    async with de.running() as here:
        await until(lambda: here.config.policy is not None)
        here.update_metrics({})
        assert 'endpoint="gpu-0"' in de.metrics.render().decode()
        assert 'peer_state{region="eu-es"' in de.metrics.render().decode()
        (de.directory / "endpoints.yaml").write_text("[]")
        await until(lambda: list(here.endpoints.every()) == [])
        here.peers.use(msgspec.structs.replace(POLICY, regions={"eu-de": POLICY.regions["eu-de"]}))
        here.update_metrics({})
        assert 'endpoint="gpu-0"' not in de.metrics.render().decode()
        assert 'peer_state{region="eu-es"' not in de.metrics.render().decode()


async def test_nothing_is_left_running(sites: list[Site], own_etcd: EtcdServer) -> None:
    de, _ = sites
    await publish(own_etcd)
    before = asyncio.all_tasks()
    async with de.running() as here:
        await until(lambda: here.readiness.not_ready_reason() is None)
    await until(lambda: asyncio.all_tasks() == before)


def _read(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""

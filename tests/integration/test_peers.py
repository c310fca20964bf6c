import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from structlog.testing import capture_logs

from lab.memory_store import MemoryStore
from penstock.health.region_health import RegionState
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.routing.prefixes.prefix_sketch import digest_of, encode_sketch
from penstock.wire import identity, peer_probe
from penstock.wire.identity import Identity, TrustBundle, decode_certificate, encode_certificate
from penstock.wire.peer_keys import BadSignature, Keyring
from penstock.wire.peer_probe import ModelReadiness, PeerProbeRequest, PeerProbeResponse
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.peers.agent_addresses import AgentAddresses
from regional_agent.peers.peer_prober import MAX_ROUNDS, CreditRequests, PeerProber
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.identities import YEAR_S, agent_id, agent_keyring, authority, control_plane_keyring
from tests.support.small_http import Headers, SmallHttp
from tests.support.wait import until, until_async

POLICY = Policy(
    regions={name: Region(name, "DE", 50.0, 8.0) for name in ("here", "there")},
    models={"m": Model("m"), "n": Model("n")},
    tenants={},
    residency=(),
    failover=Failover(hold_down_s=0.3, failback_ramp_s=0.2),
)


class Agent(SmallHttp):
    """An agent of region `there`, of which only the probe is real."""

    def __init__(self, keyring: Keyring) -> None:
        super().__init__(self._answer)
        self.keyring = keyring
        self.region = "there"
        """The region in its responses."""
        self.models = {
            "m": ModelReadiness(True, 0.125, 4, batch_credits=5, slots=9, in_use=1, burst_room=6, burst_start_s=2.5)
        }
        self.sketch = encode_sketch({4: 0.5})
        """What it publishes of the prompt beginnings that its region holds."""
        self.starting = False
        self.accepts_clients = False
        """Whether it has no policy yet."""
        self.questions: list[PeerProbeRequest] = []
        self.on_fetch: Callable[[], None] = lambda: None
        """Called when its certificate is fetched."""

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port, region="there")

    def _answer(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        if target == identity.PATH.encode():
            self.on_fetch()
            return 200, encode_certificate(self.keyring.identity.peer.certificate).encode()
        assert target == peer_probe.PATH.encode()
        if self.starting:
            return 503, b"no policy yet"
        sent = dict(headers)
        self.keyring.keys_with(decode_certificate(sent[identity.HEADER.encode()]), time.time())
        token = sent[peer_probe.HEADER.encode()].decode()
        try:
            opened = peer_probe.open_request(token, self.keyring, "there", time.time())
        except BadSignature as error:
            return 401, str(error).encode()
        assert not isinstance(opened, str), opened
        question, peer_keys = opened
        self.questions.append(question)
        digest = digest_of(self.sketch)
        news = b"" if question.prefix_digest == digest else self.sketch
        answer = PeerProbeResponse(self.region, "x", self.models, 60.0, self.accepts_clients, digest, news)
        return 200, peer_probe.seal_response(answer, question, peer_keys)


@pytest.fixture
async def agents() -> AsyncIterator[list[Agent]]:
    made = [Agent(agent_keyring("there", name)) for name in ("agent-1", "agent-2")]
    for agent in made:
        await agent.start()
    yield made
    for agent in made:
        await agent.stop()


class Observer:
    def __init__(self, directory: Path, *addresses: str) -> None:
        self.wanted: dict[str, int] = {}
        self.batch_wanted: dict[str, int] = {}
        self.connections = UpstreamPool()
        self.keyring = keyring = agent_keyring("here")
        self.directory = AgentAddresses(
            MemoryStore(), directory, {"there": addresses}, Random(1), keyring, allow_plaintext=True
        )
        self.peers = PeerProber(
            AgentInstance("here", "agent-1", 1),
            keyring,
            self.connections,
            self.directory,
            CreditRequests(
                lambda model, spillover: self.wanted.get(model, 0),
                lambda model, spillover: self.batch_wanted.get(model, 0),
                lambda: None,
            ),
            Random(1),
        )

    @property
    def state(self) -> RegionState:
        return self.peers.state("there")

    async def reaches(self, state: RegionState) -> None:
        await until(lambda: self.state is state)


@pytest.fixture
async def observer(agents: list[Agent], tmp_path: Path) -> AsyncIterator[Observer]:
    made = Observer(tmp_path, agents[0].url)
    yield made
    await made.peers.stop()
    made.connections.close()


@pytest.fixture
async def observer_of_two(agents: list[Agent], tmp_path: Path) -> AsyncIterator[Observer]:
    made = Observer(tmp_path, *(agent.url for agent in agents))
    yield made
    await made.peers.stop()
    made.connections.close()


async def test_probes_return_the_region_state_and_request_credits(observer: Observer, agents: list[Agent]) -> None:
    observer.wanted, observer.batch_wanted = {"m": 3}, {"m": 8}
    observer.peers.use(POLICY)
    await observer.reaches(RegionState.HEALTHY)
    view = observer.peers.view("there", "m", time.monotonic())
    assert (view.ready, view.expected_wait_s, view.credits, view.weight) == (True, 0.125, 4, 1.0)
    assert (view.batch_room, view.slots, view.in_use) == (5, 9, 1)
    assert (view.burst_room, view.burst_start_s) == (6, 2.5)
    assert not observer.peers.view("there", "n", time.monotonic()).ready
    assert observer.peers.address("there") == agents[0].address
    question = agents[0].questions[-1]
    assert (question.origin, question.agent, question.wanted) == ("here", "agent-1", {"m": 3})
    assert question.batch_wanted == {"m": 8}
    observer.peers.spend("there", "m")
    observer.peers.spend_batch("there", "m")
    observer.peers.spend_batch("there", "m")
    observer.peers.spend_burst("there", "m")
    view = observer.peers.view("there", "m", time.monotonic())
    assert (view.credits, view.batch_room, view.in_use, view.burst_room) == (3, 3, 3, 5)
    assert observer.peers.held("there", [1, 2, 3, 4, 5]) == (4, 0.5)
    await until(lambda: agents[0].questions[-1].prefix_digest == digest_of(agents[0].sketch))
    (report,) = observer.peers.report()
    assert (report.region, report.state) == ("there", RegionState.HEALTHY)
    assert 0.0 < report.rtt_ms < 2000.0


async def test_a_region_counts_as_probed_after_its_first_round(
    observer: Observer, agents: list[Agent], tmp_path: Path
) -> None:
    agents[0].models = {"m": ModelReadiness(False, 0.0)}
    observer.peers.use(POLICY)
    assert not observer.peers.has_probed_all()
    await until(observer.peers.has_probed_all)
    alone = Observer(tmp_path / "alone")
    alone.peers.use(POLICY)
    assert alone.peers.has_probed_all(), "no agent of the other region is known"
    await alone.peers.stop()
    alone.connections.close()


async def test_regions_may_have_an_endpoint_until_the_registrations_are_read_and_their_agents_have_answered(
    observer: Observer, agents: list[Agent]
) -> None:
    agents[0].models = {"m": ModelReadiness(False, 0.0)}
    observer.peers.use(POLICY)
    assert observer.peers.regions_with("other") == observer.peers.regions.keys()
    observer.directory.start()
    await until(lambda: not observer.peers.regions_with("other"))
    assert observer.peers.regions_with("m") == {"there"}
    await observer.directory.stop()


async def test_a_round_trip_does_not_include_the_fetch_of_the_certificate(
    observer: Observer, agents: list[Agent]
) -> None:
    now = 1_000.0

    def delay() -> None:
        nonlocal now
        now += 5.0

    agents[0].on_fetch = delay
    observer.peers._clock = lambda: now
    observer.peers.use(POLICY)
    await observer.reaches(RegionState.HEALTHY)
    assert observer.peers.regions["there"].rtt_s == 0.0


async def test_probes_share_a_kept_connection(observer: Observer, agents: list[Agent]) -> None:
    observer.peers.use(POLICY)
    await until(lambda: agents[0].requests >= 6)
    # Two rounds overlap if this process is delayed.
    assert agents[0].connections <= 2


async def test_unknown_regions_are_unknown(observer: Observer) -> None:
    assert observer.peers.view("mars", "m", 0.0).state is RegionState.UNKNOWN
    assert observer.peers.address("mars") is None
    observer.peers.spend("mars", "m")
    observer.peers.request_failed("mars", Address("127.0.0.1", 1))


async def test_a_killed_region_fails_and_recovers(observer: Observer, agents: list[Agent]) -> None:
    observer.peers.use(POLICY)
    await observer.reaches(RegionState.HEALTHY)
    await agents[0].stop()
    await observer.reaches(RegionState.FAILED)
    assert observer.peers.address("there") == agents[0].address
    await agents[0].start()
    await observer.reaches(RegionState.RECOVERING)
    await observer.reaches(RegionState.HEALTHY)


async def test_a_region_that_has_not_answered_since_the_start_is_unknown_and_healthy_with_its_first_answer(
    observer: Observer, agents: list[Agent]
) -> None:
    agents[0].silent = True
    observer.peers._clock = lambda: 1_000.0
    quick = msgspec.structs.replace(POLICY.failover, probe_interval_s=0.05, probe_timeout_s=0.05)
    observer.peers.use(msgspec.structs.replace(POLICY, failover=quick))
    # So many that the first ones have no answer.
    await until(lambda: agents[0].requests > MAX_ROUNDS + quick.unhealthy_threshold)
    assert observer.state is RegionState.UNKNOWN
    assert observer.peers.is_awaited("there")
    agents[0].silent = False
    # No hold-down, which would have no end here.
    await observer.reaches(RegionState.HEALTHY)
    assert not observer.peers.is_awaited("there")


@pytest.mark.parametrize(("hold_down_s", "awaited_s"), [(0.3, 0.3), (3600.0, 10.0)])
async def test_a_region_that_does_not_answer_since_the_start_fails_after_the_hold_down_or_ten_seconds(
    observer: Observer, agents: list[Agent], hold_down_s: float, awaited_s: float
) -> None:
    agents[0].silent = True
    now = 1_000.0
    observer.peers._clock = lambda: now
    failover = msgspec.structs.replace(POLICY.failover, hold_down_s=hold_down_s)
    observer.peers.use(msgspec.structs.replace(POLICY, failover=failover))
    await until(lambda: agents[0].requests > 0)
    now += 0.9 * awaited_s
    assert observer.peers.is_awaited("there")
    now += 0.2 * awaited_s
    assert not observer.peers.is_awaited("there")
    await observer.reaches(RegionState.FAILED)


async def test_a_region_is_awaited_for_ten_seconds_where_no_agent_is_known(tmp_path: Path) -> None:
    unaware, now = Observer(tmp_path), 1_000.0
    unaware.peers._clock = lambda: now
    failover = msgspec.structs.replace(POLICY.failover, hold_down_s=3600.0)
    unaware.peers.use(msgspec.structs.replace(POLICY, failover=failover))
    await until(lambda: unaware.peers.regions["there"]._probed_since == now)
    assert unaware.peers.is_awaited("there")
    now += 11.0
    assert not unaware.peers.is_awaited("there")
    await unaware.peers.stop()


async def test_a_hung_region_fails_too(observer: Observer, agents: list[Agent]) -> None:
    observer.peers.use(POLICY)
    await observer.reaches(RegionState.HEALTHY)
    agents[0].silent = True
    await observer.reaches(RegionState.FAILED)
    agents[0].silent = False
    await observer.reaches(RegionState.HEALTHY)


async def test_a_region_is_healthy_while_one_of_its_agents_is(observer_of_two: Observer, agents: list[Agent]) -> None:
    observer_of_two.peers.use(POLICY)
    await until(lambda: len(observer_of_two.peers.regions["there"].reachable) == 2)
    assert observer_of_two.peers.view("there", "m", time.monotonic()).credits == 8
    await agents[0].stop()
    await until(lambda: observer_of_two.peers.regions["there"].reachable == (agents[1].address,))
    agents[1].asked.clear()
    await agents[1].asked.wait()
    assert observer_of_two.state is RegionState.HEALTHY
    assert {observer_of_two.peers.address("there") for _ in range(20)} == {agents[1].address}


async def test_a_hung_agent_does_not_delay_the_others_responses(observer_of_two: Observer, agents: list[Agent]) -> None:
    agents[0].silent = True
    observer_of_two.peers.use(POLICY)
    await observer_of_two.reaches(RegionState.HEALTHY)
    agents[1].models = {"m": ModelReadiness(True, 7.0, 0)}
    await until(lambda: observer_of_two.peers.view("there", "m", time.monotonic()).expected_wait_s == 7.0)
    assert observer_of_two.state is RegionState.HEALTHY


async def test_models_are_the_union_of_its_agents(observer_of_two: Observer, agents: list[Agent]) -> None:
    agents[0].models = {"m": ModelReadiness(False, 0.0), "n": ModelReadiness(True, 0.0)}
    observer_of_two.peers.use(POLICY)
    await until(lambda: len(observer_of_two.peers.regions["there"].reachable) == 2)
    now = time.monotonic()
    assert observer_of_two.peers.view("there", "m", now).ready
    assert observer_of_two.peers.view("there", "n", now).ready


async def test_a_region_without_a_ready_engine_fails(observer: Observer, agents: list[Agent]) -> None:
    observer.peers.use(POLICY)
    assert not observer.peers.serve_any()
    await observer.reaches(RegionState.HEALTHY)
    assert observer.peers.serve_any()
    agents[0].models, agents[0].accepts_clients = {"m": ModelReadiness(False, 0.0)}, True
    asked = len(agents[0].questions)
    await until(lambda: len(agents[0].questions) >= asked + 5)
    assert observer.state is RegionState.HEALTHY, "its models sleep until requests need them"
    assert not observer.peers.view("there", "m", time.monotonic()).ready
    agents[0].accepts_clients = False
    await observer.reaches(RegionState.FAILED)
    assert not observer.peers.serve_any()


async def test_a_region_that_residency_forbids_to_all_clients_serves_none(observer: Observer) -> None:
    """An entry without endpoints is not ready by it."""
    stays = ResidencyRule("stays", data_classes=frozenset({"personal"}), allow=frozenset({"here"}))
    governed, free = Tenant("bank", "personal"), Tenant("shop", "public")
    policy = msgspec.structs.replace(POLICY, residency=(stays,), tenants={"bank": governed})
    observer.peers.use(policy)
    await observer.reaches(RegionState.HEALTHY)
    assert not observer.peers.serve_any()
    observer.peers.use(msgspec.structs.replace(policy, tenants={"bank": governed, "shop": free}))
    assert observer.peers.serve_any()


async def test_a_region_whose_engines_load_does_not_fail(observer: Observer, agents: list[Agent]) -> None:
    agents[0].starting = True
    with capture_logs() as logs:
        observer.peers.use(POLICY)
        await until(lambda: agents[0].requests >= 8)
        agents[0].models, agents[0].starting = {"m": ModelReadiness(False, 0.0)}, False
        await until(lambda: len(agents[0].questions) >= 4)
        assert observer.state is RegionState.UNKNOWN
        agents[0].models = {"m": ModelReadiness(True, 0.0)}
        await observer.reaches(RegionState.HEALTHY)
    changes = [(entry["was"], entry["now"]) for entry in logs if entry["event"] == "region state changed"]
    assert changes == [("unknown", "healthy")], "without hold-down and failback ramp"


async def test_a_broken_request_starts_a_probe_at_once(observer: Observer, agents: list[Agent]) -> None:
    slow = msgspec.structs.replace(POLICY, failover=Failover(probe_interval_s=30.0, unhealthy_threshold=4))
    observer.peers.use(slow)
    await observer.reaches(RegionState.HEALTHY)
    for _ in range(10):
        observer.peers.request_failed("there", agents[0].address)
    assert observer.state is RegionState.SUSPECT
    await observer.reaches(RegionState.HEALTHY)
    await agents[0].stop()
    observer.peers.request_failed("there", agents[0].address)
    await observer.reaches(RegionState.FAILED)


async def test_a_delay_of_this_process_counts_no_miss(observer: Observer, agents: list[Agent]) -> None:
    quick = msgspec.structs.replace(POLICY, failover=Failover(probe_timeout_s=1.0, unhealthy_threshold=1))
    observer.peers.use(quick)
    await observer.reaches(RegionState.HEALTHY)
    agents[0].silent = True
    agents[0].asked.clear()
    await agents[0].asked.wait()
    with capture_logs() as logs:
        time.sleep(2.0)  # noqa: ASYNC251 (what holds up this process holds up its event loop)
        agents[0].silent = False
        asked = agents[0].requests
        await until(lambda: agents[0].requests >= asked + 3)
    assert [entry["now"] for entry in logs if entry["event"] == "region state changed"] == []


@pytest.mark.parametrize(
    "keyring",
    [
        lambda: agent_keyring("elsewhere"),
        lambda: agent_keyring("there", fleet=1),
        lambda: control_plane_keyring("there"),
    ],
    ids=["other region", "other fleet", "control plane"],
)
async def test_an_unauthenticated_agent_attracts_no_traffic(
    observer: Observer, keyring: Callable[[], Keyring], agents: list[Agent]
) -> None:
    agents[0].keyring = keyring()
    with capture_logs() as logs:
        observer.peers.use(POLICY)
        await observer.reaches(RegionState.FAILED)
        await until(lambda: agents[0].requests >= 4)
    assert not observer.peers.view("there", "m", time.monotonic()).ready
    assert sum("answer rejected" in entry["event"] for entry in logs) == 1
    assert agents[0].questions == [], "a stranger learns nothing"


async def test_an_agent_can_answer_for_its_own_region_only(observer: Observer, agents: list[Agent]) -> None:
    agents[0].region = "elsewhere"
    observer.peers.use(POLICY)
    await observer.reaches(RegionState.FAILED)


@pytest.mark.parametrize("name", ["agent-1", "renewed"], ids=["same", "new certificate"])
async def test_an_agent_that_is_replaced_fails_no_probe(observer: Observer, agents: list[Agent], name: str) -> None:
    observer.peers.use(POLICY)
    await observer.reaches(RegionState.HEALTHY)
    with capture_logs() as logs:
        agents[0].keyring = agent_keyring("there", name)
        asked = len(agents[0].questions)
        await until(lambda: len(agents[0].questions) >= asked + 3)
    peer_keys = observer.peers.peer_keys("there", agents[0].address)
    assert peer_keys is not None
    assert peer_keys.peer.id.name == name
    assert [entry for entry in logs if "answer rejected" in entry["event"]] == []


async def test_a_region_without_known_agents_does_not_count_as_failed(tmp_path: Path) -> None:
    unaware = Observer(tmp_path)
    unaware.peers.use(POLICY)
    await asyncio.sleep(0.5)
    assert unaware.state is RegionState.UNKNOWN
    await unaware.peers.stop()


async def test_the_probed_regions_follow_the_policy(observer: Observer, agents: list[Agent]) -> None:
    observer.peers.use(POLICY)
    await observer.reaches(RegionState.HEALTHY)
    observer.peers.use(msgspec.structs.replace(POLICY, regions={"here": POLICY.regions["here"]}))
    assert observer.peers.report() == ()

    async def is_left_alone() -> bool:
        asked = agents[0].requests
        await asyncio.sleep(0.6)
        return agents[0].requests == asked

    await until_async(is_left_alone)
    observer.peers.use(POLICY)
    await observer.reaches(RegionState.HEALTHY)


async def test_a_revoked_agent_loses_its_traffic_without_a_restart_of_the_others(
    observer: Observer, agents: list[Agent]
) -> None:
    observer.peers.use(POLICY)
    await observer.reaches(RegionState.HEALTHY)
    now = time.time()
    revoked = TrustBundle([authority().certificate], {agents[0].keyring.identity.peer.serial})
    observer.keyring.use(Identity(*authority().issue(agent_id("here"), (), now, YEAR_S), revoked, now))
    await observer.reaches(RegionState.FAILED)
    assert observer.peers.peer_keys("there", agents[0].address) is None

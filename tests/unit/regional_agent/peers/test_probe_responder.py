import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from penstock.health.endpoint_health import ProbeOutcome
from penstock.meters.demand_meter import DemandMeter
from penstock.planning.plan import Closed, RegionPlan
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.routing.affinity import AffinityIndex
from penstock.routing.prefixes.hot_prefixes import HotPrefixes
from penstock.routing.prefixes.prefix_sketch import decode_sketch
from penstock.wire.identity import encode_certificate
from penstock.wire.peer_keys import PeerKeys
from penstock.wire.peer_probe import (
    MAX_EXPECTED_WAIT_S,
    PeerProbeRequest,
    PeerProbeResponse,
    open_response,
    seal_request,
)
from regional_agent.config.active_config import ActiveConfig
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.peers.credit_balances import CreditBalances
from regional_agent.peers.probe_responder import ProbeResponder
from regional_agent.routing.queue_dispatcher import QueueDispatcher
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.clocks import SetClock
from tests.support.identities import agent_keyring

HERE = agent_keyring("here")
POLICY = Policy(
    regions={name: Region(name, "DE", 50.0, 8.0) for name in ("here", "a", "b")},
    models={"m": Model("m", 2.0), "cold": Model("cold"), "rented": Model("rented")},
    tenants={},
    residency=(),
    spillover=Spillover(target_utilisation=0.5, credit_ttl_s=0.75, shares_prefixes=True),
)


class Here:
    def __init__(self, directory: Path) -> None:
        self.policy: Policy | None = POLICY
        self.plan: RegionPlan | None = None
        self.agents: tuple[str, ...] = ("agent-1",)
        self.clock = SetClock()
        file = directory / "endpoints.yaml"
        file.write_text(
            "- {name: gpu-0, url: 'http://127.0.0.1:1', models: [m], slots: 20}\n"
            "- {name: gpu-1, url: 'http://127.0.0.1:2', models: [cold, untold], slots: 4}\n"
            "- {name: provider, url: 'http://127.0.0.1:3', models: [m, rented, untold], slots: 9, burst: true}\n"
        )
        self.endpoints = EndpointSet(EndpointSettings(file), UpstreamPool(), Random(1))
        self.endpoints.use_policy(POLICY)
        self.gpu = self.endpoints.pools["m"].endpoints[0]
        self.gpu.probed(ProbeOutcome.GOOD)
        queue = QueueDispatcher(self.endpoints, SharedLoad(self.endpoints), self.clock)
        self.credits = credits = CreditBalances(
            "agent-1",
            self.endpoints,
            queue.queues,
            demand := DemandMeter(self.clock()),
            agents_here=lambda: self.agents,
            clock=self.clock,
        )
        self.queue, self.demand = queue, demand
        config = cast(ActiveConfig, self)
        self.responder = ProbeResponder(
            AgentInstance("here", "agent-1", 1), HERE, config, self.endpoints, queue.queues, credits
        )

    def batch_requests_wait(self, count: int) -> None:
        """Let batch requests wait, for the balances of credits alone."""
        queues: Any = SimpleNamespace(
            waiting=self.queue.queues.waiting,
            batch_waiting_here=lambda model: count,
            preemptible=self.queue.queues.preemptible,
        )
        self.credits._queues = queues

    def ask(
        self, origin: str = "a", agent: str = "x", known: int = 0, batch: int = 0, **wanted: int
    ) -> PeerProbeResponse:
        for_batch = {"m": batch} if batch else {}
        question = PeerProbeRequest(origin, agent, "here", "nonce", time.time(), wanted, known, for_batch)
        (status, body), peer_keys = self.probe(question)
        assert status == 200, body
        return open_response(body, question, peer_keys)

    def probe(self, question: PeerProbeRequest) -> tuple[tuple[int, bytes], PeerKeys]:
        """The response to a probe of the named agent, and the keys shared with that agent."""
        prober = agent_keyring(question.origin, question.agent)
        peer_keys = prober.keys_with(HERE.identity.peer.certificate, time.time())
        certificate = encode_certificate(prober.identity.peer.certificate).encode()
        return self.responder.answer(seal_request(question, peer_keys).encode(), certificate), peer_keys


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def test_reports_readiness_and_expected_wait(here: Here) -> None:
    answer = here.ask()
    assert (answer.region, answer.agent, answer.credit_ttl_s) == ("here", "agent-1", 0.75)
    assert (answer.models["m"].ready, answer.models["m"].expected_wait_s) == (True, 0.0)
    assert (answer.models["cold"].ready, answer.models["cold"].expected_wait_s) == (False, MAX_EXPECTED_WAIT_S)
    assert "untold" not in answer.models
    for _ in range(24):
        here.gpu.take()
    assert here.ask().models["m"].expected_wait_s == pytest.approx(5 * 2.0 / 20)


def test_omits_a_model_without_room_unless_that_leaves_none(here: Here) -> None:
    here.responder.has_room = lambda model: model != "cold"
    assert here.ask().models.keys() == {"m"}
    here.responder.has_room = lambda model: False
    assert here.ask().models.keys() == {"m", "cold"}, "a region without models has no health"


def test_a_sketch_is_for_the_probing_region_and_sent_once(here: Here) -> None:
    hot, affinity = HotPrefixes(), AffinityIndex()
    for key, permitted in ((4, ("here", "a", "b")), (8, ("here", "b"))):
        affinity.sent("gpu-0", [key], None, "m", here.clock.now)
        for _ in range(2):
            hot.sent([key] * 4, frozenset(permitted), here.clock.now)
    here.responder.publish_prefixes(hot, affinity, here.clock)
    first = here.ask("a")
    assert set(decode_sketch(first.prefixes) or {}) == {4}
    assert set(decode_sketch(here.ask("b").prefixes) or {}) == {4, 8}
    again = here.ask("a", known=first.prefix_digest)
    assert (again.prefixes, again.prefix_digest) == (b"", first.prefix_digest)
    here.policy = msgspec.structs.replace(POLICY, spillover=Spillover())
    assert here.ask("a").prefix_digest == 0


def test_reports_what_other_regions_want_of_models_that_are_not_ready(here: Here) -> None:
    wanted: list[tuple[str, str]] = []
    here.responder.on_wanted = lambda origin, model: wanted.append((origin, model))
    here.ask("a", m=7, cold=0)
    assert not wanted
    here.ask("a", m=7, cold=3)
    assert wanted == [("a", "cold")]


def test_grants_headroom_once_over_all_origins(here: Here) -> None:
    assert here.ask("a", m=7).models["m"].credits == 7
    assert here.ask("b", m=7).models["m"].credits == 3
    assert here.ask("a", m=2).models["m"].credits == 2
    assert here.ask("b", m=99).models["m"].credits == 8
    here.clock.now += 0.76
    assert here.ask("b", m=99).models["m"].credits == 10


def test_counts_granted_credits_and_headroom_until_they_expire(here: Here) -> None:
    here.ask("a", m=7)
    assert (here.credits.granted("m"), here.credits.headroom("m", "here", POLICY, None)) == (7, 10)
    here.clock.now += 0.76
    assert here.credits.granted("m") == 0
    closed = RegionPlan("here", 1, 1, "d", 0.0, (), closed=(Closed("here", "m", True),))
    assert here.credits.headroom("m", "here", POLICY, closed) == 0


def test_grants_batch_credits_out_of_what_is_left_less_one_slot(here: Here) -> None:
    answer = here.ask("a", batch=99).models["m"]
    assert (answer.credits, answer.batch_credits, answer.slots, answer.in_use) == (0, 9, 20, 0)
    answer = here.ask("b", m=4, batch=99).models["m"]
    assert (answer.credits, answer.batch_credits) == (4, 0), "the others are granted to a"
    assert answer.in_use == 4
    assert here.ask("a", batch=99).models["m"].batch_credits == 5
    assert here.ask("b", m=99).models["m"].credits == 10, "batch credits take nothing from them"
    assert here.ask("a", batch=99).models["m"].batch_credits == 0
    assert here.credits.granted("m") == 10
    here.clock.now += 0.76
    here.batch_requests_wait(7)
    assert here.ask("a", batch=99).models["m"].batch_credits == 2, "batch requests that wait here are first"


def test_wants_batch_credits_for_waiting_and_arriving_batch_requests(here: Here) -> None:
    assert here.credits.batch_wanted("m", POLICY.spillover) == 0
    here.batch_requests_wait(7)
    for _ in range(6):
        here.demand.offered("m", residency_class(frozenset({"here"})), priority=BATCH_PRIORITY)
    here.clock.now += 3.0
    here.demand.settle(here.clock())
    assert (here.demand.per_s("m", here.clock()), here.demand.batch_per_s("m", here.clock())) == (0.0, 2.0)
    assert here.credits.batch_wanted("m", POLICY.spillover) == 7 + 2
    (report,) = here.demand.report()
    assert (report.requests_per_s, report.batch_per_s) == (0.0, 2.0)


async def test_models_that_share_endpoints_share_their_credits(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(
        "- {name: gpu-0, url: 'http://127.0.0.1:1', models: [m, cold], slots: 20}\n"
        "- {name: gpu-1, url: 'http://127.0.0.1:2', models: [cold], slots: 4}\n"
    )
    await here.endpoints.sources.reload_file()
    for endpoint in here.endpoints.every():
        endpoint.probed(ProbeOutcome.GOOD)
    assert [(group.models, group.slots) for group in here.endpoints.groups.report()] == [(("cold", "m"), 20)]
    assert here.ask("a", m=7).models["m"].credits == 7
    # Three slots of the group are left, and two of the endpoint that serves this model alone.
    assert here.ask("b", cold=99).models["cold"].credits == 5
    assert here.ask("a", "z", batch=99).models["m"].batch_credits == 0
    assert here.ask("b", m=99, cold=2).models["cold"].credits == 2
    for _ in range(10):
        here.gpu.take()
    here.clock.now += 0.76
    answer = here.ask("a", m=9, cold=9)
    assert (answer.models["m"].credits, answer.models["cold"].credits) == (0, 2)
    here.gpu.give_back()
    here.gpu.give_back()
    here.clock.now += 0.76
    assert here.ask("a", "z", batch=99).models["m"].batch_credits == 1


def test_grants_headroom_once_over_the_agents_of_an_origin(here: Here) -> None:
    assert here.ask("a", "x", m=7).models["m"].credits == 7
    assert here.ask("a", "y", m=7).models["m"].credits == 3


def test_each_agent_grants_only_its_part(here: Here) -> None:
    here.agents = ("agent-0", "agent-1", "agent-2")
    assert here.ask(m=99).models["m"].credits == 3
    here.agents = ("agent-7",)
    assert here.ask(m=99).models["m"].credits == 10


def test_grants_nothing_without_headroom(here: Here) -> None:
    for _ in range(10):
        here.gpu.take()
    assert here.ask(m=5, cold=5).models["m"].credits == 0
    assert here.ask(m=-5, cold=5).models["cold"].credits == 0


def test_an_open_region_offers_its_burst_endpoints(here: Here) -> None:
    here.responder.burst_offer = lambda model, policy: (7, 1e9) if model == "m" else (0, 0.0)
    answer = here.ask().models["m"]
    assert (answer.burst_room, answer.burst_start_s) == (7, MAX_EXPECTED_WAIT_S)
    here.plan = RegionPlan("here", 1, 1, "digest", 0.0, (), closed=(Closed("here", "m", True),))
    assert here.ask().models["m"].burst_room == 0


def test_models_with_burst_endpoints_alone_are_offered_apart_from_those_that_may_become_ready(here: Here) -> None:
    assert here.ask().burst_only == {}, "without a price"
    here.responder.burst_offer = lambda model, policy: (7, 1e9)
    answer = here.ask()
    assert answer.burst_only == {"rented": (7, MAX_EXPECTED_WAIT_S)}
    assert answer.models.keys() == {"m", "cold"}
    here.plan = RegionPlan("here", 1, 1, "digest", 0.0, (), closed=(Closed("here", "rented", True),))
    assert here.ask().burst_only == {}
    here.plan, here.responder.shutting_down = None, True
    assert here.ask().burst_only == {}


def test_closed_region_grants_nothing_but_reports_ready(here: Here) -> None:
    here.plan = RegionPlan("here", 1, 1, "digest", 0.0, (), closed=(Closed("here", "m", True),))
    answer = here.ask(m=5)
    assert (answer.models["m"].ready, answer.models["m"].credits) == (True, 0)
    here.plan = RegionPlan("here", 2, 1, "digest", 0.0, (), closed=(Closed("elsewhere", "m", True),))
    assert here.ask(m=5).models["m"].credits == 5


def test_draining_agent_reports_not_ready_and_grants_nothing(here: Here) -> None:
    here.responder.shutting_down = True
    answer = here.ask(m=5)
    assert not any(model.ready or model.credits for model in answer.models.values())


def test_accepts_probes_from_other_regions_of_the_policy_only(here: Here) -> None:
    for origin in ("here", "elsewhere"):
        question = PeerProbeRequest(origin, "x", "here", "nonce", time.time())
        assert here.probe(question)[0] == (403, b"not another region of the policy\n")


@pytest.mark.parametrize("token", [None, b"", b"x.y", "é".encode(), b"x" * 100_000])
def test_rejects_probes_without_a_valid_signature(here: Here, token: bytes | None) -> None:
    certificate = encode_certificate(agent_keyring("a").identity.peer.certificate).encode()
    for sent in (certificate, None, b"", b"x", token):
        status, body = here.responder.answer(token, sent)
        assert status == 401
    assert b"agent-1" not in body


def test_rejects_probes_without_a_policy(here: Here) -> None:
    here.policy = None
    assert here.responder.answer(b"", b"") == (503, b"no policy yet\n")

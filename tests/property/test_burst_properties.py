"""A burst endpoint receives no request while a slot of the region's own endpoints is free, whatever happened before.
Those of another region receive only what residency, limits, credits and prices permit."""

from __future__ import annotations

from math import inf
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.outlier_ejection import AttemptOutcome
from penstock.health.region_health import RegionState
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.policy.kinds.regions import BurstPool
from penstock.policy.residency import residency_class
from penstock.pools.burst import Otherwise
from penstock.pools.context_lengths import ContextLengths
from penstock.pools.placement import WorkEstimate
from penstock.routing.burst_regions import burst_region
from penstock.routing.endpoint_chooser import EndpointChooser
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import Closures, RegionRequest, RegionView
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.endpoints.endpoint_failures import apply_outcome
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.routing.attempt import LocalAttempt, LocalServices
from regional_agent.routing.burst_targets import BurstTargets
from regional_agent.routing.local_targets import LocalTargets
from regional_agent.routing.queue_dispatcher import QueueDispatcher
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.examples import examples
from tests.support.planet import MODEL, policy, with_spillover_orders

OWN, BURST = ("own-0", "own-1"), ("burst-0", "burst-1")
prices = st.builds(
    BurstPool,
    st.just((MODEL,)),
    st.sampled_from((0.0, 0.001, 1.0)),
    st.sampled_from((0.0, 5.0)),
    st.sampled_from((0.0, 0.5, 30.0)),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.booleans()),
        st.tuples(st.just("overflow"), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("fail"), st.sampled_from(OWN + BURST)),
        st.tuples(st.just("down"), st.sampled_from(OWN + BURST)),
        st.tuples(st.just("up"), st.sampled_from(OWN + BURST)),
        st.tuples(st.just("drain"), st.sampled_from(OWN)),
        st.tuples(st.just("pass"), st.sampled_from((0.1, 3.0, 40.0))),
    ),
    max_size=40,
)


class RegionOfTwo:
    """One agent's own endpoints and burst endpoints; of requests, only what selection reads."""

    def __init__(self, folder: Path, terms: BurstPool, ready: frozenset[str]) -> None:
        self.now = 1000.0
        file = folder / "endpoints.yaml"
        entries = [{"name": name, "url": f"http://127.0.0.1:{at + 1}", "slots": 2} for at, name in enumerate(OWN)]
        entries += [
            {"name": name, "url": f"http://127.0.0.1:{at + 11}", "slots": 2, "burst": True}
            for at, name in enumerate(BURST)
        ]
        file.write_bytes(msgspec.yaml.encode([{**entry, "models": [MODEL]} for entry in entries]))
        detection = OutlierDetection(clock=lambda: self.now, rng=Random(1))
        self.endpoints = EndpointSet(EndpointSettings(file, outlier_detection=detection), UpstreamPool(), Random(1))
        self.by_name = {each.name: each for each in self.endpoints.every()}
        for name in ready:
            self.by_name[name].probed(ProbeOutcome.GOOD)
        shared = SharedLoad(self.endpoints, shared=False)
        queue = QueueDispatcher(self.endpoints, shared, lambda: self.now)
        services = LocalServices("eu-de", self.endpoints, shared, EndpointChooser(Random(1)), queue.queues)
        self.local = LocalTargets(services, queue)
        self.burst = BurstTargets(self.local)
        before = policy()
        here = msgspec.structs.replace(before.regions["eu-de"], burst=(terms,))
        self.policy = msgspec.structs.replace(before, regions={**before.regions, "eu-de": here})
        self.running: list[LocalAttempt] = []

    def context(self, prompt_bytes: int = 0) -> Any:
        cost = Cost(CostUnit.TOKEN, 0.0, 0.001)
        estimate = WorkEstimate("open", MODEL, cost, CostInputs(prompt_bytes), Work(0.1, 1.0), streaming=True)
        return SimpleNamespace(
            model=MODEL,
            policy=self.policy,
            estimate=estimate,
            residency=SimpleNamespace(permitted=SimpleNamespace(regions=frozenset({"eu-de"}), name="eu-de")),
            request=SimpleNamespace(route=None, body=b""),
            occupies_slot=True,
            is_batch=False,
            needs_object=False,
            client_object="",
            tried_endpoints=frozenset(),
            busy_endpoints=frozenset(),
            subset=None,
            extends_text=False,
            broken=0,
            priority=0,
            weight=1.0,
            max_use=1.0,
            max_wait_s=10.0,
            received_at=self.now,
            deadline_at=inf,
            route_context=None,
            context_class=0,
            needed=None,
        )

    def free_by_hand(self) -> int:
        return sum(
            each.view.slots - each.view.in_flight
            for name in OWN
            if (each := self.by_name[name]).view.ready and not each.view.draining
        )

    def _own(self) -> list[Endpoint]:
        return [each for name in OWN if (each := self.by_name[name]).view.ready and not each.view.draining]

    def slots_by_hand(self) -> int:
        return sum(each.view.slots for each in self._own())

    def in_use_by_hand(self) -> int:
        return sum(each.view.in_flight for each in self._own())

    def step(self, kind: str, what: Any) -> None:
        if kind == "arrive":
            self.arrive(in_turn=what)
        elif kind == "overflow":
            self.overflow()
        elif kind == "end" and self.running:
            self.running.pop(what % len(self.running)).settle(self.now, 1.0)
        elif kind == "fail":
            for _ in range(3):
                apply_outcome(self.by_name[what], AttemptOutcome.GATEWAY_ERROR, self.now)
        elif kind in ("down", "up") and self.by_name[what].spec.is_probed:
            for _ in range(3):
                self.by_name[what].probed(ProbeOutcome.GOOD if kind == "up" else ProbeOutcome.UNREADY)
        elif kind == "drain":
            endpoint = self.by_name[what]
            endpoint.use_drain("" if endpoint.drained_because else "an operator")
        elif kind == "pass":
            self.now += what
            for endpoint in self.by_name.values():
                endpoint.tick()
            self.endpoints._fill_pools()

    def overflow(self) -> None:
        """A request of another region that has no credit, as the router places it."""
        context = self.context()
        context.route_context = SimpleNamespace(for_burst=True)
        target: Any = None
        if self.local.uncommitted_slots(context) > 0 and not self.local.queue.must_queue(context):
            target = self.local.place(context, "forwarded", self.now)
        if not isinstance(target, LocalAttempt):
            assert self.in_use_by_hand() + 1 > self.policy.spillover.target_utilisation * self.slots_by_hand()
            target = self.burst.place_of_origin(context, self.now)
            assert target is None or target.endpoint.spec.burst
        else:
            assert self.in_use_by_hand() <= self.policy.spillover.target_utilisation * self.slots_by_hand()
        if target is not None:
            self.running.append(target)

    def arrive(self, *, in_turn: bool) -> None:
        context, free = self.context(), self.free_by_hand()
        # As the router does with and without a place in the queue, and even where the region's own place was not asked.
        attempt = self.burst.place(context, self.now, in_turn=in_turn, idle_elsewhere=False)
        if attempt is not None:
            assert free == 0
            assert attempt.endpoint.spec.burst
            terms = self.policy.regions["eu-de"].burst_of(MODEL)
            assert terms is not None
            server = self.burst._servers[attempt.endpoint_name]
            assert attempt.expected_first_byte_s() >= server.cold_start_s(terms), "a start is no lack of progress"
        else:
            target = self.local.place(context, "home", self.now)
            attempt = target if isinstance(target, LocalAttempt) else None
            assert attempt is None or not attempt.endpoint.spec.burst
        if attempt is not None:
            self.running.append(attempt)


@given(prices, st.frozensets(st.sampled_from(OWN)), steps)
@settings(max_examples=examples(150), deadline=None)
def test_no_request_costs_money_while_a_slot_is_free(
    terms: BurstPool, ready: frozenset[str], happened: list[tuple[str, Any]]
) -> None:
    with TemporaryDirectory() as folder:
        region = RegionOfTwo(Path(folder), terms, ready)
        for kind, what in happened:
            region.step(kind, what)
        for attempt in region.running:
            attempt.settle(region.now, 1.0)
        assert region.burst.used_s[MODEL] >= 0.0
        assert region.burst.cost[MODEL] == pytest.approx(region.burst.used_s[MODEL] * terms.cost_per_second)


def test_free_slots_whose_context_is_too_short_are_not_free_for_a_long_prompt(tmp_path: Path) -> None:
    terms = BurstPool((MODEL,), cost_per_second=0.001, cold_start_s=0.0, idle_s=5.0)
    region = RegionOfTwo(tmp_path, terms, frozenset(OWN))
    region.endpoints.pools[MODEL].contexts = ContextLengths(((OWN[0], 4_096), (OWN[1], 32_768)))
    long, short = region.context(prompt_bytes=40_000), region.context()
    for _ in range(2):
        own = region.local.place(long, "home", region.now)
        assert isinstance(own, LocalAttempt)
        assert own.endpoint_name == OWN[1]
    assert not region.local.has_another(long, frozenset({OWN[1]}))
    for in_turn in (False, True):
        assert region.local.place(long, "home", region.now) is Reason.SATURATED
        assert region.burst.place(long, region.now, in_turn=in_turn, idle_elsewhere=False) is not None
        assert region.burst.place(short, region.now, in_turn=in_turn, idle_elsewhere=False) is None


REGIONS = ("eu-de", "eu-es", "us-east")
views_of_regions = st.fixed_dictionaries(
    {
        name: st.builds(
            RegionView,
            st.sampled_from(RegionState),
            st.booleans(),
            expected_wait_s=st.sampled_from((0.0, 1.0, 30.0)),
            credits=st.sampled_from((0, 0, 0, 1)),
            burst_room=st.sampled_from((0, 1, 5)),
            burst_start_s=st.sampled_from((0.0, 20.0)),
        )
        for name in REGIONS
    }
)
otherwises = st.builds(
    Otherwise, st.sampled_from((0, 0, 0, 1)), st.sampled_from((0.0, 1.0, 100.0, inf)), st.sampled_from((0.5, 60.0, inf))
)


@given(
    views_of_regions,
    st.dictionaries(st.sampled_from(REGIONS), prices),
    st.frozensets(st.sampled_from(REGIONS), min_size=1),
    st.dictionaries(st.sampled_from(REGIONS), st.sampled_from((Reason.SATURATED, Reason.UNREACHABLE)), max_size=2),
    st.builds(
        Closures,
        closed=st.dictionaries(st.sampled_from(REGIONS), st.booleans(), max_size=1),
        limited=st.dictionaries(st.sampled_from(REGIONS), st.just("limit"), max_size=1),
    ),
    otherwises,
    st.booleans(),
)
@settings(max_examples=examples(500), deadline=None)
def test_overflow_uses_a_burst_endpoint_elsewhere_only_where_everything_permits_it(
    views: dict[str, RegionView],
    terms: dict[str, BurstPool],
    permitted: frozenset[str],
    tried: dict[str, Reason],
    closures: Closures,
    otherwise: Otherwise,
    ordered: bool,
) -> None:
    before = policy()
    priced = {name: msgspec.structs.replace(before.regions[name], burst=(pool,)) for name, pool in terms.items()}
    fleet = msgspec.structs.replace(before, regions={**before.regions, **priced})
    if ordered:
        fleet = with_spillover_orders(fleet, {"eu-de": ("us-east", "eu-es")})
    request = RegionRequest("eu-de", MODEL, residency_class(permitted), tried, service_s=2.0)
    chosen = burst_region(fleet, None, request, views, closures, otherwise)
    open_ = {
        name
        for name in permitted - tried.keys()
        if views[name].state not in (RegionState.UNKNOWN, RegionState.DRAINING)
    }
    granting = {name for name in open_ if views[name].state is not RegionState.FAILED and views[name].ready}
    opened = open_ - closures.closed.keys() - closures.limited.keys()
    if chosen is None:
        if otherwise == Otherwise(0, inf, inf) and not any(views[name].credits for name in granting):
            assert not any(views[name].burst_room and name in terms for name in opened - {"eu-de"})
        return
    assert chosen.region in open_ - {"eu-de"}
    assert views[chosen.region].burst_room > 0
    assert (chosen.uses_burst, chosen.spends_credit) == (True, False)
    assert chosen.region in opened or not any(views[name].burst_room for name in opened - {"eu-de"})
    assert otherwise.free_slots == 0
    assert not any(views[name].credits for name in opened & granting)
    assert views[chosen.region].burst_start_s < otherwise.left_s
    seconds = views[chosen.region].burst_start_s + 2.0
    price_s = terms[chosen.region].cost_per_second * seconds * fleet.objective.latency_ms_per_cost / 1000.0
    assert otherwise.wait_s > views[chosen.region].burst_start_s + price_s

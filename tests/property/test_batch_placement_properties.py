"""Batch requests in any fleet: never in a forbidden region, never above the credits, in the cheapest idle region,
egress included."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.health.region_health import RegionState
from penstock.planning.plan import Closed, RegionPlan
from penstock.policy.gpu_price import gpu_price
from penstock.policy.kinds.regions import PriceHours, RegionRole, SpotPool
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts
from penstock.routing.batch_price import BatchWork
from penstock.routing.decision import authorize_at_origin, decide
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionRequest, RegionView, is_usable
from penstock.wire.peer_probe import PeerProbeRequest
from regional_agent.peers.credit_balances import CreditBalances
from tests.property.test_decision_properties import NAMES, allowed_by_hand, facts, policies
from tests.support.examples import examples

BATCH_RESERVE = 1
"""As documented, and not imported: a test fails if a tuned constant changes."""

roles = st.sampled_from((RegionRole.ACTIVE, RegionRole.ACTIVE, RegionRole.ACTIVE, RegionRole.PASSIVE))
prices = st.sampled_from((0.5, 1.0, 2.0))
per_gb = st.sampled_from((0.0, 0.0, 0.5, 1.0))
sizes = st.sampled_from((0.0, 5e8, 1e9))
works = st.builds(BatchWork, st.sampled_from((1800.0, 3600.0)), sizes, sizes)
"""Prices of these amounts are exact."""
spot = st.sampled_from(((), (), (SpotPool(("m",), 0.25),), (SpotPool(("another",), 0.25),)))
price_hours = st.lists(st.builds(PriceHours, prices, st.integers(0, 23), st.integers(1, 24)), max_size=2).map(tuple)


@st.composite
def priced_policies(draw: st.DrawFn) -> Policy:
    policy = draw(policies)
    regions = {
        name: msgspec.structs.replace(
            region,
            cost_per_gpu_hour=draw(prices),
            price_hours=draw(price_hours),
            role=draw(roles),
            spot=draw(spot),
            egress_cost_per_gb=draw(per_gb),
        )
        for name, region in policy.regions.items()
    }
    return msgspec.structs.replace(policy, regions=regions, residency=policy.residency[: draw(st.integers(0, 1))])


mostly_usable = st.sampled_from((*RegionState, *[RegionState.HEALTHY] * 12))
with_room = st.fixed_dictionaries(
    {
        name: st.builds(
            RegionView,
            mostly_usable,
            st.sampled_from((True, True, True, False)),
            credits=st.integers(0, 3),
            batch_room=st.integers(0, 2),
            slots=st.sampled_from((0, 4)),
            in_use=st.integers(0, 4),
        )
        for name in NAMES
    },
)


@given(
    priced_policies(),
    facts,
    with_room,
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([Reason.SATURATED, Reason.UNREACHABLE]), max_size=1),
    st.sampled_from(NAMES),
    st.frozensets(st.sampled_from(NAMES), max_size=2),
    st.integers(0, 7 * 24 - 1),
    works,
)
@settings(max_examples=examples(600))
def test_a_batch_request_is_placed_in_the_cheapest_permitted_region_with_room(
    policy: Policy,
    about: RequestFacts,
    seen: dict[str, RegionView],
    earlier: dict[str, Reason],
    origin: str,
    closed: frozenset[str],
    hour: int,
    work: BatchWork,
) -> None:
    held = authorize_at_origin(policy, origin, "m", about)
    if not isinstance(held, Mask):
        return
    at = hour * 3600.0
    plan = RegionPlan(origin, 1, 1, "", 0.0, (), closed=tuple(Closed(name, "m", False) for name in sorted(closed)))
    request = RegionRequest(origin, "m", held.permitted, earlier, batch_at=at, max_use=0.75, batch_work=work)
    decision = decide(policy, plan, held, request, seen, Random(1))
    admissible = {
        name
        for name, view in seen.items()
        if name in allowed_by_hand(policy, about)
        and name not in earlier
        and name not in closed
        and is_usable(view)
        and view.ready
        and view.batch_room > 0
        and (view.slots == 0 or view.in_use < 3)
    }

    def cost(name: str) -> float:
        """The cost of the request: its GPU hours, its body from the origin, and its response from the region."""
        there, here = policy.regions[name], policy.regions[origin]
        sent = here.egress_cost_per_gb * work.request_bytes + there.egress_cost_per_gb * work.response_bytes
        return gpu_price(policy, name, "m", at) * work.gpu_s / 3600.0 + (sent / 1e9 if name != origin else 0.0)

    if isinstance(decision, Refusal):
        assert not admissible
        assert decision.reason in (Reason.SATURATED, Reason.NONE_READY)
        return
    chosen = decision.choice
    assert chosen.region in admissible
    active = {name for name in admissible if name == origin or policy.regions[name].role is RegionRole.ACTIVE}
    first = active or admissible
    assert chosen.region in first
    assert cost(chosen.region) == min(cost(name) for name in first)
    assert chosen.spends_credit is (chosen.region != origin)
    if chosen.region != origin:
        assert origin not in admissible or cost(origin) > cost(chosen.region), "the origin is chosen at the same cost"
    dearer = {each.what for each in chosen.rejected if each.reason is Reason.COSTS_MORE}
    assert dearer == {name for name in admissible if cost(name) > cost(chosen.region)}


class Receiver:
    """One of a region's agents, of which only the ledger of credits is real."""

    def __init__(self, slots: int, agents: int) -> None:
        self.now, self.pool, self.waits, self.batch_waits = 0.0, SimpleNamespace(in_flight=0, slots=slots), 0, 0
        regions: Any = {"here": None, "a": None, "b": None}
        self.policy = Policy(
            regions=regions, models={}, tenants={}, residency=(), spillover=Spillover(target_utilisation=0.8)
        )
        endpoints: Any = SimpleNamespace(
            pools=defaultdict(lambda: self.pool), groups=SimpleNamespace(coupled=lambda model: frozenset())
        )
        queues: Any = SimpleNamespace(
            waiting=lambda model: self.waits,
            batch_waiting_here=lambda model: self.batch_waits,
            preemptible=lambda model, excluded: 0,
        )
        demand: Any = None
        self.credits = CreditBalances(
            "0",
            endpoints,
            queues,
            demand,
            agents_here=lambda: tuple(str(number) for number in range(agents)),
            clock=lambda: self.now,
        )

    def ask(self, origin: str, wanted: int, batch_wanted: int) -> tuple[int, int]:
        request = PeerProbeRequest(origin, "x", "here", "", 0.0, {"m": wanted}, 0, {"m": batch_wanted})
        credits = self.credits.grant("m", request, self.policy, None)
        return credits, self.credits.grant_batch("m", request, self.policy, None)

    def batch_granted(self) -> int:
        return self.credits._batch_grants["m"].outstanding(self.now) if self.credits._batch_grants else 0


steps = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 30),
        st.integers(0, 30),
        st.integers(0, 40),
        st.integers(0, 5),
        st.integers(0, 5),
        st.floats(0, 1),
    ),
    max_size=20,
)


@given(st.integers(0, 40), st.integers(1, 4), steps)
@settings(max_examples=examples(200))
def test_batch_credits_are_what_credits_with_a_priority_leave_and_change_none_of_them(
    slots: int, agents: int, history: list[tuple[str, int, int, int, int, int, float]]
) -> None:
    here, without = Receiver(slots, agents), Receiver(slots, agents)
    for origin, wanted, batch_wanted, in_flight, waits, batch_waits, gap_s in history:
        for receiver in (here, without):
            receiver.now += gap_s
            receiver.pool.in_flight, receiver.waits, receiver.batch_waits = in_flight, waits, batch_waits
        granted, for_batch = here.ask(origin, wanted, batch_wanted)
        assert granted == without.ask(origin, wanted, 0)[0], "batch credits take no credit of other requests"
        assert 0 <= for_batch <= batch_wanted
        headroom = here.credits.headroom("m", "here", here.policy, None)
        if for_batch:
            outstanding = here.credits.granted("m") + here.batch_granted()
            assert outstanding + batch_waits <= headroom
            free = int(slots * 0.8) - in_flight - waits
            assert agents > 1 or outstanding + batch_waits + BATCH_RESERVE <= free

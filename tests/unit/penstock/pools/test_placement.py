"""The expected time of a placement at its endpoint, and the work for which its tenant is charged."""

from math import inf

import pytest

from penstock.admission.work_counters import ModelCounters, WorkCounters
from penstock.answers.token_counts import Usage
from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.pools.placement import Placement, WorkEstimate
from penstock.pools.pool_accounting import EndpointAccount
from penstock.routing.endpoint_selection import EndpointView


@pytest.mark.parametrize(
    ("streaming", "in_flight", "expected_s"),
    [
        (True, 0, 2.0),
        (False, 0, 2.0 + 6.0),
        (True, 4, 2.0 + 10.0 * 5 / 4),  # no free slot, so the requests of the endpoint precede this one
    ],
)
def test_the_first_byte_is_expected_after_prefill_and_of_a_whole_response_after_decode(
    streaming: bool, in_flight: int, expected_s: float
) -> None:
    view = EndpointView("gpu-1", slots=4, limit=8, ready=True, in_flight=in_flight, service_s=10.0)
    estimate = WorkEstimate("tenant", "m", Cost(), CostInputs(0), Work(2.0, 6.0), streaming)
    placement = Placement(EndpointAccount(view, ""), estimate, 0.0, 100.0)
    assert placement.expected_first_byte_s() == pytest.approx(expected_s)


TOKENS = Cost(CostUnit.TOKEN, 0.001, 0.01)


@pytest.mark.parametrize(
    ("cost", "ask", "streaming", "longest_s"),
    [
        (TOKENS, CostInputs(0), False, inf),
        (TOKENS, CostInputs(0, max_tokens=6000), False, 8.0 * 10),
        (TOKENS, CostInputs(0, offers_tools=True), True, inf),
        (TOKENS, CostInputs(0), True, 0.0),
        (TOKENS, CostInputs(0, answers=False), False, 0.0),
        (Cost(), CostInputs(0), False, inf),
        (Cost(CostUnit.AUDIO_SECOND), CostInputs(0, answers=False), False, inf),
        (Cost(), CostInputs(0), True, 0.0),
    ],
)
def test_what_is_sent_at_its_end_alone_may_take_long(
    cost: Cost, ask: CostInputs, streaming: bool, longest_s: float
) -> None:
    view = EndpointView("gpu-1", slots=4, limit=8, ready=True)
    estimate = WorkEstimate("t", "m", cost, ask, Work(2.0, 6.0), streaming)
    awaited = Placement(EndpointAccount(view, ""), estimate, 0.0, 100.0).awaited()
    assert (awaited.longest_s, awaited.is_text) == (pytest.approx(longest_s), cost is TOKENS)


@pytest.mark.parametrize(
    ("cost", "slots", "service_s", "usage", "used_s"),
    [
        (TOKENS, 4, 30.0, Usage(1000, 700, 200), 0.8 + 7.0),
        (TOKENS, 1, 30.0, None, 8.0),
        (TOKENS, 4, None, None, 3.0),  # the client left after 3 s
        (TOKENS, 4, None, Usage(1000, 700), 3.0),  # other endpoints generated a part of the answer
        (Cost(CostUnit.REQUEST), 1, 12.0, None, 12.0),
        (Cost(CostUnit.REQUEST), 4, 12.0, None, 8.0),  # the time of a slot is not the time of the GPU
    ],
)
def test_the_tenant_is_charged_for_what_the_request_used(
    cost: Cost, slots: int, service_s: float | None, usage: Usage | None, used_s: float
) -> None:
    view = EndpointView("gpu-1", slots=slots, limit=slots, ready=True)
    placement = Placement(
        EndpointAccount(view, ""), WorkEstimate("t", "m", cost, CostInputs(0), Work(2.0, 6.0), True), 0.0, 100.0
    )
    counters = WorkCounters()
    other = counters.start("other", 1.0, 1.0)
    counter = placement.counter = counters.start("t", 2.0, 8.0)
    before_s, placement.charged_s = counter.received_s - 4.0, 8.0
    placement.end_charge(103.0, service_s, usage)
    placement.end_charge(500.0, service_s, usage)
    assert counter.received_s == pytest.approx(before_s + used_s / 2.0)
    assert counters.running == other.running == 1


def test_what_an_estimate_lacked_before_a_tenant_joined_does_not_count_against_the_tenants() -> None:
    """Alone from 100 s, shared from 106 s, ended at 108 s: a quarter of the 4 s that the estimate lacked is charged."""
    view = EndpointView("gpu-1", slots=1, limit=1, ready=True)
    estimate = WorkEstimate("t", "m", Cost(CostUnit.REQUEST), CostInputs(0), Work(0.0, 4.0), True)
    placement, counters = Placement(EndpointAccount(view, ""), estimate, 0.0, 100.0), ModelCounters()
    counter = placement.counter = counters.start(0, "t", 1.0, 4.0, 100.0)
    placement.charged_s = 4.0
    counters.start(0, "newcomer", 1.0, 1.0, 106.0)
    counters.start(0, "t", 1.0, 1.0, 107.0)
    assert counters.of(0).shared_since == 106.0
    before_s = counter.received_s
    placement.end_charge(108.0, 8.0, None)
    assert counter.received_s - before_s == pytest.approx((8.0 - 4.0) * (108.0 - 106.0) / (108.0 - 100.0))


@pytest.mark.parametrize(
    ("cost", "streaming", "in_flight", "decode_s", "completions", "tokens"),
    [
        (TOKENS, False, 0, 6.0, 4, 600.0),
        (TOKENS, False, 4, 6.0, 4, 600.0),  # the requests of the endpoint precede this one
        (TOKENS, False, 0, 6.0, 3, 0.0),  # the speed is not learned
        (TOKENS, True, 0, 6.0, 4, 0.0),
        (TOKENS, False, 0, 0.0, 4, 0.0),
        (Cost(), False, 0, 6.0, 4, 0.0),
    ],
)
def test_the_tokens_of_a_whole_answer_follow_from_the_speed_of_its_endpoint(
    cost: Cost, streaming: bool, in_flight: int, decode_s: float, completions: int, tokens: float
) -> None:
    view = EndpointView("gpu-1", slots=4, limit=8, ready=True, in_flight=in_flight, service_s=10.0)
    account = EndpointAccount(view, "")
    for _ in range(completions):
        account.learner.saw_end(1.0, 2.0, 1.0, 0.0)
    estimate = WorkEstimate("tenant", "m", cost, CostInputs(0), Work(2.0, decode_s), streaming)
    placement = Placement(account, estimate, 0.0, 100.0)
    ends_at = 100.0 + placement.expected_first_byte_s()
    assert placement.output_by(ends_at) == pytest.approx(tokens)
    lasts_s = placement.decode_us / 1e6
    assert placement.output_by(ends_at + lasts_s) == pytest.approx(2.0 * tokens)

"""The expected time of a placement at its endpoint."""

import pytest

from penstock.cost.work import CostInputs, Work
from penstock.policy.kinds.models import Cost
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

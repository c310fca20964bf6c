"""What the caches of other regions spare a request: less the wait of their holder, and less the price of egress."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.models import Model
from penstock.policy.policy import Policy
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.prefixes.prefix_sketch import Held, holder_wait_s
from penstock.routing.prefixes.region_prefixes import PromptWork, egress_s, spared_elsewhere
from tests.support.planet import MODEL, policy

WORK = PromptWork(MODEL, block_s=0.1, prefill_s=2.0)
WAITS_S = {"eu-es": 0.5, "us-east": 0.0}


def priced(origin: float, server: float) -> Policy:
    """Regions with egress prices, and a model with bodies of 1 MB and responses of 2 MB."""
    fleet = policy()
    regions = {name: replace(region, egress_cost_per_gb=server) for name, region in fleet.regions.items()}
    regions["eu-de"] = replace(regions["eu-de"], egress_cost_per_gb=origin)
    return replace(fleet, regions=regions, models={MODEL: Model(MODEL, request_bytes=1e6, response_bytes=2e6)})


def test_a_region_spares_the_prefill_of_what_it_holds() -> None:
    held = {"eu-es": Held(8, 0.7), "us-east": Held(64, 0.0)}
    found = spared_elsewhere(priced(0.0, 0.0), "eu-de", WORK, held, WAITS_S)
    assert found == {"eu-es": pytest.approx(0.8 - 0.2), "us-east": 2.0}
    assert spared_elsewhere(priced(0.0, 0.0), "eu-de", WORK._replace(model="gone"), held, WAITS_S) == {}
    # The holder is busy for as long as the prefill would take.
    assert spared_elsewhere(priced(0.0, 0.0), "eu-de", WORK, {"eu-es": Held(8, 1.3)}, WAITS_S) == {}


def test_egress_counts_as_latency_by_the_objective() -> None:
    # 0.01 for a GB of the body, and 0.02 for a GB of the response, at 20 s for a unit of cost.
    fleet = priced(0.01, 0.02)
    assert egress_s(fleet, MODEL, "eu-de", "eu-es") == pytest.approx((0.01 * 1e-3 + 0.02 * 2e-3) * 20.0)
    held = {"eu-es": Held(1, 0.0), "us-east": Held(8, 0.0)}
    assert spared_elsewhere(fleet, "eu-de", WORK, held, WAITS_S) == {
        "eu-es": pytest.approx(0.1 - 0.001),
        "us-east": pytest.approx(0.8 - 0.001),
    }
    expensive = priced(5.0, 1.0)
    assert spared_elsewhere(expensive, "eu-de", WORK, held, WAITS_S).keys() == {"us-east"}


def test_the_soonest_endpoint_with_a_beginning_counts() -> None:
    def view(name: str, busy_s: float, **fields: object) -> EndpointView:
        found = EndpointView(name, 4, 8, service_s=busy_s, **{"ready": True, **fields})  # type: ignore[arg-type]
        found.score_coefficients = (busy_s, 0.0, 0.0)
        return found

    assert holder_wait_s([]) is None
    assert holder_wait_s([view("a", 3.0), view("b", 2.0)]) == 2.0
    lost = [view("draining", 0.1, draining=True), view("unready", 0.1, ready=False)]
    assert holder_wait_s([*lost, view("a", 3.0)]) == 3.0
    assert holder_wait_s(lost) is None
    full = EndpointView("full", 4, 8, ready=True, in_flight=8, service_s=1.5)
    assert holder_wait_s([view("a", 3.0), full]) == 1.5

import numpy as np
import pytest

from penstock.planning.egress_cost import egress_cost
from penstock.policy.kinds.models import Model

CHAT = Model("chat", request_bytes=2_000, response_bytes=6_000)


def test_a_request_leaves_the_region_that_reads_it_and_its_answer_the_one_that_serves_it() -> None:
    assert egress_cost(CHAT, 0.09, 0.12) == pytest.approx((0.09 * 2_000 + 0.12 * 6_000) / 1e9)
    assert egress_cost(CHAT, 0.0, 0.12) == pytest.approx(0.12 * 6_000 / 1e9)


def test_every_pair_of_regions_costs_what_it_costs_alone() -> None:
    prices = np.array([0.0, 0.05, 0.2])
    together = egress_cost(CHAT, prices[:, None], prices[None, :])
    for entry, out in enumerate(prices.tolist()):
        for server, back in enumerate(prices.tolist()):
            assert together[entry, server] == egress_cost(CHAT, out, back)

"""Mean sizes of messages."""

from __future__ import annotations

from math import inf, nan

import pytest

from penstock.fleet.counts.message_bytes import MAX_MODELS, BytesTally, MessageBytes, prior_bytes
from penstock.policy.kinds.models import Model

MEMORY_REQUESTS, PRIOR_REQUESTS = 1000, 20
"""As documented, and not imported: a test fails if a tuned constant changes."""


def test_a_mean_follows_the_newest_requests_and_the_number_of_models_is_bounded() -> None:
    tally = BytesTally()
    for size in (100, 200, 300):
        tally.count("m", size, 10 * size)
    assert tally.report() == (MessageBytes("m", 3, 200.0, 2000.0),)
    for _ in range(6 * MEMORY_REQUESTS):
        tally.count("m", 1000, 1)
    (found,) = tally.report()
    assert found.requests == MEMORY_REQUESTS
    assert 990.0 < found.request_bytes <= 1000.0
    for number in range(MAX_MODELS + 5):
        tally.count(f"m-{number}", 1, 1)
    assert len(tally.report()) == MAX_MODELS


def test_few_requests_count_little_beside_the_sizes_of_the_policy() -> None:
    tally, model = BytesTally(), Model("m", request_bytes=1000.0, response_bytes=0.0)
    assert tally.of(model) == prior_bytes(model)
    for _ in range(PRIOR_REQUESTS):
        tally.count("m", 3000, 10)
    assert tally.of(model) == MessageBytes("m", 2 * PRIOR_REQUESTS, 2000.0, 5.0)


@pytest.mark.parametrize(
    "sizes", [MessageBytes("m", -1, 1.0, 1.0), MessageBytes("m", 1, nan, 1.0), MessageBytes("m", 1, 1.0, inf)]
)
def test_impossible_sizes_are_recognised(sizes: MessageBytes) -> None:
    assert not sizes.is_possible
    assert MessageBytes("m", 1, 0.0, 1e9).is_possible

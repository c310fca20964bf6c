"""What a region publishes of the prompts that its requests share: only what is shared, recent and permitted."""

from __future__ import annotations

from itertools import permutations

import pytest

from penstock.routing.prefixes.hot_prefixes import (
    HotPrefixes,
)
from penstock.routing.prefixes.prefix_sketch import (
    EMPTY,
    MAX_SKETCH_BYTES,
    NOTHING_HELD,
    Held,
    decode_sketch,
    digest_of,
    encode_sketch,
    held_in,
    spared_s,
)

EVICTION_SAMPLE = 8
HELD_S, SCOPE_SHIFT = 300.0, 33
"""As documented, and not imported: a test fails if a tuned constant changes."""

BOTH, EU = frozenset({"eu", "us"}), frozenset({"eu"})
PROMPT = list(range(100, 170))


def test_what_a_single_request_had_is_not_published() -> None:
    hot, began = HotPrefixes(), 5_000.0
    hot.sent(PROMPT[:9], BOTH, began)
    assert hot.hottest("eu", 10, began) == []
    hot.sent(PROMPT[:4], BOTH, began + 1.0)
    # The beginnings of 4 and 8 blocks were recorded; that of 4 had two requests.
    assert (hot.hottest("eu", 10, began + 1.0), len(hot)) == ([PROMPT[3]], 2)
    # By then it has faded to 1.5 requests.
    assert hot.hottest("eu", 10, began + 1.0 + HELD_S / 4) == [PROMPT[3]]
    assert hot.hottest("eu", 10, began + 1.0 + HELD_S / 3) == []


@pytest.mark.parametrize("order", list(permutations((BOTH, EU, frozenset({"eu", "jp"})))))
def test_a_beginning_is_published_only_where_every_request_that_had_it_may_be_processed(
    order: tuple[frozenset[str], ...],
) -> None:
    hot = HotPrefixes()
    for permitted in order:
        hot.sent(PROMPT[:4], permitted, 0.0)
    assert hot.hottest("eu", 10, 0.0) == [PROMPT[3]]
    assert hot.hottest("us", 10, 0.0) == hot.hottest("jp", 10, 0.0) == []


def test_scopes_have_equal_places_and_the_most_requested_beginnings_come_first() -> None:
    hot = HotPrefixes()
    other = 7 << SCOPE_SHIFT
    for key, requests in ((1, 9), (2, 5), (3, 7), (other, 2), (other + 1, 3)):
        for _ in range(requests):
            hot.sent([0, 0, 0, key], BOTH, 0.0)
    assert hot.hottest("eu", 10, 0.0) == [1, other + 1, 3, other, 2]
    assert hot.hottest("eu", 3, 0.0) == [1, other + 1, 3]


def test_of_the_oldest_entries_the_one_with_the_fewest_requests_is_evicted() -> None:
    hot = HotPrefixes(most=EVICTION_SAMPLE + 1)
    for key, requests in enumerate((3, 3, 3, 3, 3, 3, 3, 2, 1)):
        for _ in range(requests):
            hot.sent([0, 0, 0, key], BOTH, 0.0)
    hot.sent([0, 0, 0, 99], BOTH, 0.0)
    assert len(hot) == EVICTION_SAMPLE + 1
    assert set(hot.hottest("eu", 99, 0.0)) == set(range(7)), "8 has fewer requests than 7, and is not among the oldest"
    hot.sent([0, 0, 0, 8], BOTH, 0.0)
    assert 8 in hot.hottest("eu", 99, 0.0)


def test_a_sketch_is_bounded_and_read_back() -> None:
    waits_s = {key: key * 0.05 for key in range(600, 0, -1)}
    data = encode_sketch(waits_s)
    assert len(data) == MAX_SKETCH_BYTES == 512 * 10
    assert decode_sketch(data) == {key: key * 0.05 for key in range(1, 513)}
    assert decode_sketch(encode_sketch({1: -3.0, 2: 0.12, 3: 1e9})) == {1: 0.0, 2: 2 * 0.05, 3: 65_535 * 0.05}
    assert decode_sketch(data + bytes(10)) is None
    assert decode_sketch(data[:-1]) is None
    assert decode_sketch(encode_sketch(EMPTY)) == {}
    assert digest_of(b"") == 0
    assert digest_of(data) != 0


def test_the_longest_beginning_in_a_sketch_counts() -> None:
    sketch = {PROMPT[3]: 1.0, PROMPT[15]: 2.0, PROMPT[8]: 0.0}
    assert held_in(sketch, PROMPT) == Held(16, 2.0)
    assert held_in(sketch, PROMPT[:15]) == Held(4, 1.0)
    assert held_in(sketch, PROMPT[:3]) == NOTHING_HELD == Held(0, 0.0)
    assert spared_s(Held(16, 2.0), 0.1, 9.0, 0.5) == 1.6 - 1.5
    assert spared_s(Held(16, 2.0), 0.1, 1.0, 2.5) == 1.0
    assert spared_s(Held(16, 9.0), 0.1, 9.0, 0.5) == 0.0

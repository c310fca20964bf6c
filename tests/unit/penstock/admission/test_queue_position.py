from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.queue_position import QueuePosition, queue_positions

ALL = frozenset("abcd")
ANY = frozenset[str]()
SMALL = frozenset("ab")
"""Endpoints that are too small for long prompts."""


@pytest.mark.parametrize(
    ("unable", "waiting", "ahead", "expected"),
    [
        (ANY, {}, 3, [QueuePosition(ANY, 3)]),
        (SMALL, {}, 3, [QueuePosition(SMALL, 3)]),
        # Long prompts leave the small endpoints free.
        (ANY, {SMALL: 5}, 6, [QueuePosition(ANY, 6), QueuePosition(frozenset("cd"), 1)]),
        # A long prompt waits behind long and short ones alike.
        (SMALL, {SMALL: 5}, 6, [QueuePosition(SMALL, 6)]),
        # Requests that use other endpoints alone do not count.
        (SMALL, {frozenset("cd"): 4}, 5, [QueuePosition(SMALL, 1)]),
        # Overlapping sets leave what neither of the others can use.
        (frozenset("a"), {frozenset("ab"): 2, frozenset("acd"): 3}, 5, [QueuePosition(frozenset("a"), 5)]),
        (
            ANY,
            {frozenset("abc"): 2, frozenset("abd"): 3},
            5,
            [QueuePosition(ANY, 5), QueuePosition(frozenset("cd"), 0)],
        ),
        (ANY, {SMALL: 5}, 2, [QueuePosition(ANY, 2), QueuePosition(frozenset("cd"), 0)]),
    ],
)
def test_queue_positions(
    unable: frozenset[str], waiting: dict[frozenset[str], int], ahead: int, expected: list[QueuePosition]
) -> None:
    assert list(queue_positions(ALL, unable, waiting, ahead)) == expected


SETS = [frozenset(name for name, has in zip("abcd", bits, strict=True) if has) for bits in product((0, 1), repeat=4)]


@given(
    unable=st.sampled_from(SETS[:-1]),
    waiting=st.dictionaries(st.sampled_from(SETS[1:]), st.integers(1, 5), max_size=4),
    others=st.integers(0, 5),
)
def test_each_set_serves_the_request_and_counts_all_who_can_use_it(
    unable: frozenset[str], waiting: dict[frozenset[str], int], others: int
) -> None:
    ahead = others + sum(waiting.values())
    first, *further = queue_positions(ALL, unable, waiting, ahead)
    assert first.without == unable
    for position in (first, *further):
        assert unable <= position.without < ALL
        here = ALL - position.without
        competing = others + sum(count for names, count in waiting.items() if here - names)
        assert position.ahead == competing

"""The affinity index: the prompts and sessions of endpoints, their expiry, and the bound of the index."""

from __future__ import annotations

import tracemalloc
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.affinity import NOTHING, AffinityIndex, prefix_keys, session_key

BLOCK_BYTES, MAX_BLOCKS, MAX_HOLDERS, MAX_UNPUBLISHED = 1_024, 64, 16, 4_096
HELD_S, NOTED_S, PUBLISHED_AGAIN_S, SESSION_GAP_S, STORING_S = 300.0, 1.0, 60, 0.5, 2.0
SESSION_BIT = 1 << 32
"""As documented, and not imported: a test fails if a tuned constant changes."""


def keys(text: str, scope: str = "t/m") -> list[int]:
    return prefix_keys(scope, memoryview(text.encode()))


SYSTEM = "s" * BLOCK_BYTES * 2


def test_equal_beginnings_have_equal_keys_as_far_as_they_are_equal() -> None:
    a_keys, b_keys = keys(SYSTEM + "a" * BLOCK_BYTES), keys(SYSTEM + "b" * 2 * BLOCK_BYTES)
    assert a_keys[:2] == b_keys[:2]
    assert a_keys[2] != b_keys[2]
    assert keys("x" * (BLOCK_BYTES - 1)) == []
    assert len(keys("x" * BLOCK_BYTES * (MAX_BLOCKS + 9))) == MAX_BLOCKS + 2
    assert len(keys("x" * BLOCK_BYTES * 10_000)) == MAX_BLOCKS + 96


@pytest.mark.parametrize(
    ("kilobytes", "blocks"), [(63, 63), (64, 64), (67, 64), (68, 68), (100, 100), (447, 444), (900, 448)]
)
def test_nearly_all_of_a_long_prompt_counts_as_held(kilobytes: int, blocks: int) -> None:
    holdings, prompt = AffinityIndex(), "x" * 1_000_000
    before, after = keys(prompt[: kilobytes * BLOCK_BYTES]), keys(prompt)
    assert after[: len(before)] == before
    holdings.sent("a", before, None, "m", 0.0)
    assert holdings.held(after, None, 1.0).blocks == {"a": blocks}
    other = keys(prompt[: 65 * BLOCK_BYTES] + "y" * 900_000)
    assert holdings.held(other, None, 1.0).blocks == {"a": min(blocks, 64)}


def test_a_block_counts_only_behind_equal_ones_and_within_its_scope() -> None:
    assert keys("ab" * BLOCK_BYTES)[1] != keys("x" * BLOCK_BYTES + "ab" * (BLOCK_BYTES // 2))[1]
    assert keys(SYSTEM, "t/m")[0] != keys(SYSTEM, "u/m")[0]


def test_holders_are_known_with_how_much_they_hold() -> None:
    holdings = AffinityIndex()
    holdings.sent("long", keys(SYSTEM + "a" * BLOCK_BYTES), None, "m", 0.0)
    holdings.sent("short", keys(SYSTEM), None, "m", 1.0)
    held = holdings.held(keys(SYSTEM + "a" * BLOCK_BYTES), None, 2.0)
    assert held.blocks == {"long": 3, "short": 2}
    assert held.gap_s == 0.0
    assert holdings.held(keys("other" * BLOCK_BYTES), None, 2.0) is NOTHING


def test_a_session_stays_where_it_was_last() -> None:
    holdings, session = AffinityIndex(), session_key("t/m", b"chat-1")
    holdings.sent("a", [], session, "m", 0.0)
    holdings.sent("b", [], session, "m", 1.0)
    held = holdings.held([], session, 2.0)
    assert (held.blocks, held.gap_s) == ({"b": 0}, SESSION_GAP_S)
    assert session != session_key("u/m", b"chat-1")


def test_what_is_old_is_not_believed_and_what_is_gone_is_forgotten() -> None:
    holdings = AffinityIndex()
    holdings.sent("a", keys(SYSTEM), session_key("t/m", b"x"), "m", 0.0)
    assert holdings.held(keys(SYSTEM), None, HELD_S - 1).blocks == {"a": 2}
    assert holdings.held(keys(SYSTEM), None, HELD_S + 1) is NOTHING
    assert holdings.running("m", 1.0) == ["a"]


def test_memory_is_bounded_and_drops_what_was_used_longest_ago() -> None:
    holdings = AffinityIndex(most=4)
    first, second = keys("a" * 3 * BLOCK_BYTES), keys("b" * 3 * BLOCK_BYTES)
    holdings.sent("a", first, None, "m", 0.0)
    holdings.sent("b", second, None, "m", 1.0)
    assert len(holdings) == 4
    assert holdings.held(first, None, 1.0) is NOTHING
    assert holdings.held(second, None, 1.0).blocks == {"b": 3}
    many = AffinityIndex()
    for n in range(2 * MAX_HOLDERS):
        many.sent(f"e{n}", keys(SYSTEM), None, "m", float(n))
    last = 2 * MAX_HOLDERS - 1
    latest = [f"e{n}" for n in range(last, last - MAX_HOLDERS, -1)]
    assert list(many.held(keys(SYSTEM), None, float(last)).blocks) == latest


def test_another_agent_holds_what_was_published_to_it_and_nothing_twice() -> None:
    index, receiver = AffinityIndex(), AffinityIndex()
    index.publishes = True
    prompt, session = keys(SYSTEM), session_key("t/m", b"chat-1")
    index.sent("a", prompt, session, "m", 1.0)
    index.sent("a", prompt, session, "m", 3.0)
    index.sent("b", prompt, None, "m", 4.0)
    published = index.take_unpublished()
    assert published == {"a": [*prompt, session], "b": prompt}
    for endpoint, noted in published.items():
        receiver.receive(endpoint, noted, 2.0)
    assert receiver.held(prompt, None, 5.0).blocks == {"a": 2, "b": 2}
    assert receiver.held([], session, 5.0).blocks == {"a": 0}
    assert receiver.held(prompt, None, 2.0 + HELD_S) is NOTHING
    assert receiver.take_unpublished() == index.take_unpublished() == {}
    index.sent("a", prompt, None, "m", 4.0 + PUBLISHED_AGAIN_S)
    assert index.take_unpublished() == {"a": prompt}


def test_any_number_of_session_names_takes_the_memory_of_the_index() -> None:
    index, sizes_bytes = AffinityIndex(most=2_000), []
    index.publishes = True
    tracemalloc.start()
    try:
        for number in range(60_000):
            index.sent("gpu-0", [], session_key("t/m", b"%d" % number), "m", float(number))
            if number % 20_000 == 19_999:
                sizes_bytes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(index) == 2_000
    assert max(sizes_bytes) < 1.05 * min(sizes_bytes)


def test_what_waits_to_be_published_is_bounded() -> None:
    index = AffinityIndex()
    index.publishes = True
    index.sent("a", range(2 * MAX_UNPUBLISHED), None, "m", 0.0)
    assert len(index.take_unpublished()["a"]) == MAX_UNPUBLISHED


def test_an_older_note_does_not_make_a_younger_one_older() -> None:
    index = AffinityIndex()
    index.sent("a", keys(SYSTEM), None, "m", 100.0)
    index.receive("b", keys(SYSTEM), 50.0)
    index.receive("a", keys(SYSTEM), 50.0)
    assert set(index.held(keys(SYSTEM), None, 99.0 + HELD_S).blocks) == {"a", "b"}


def test_an_older_record_of_another_agent_does_not_move_a_session() -> None:
    index, session = AffinityIndex(), session_key("t/m", b"chat-1")
    index.sent("new", [], session, "m", 100.0)
    index.receive("old", [session], 90.0)
    assert index.held([], session, 101.0).blocks == {"new": 0}
    many = AffinityIndex()
    many.sent("new", keys(SYSTEM), session, "m", 100.0)
    for n in range(2 * MAX_HOLDERS):
        many.receive(f"e{n}", [*keys(SYSTEM), session], 90.0)
    assert many.held([], session, 101.0).blocks == {"new": 0}
    held = many.held(keys(SYSTEM), None, 101.0).blocks
    assert held["new"] == 2
    assert len(held) == MAX_HOLDERS


NOTES = st.lists(
    st.tuples(
        st.sampled_from("abcdef"), st.lists(st.integers(0, 3), max_size=5), st.sampled_from([0.0, 0.4, 2.0, HELD_S])
    ),
    max_size=12,
)


@given(NOTES, st.lists(st.integers(0, 3), max_size=6))
def test_an_endpoint_holds_the_blocks_up_to_the_first_that_it_was_not_sent(
    notes: list[tuple[str, list[int], float]], asked: list[int]
) -> None:
    holdings, now = AffinityIndex(), 0.0
    for endpoint, prefix, passes_s in notes:
        holdings.sent(endpoint, prefix, None, "m", now)
        for key in prefix:
            assert endpoint in holdings._names(key, now), "the endpoint that received it last holds it"
        now += passes_s
    blocks = {}
    for endpoint in "abcdef":
        missing = (at for at, key in enumerate(asked) if endpoint not in holdings._names(key, now))
        blocks[endpoint] = next(missing, len(asked))
    assert holdings.held(asked, None, now).blocks == {name: count for name, count in blocks.items() if count}


def test_endpoints_that_come_and_go_for_ever_are_not_remembered_for_ever() -> None:
    holdings = AffinityIndex()
    for second in range(3 * int(HELD_S)):
        holdings.sent(f"pod-{second}", [], None, "m", second)
        holdings.sent("stays", [], None, "m", second)
    assert len(holdings._models) <= HELD_S + 1
    assert "stays" in holdings.running("m", 3 * HELD_S)
    assert holdings.running("m", 4 * HELD_S) == []


def test_a_block_is_recorded_again_only_after_some_time_or_for_another_endpoint() -> None:
    index, prompt = AffinityIndex(), keys(SYSTEM)
    index.sent("a", prompt, None, "m", 100.0)
    index.sent("a", prompt, None, "m", 100.0 + NOTED_S - 0.1)
    assert index.held(prompt, None, 99.9 + HELD_S).blocks == {"a": 2}
    assert index.held(prompt, None, 100.0 + HELD_S) is NOTHING, "the second request was recorded with the first"
    index.sent("a", prompt, None, "m", 100.0 + NOTED_S)
    assert index.held(prompt, None, 100.0 + HELD_S).blocks == {"a": 2}
    index.sent("b", prompt, None, "m", 100.1 + NOTED_S)
    assert index.held(prompt, None, 100.0 + NOTED_S + HELD_S).blocks == {"b": 2, "a": 2}


def test_what_is_published_again_is_new_or_of_another_interval() -> None:
    index = AffinityIndex()
    index.publishes = True
    index.sent("a", [1], None, "m", 10.0)
    index.sent("a", [1], None, "m", PUBLISHED_AGAIN_S - 1.0)
    assert index.take_unpublished() == {"a": [1]}
    index.sent("b", [1], None, "m", PUBLISHED_AGAIN_S - 0.9)
    assert index.take_unpublished() == {"b": [1]}
    index.sent("a", [1], None, "m", PUBLISHED_AGAIN_S + 1.0)
    assert index.take_unpublished() == {"a": [1]}
    unpublished = AffinityIndex()
    unpublished.sent("a", [1], None, "m", 0.0)
    assert unpublished.take_unpublished() == {}


def test_the_models_of_endpoints_are_those_of_their_last_requests() -> None:
    index = AffinityIndex()
    index.sent("a", [], None, "m", 0.0)
    index.sent("b", [], None, "m", 1.0)
    index.sent("a", [], None, "other", 2.0)
    assert (index.running("m", 3.0), index.running("other", 3.0)) == (["b"], ["a"])
    assert index.running("m", 1.0 + HELD_S - 0.1) == ["b"]
    assert index.running("m", 1.0 + HELD_S) == []
    index.sent("c", [], None, "m", 1.0 + HELD_S)
    assert list(index._models) == ["a", "c"], "the oldest is removed with the next request"


def test_keys_of_sessions_differ_from_those_of_all_prefixes() -> None:
    assert not any(key & SESSION_BIT for key in keys(SYSTEM * 16))
    assert session_key("t/m", b"chat-1") & SESSION_BIT
    assert max(session_key(f"tenant-{number}/m", b"chat-1") for number in range(1000)) < 1 << 62


def forged(scope: str, wanted: int) -> str:
    """A prompt of one block whose checksum, within a scope, has the bits of `wanted`, as a tenant can write it."""
    beginning, states = b"x" * (BLOCK_BYTES - 4), {}
    # The checksum is linear in its last four bytes: each bit of them flips the same bits of the checksum.
    zero = crc32(beginning + bytes(4), crc32(scope.encode()))
    for bit in range(32):
        flips = crc32(beginning + (1 << bit).to_bytes(4, "little"), crc32(scope.encode())) ^ zero
        chosen = 1 << bit
        while flips and (top := flips.bit_length()) in states:
            flips, chosen = flips ^ states[top][0], chosen ^ states[top][1]
        states[flips.bit_length()] = (flips, chosen)
    left, last = zero ^ wanted, 0
    while left:
        flips, chosen = states[left.bit_length()]
        left, last = left ^ flips, last ^ chosen
    return (beginning + last.to_bytes(4, "little")).decode("latin-1")


def test_a_tenant_that_forges_checksums_reaches_no_key_of_another_tenant() -> None:
    index, theirs = AffinityIndex(), keys(SYSTEM, "victim/m")
    prompt = forged("attacker/m", theirs[0] & 0xFFFFFFFF).encode("latin-1")
    ours = prefix_keys("attacker/m", memoryview(prompt))
    assert ours[0] & 0xFFFFFFFF == theirs[0] & 0xFFFFFFFF, "the checksums collide"
    index.sent("a", theirs, None, "m", 0.0)
    assert index.held(ours, None, 1.0) is NOTHING, "the attacker learns nothing of the prompts of others"
    index.sent("b", ours, None, "m", 1.0)
    assert index.held(theirs, None, 2.0).blocks == {"a": len(theirs)}, "and sends their requests nowhere"


def test_one_session_name_of_two_tenants_has_two_keys() -> None:
    assert len({session_key(f"{tenant}/{model}", b"1") for tenant in "ab" for model in "mn"}) == 4


class Unstored:
    """Engine events of every endpoint, which report no block."""

    def __init__(self, *endpoints: str) -> None:
        self.endpoints = dict.fromkeys(endpoints)

    def holds(self, endpoint: str, key: int) -> bool | None:
        return False if endpoint in self.endpoints else None


def test_an_engine_may_not_have_stored_a_prompt_yet_that_it_was_just_sent() -> None:
    index, prompt = AffinityIndex(), keys(SYSTEM)
    index.exact = Unstored("a", "b")  # type: ignore[assignment]
    index.sent("b", prompt, None, "m", 99.0)
    index.sent("a", prompt, None, "m", 100.0)
    assert index.held(prompt, None, 100.0 + STORING_S - 0.1).blocks == {"a": 2}, "b had the time to store it"
    assert index.held(prompt, None, 100.0 + STORING_S) is NOTHING
    index.sent("silent", prompt, None, "m", 100.0)
    assert index.held(prompt, None, 99.0 + HELD_S).blocks == {"silent": 2}, "without events the estimate applies"


def test_a_later_block_counts_only_after_all_blocks_before_it() -> None:
    class Stored(Unstored):
        def holds(self, endpoint: str, key: int) -> bool | None:
            return (endpoint, key) != ("a", 1)

    index = AffinityIndex()
    for endpoint in ("a", "b"):
        index.sent(endpoint, [1, 2, 3], None, "m", 0.0)
    index.exact = Stored("a", "b")  # type: ignore[assignment]
    assert index.held([1, 2, 3], None, 10.0).blocks == {"b": 3}, "a has evicted the first one"


def test_a_model_runs_where_its_last_request_was_whatever_the_clock_shows() -> None:
    index = AffinityIndex()
    for number in range(3):
        index.sent(f"e{number}", [], None, "m", 5_000.0 + number)
    assert index.running("m", 5_003.0) == ["e0", "e1", "e2"]
    index.sent("e0", [], None, "other", 5_003.0)
    assert index.running("m", 5_003.0) == ["e1", "e2"]
    assert index.running("m", 5_001.0 + HELD_S) == ["e2"]

"""The blocks that endpoints hold by their KV events: compared with a naive model, across gaps and restarts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kv_cache.held_blocks import HeldBlocks, chain_keys
from penstock.kv_cache.held_prefixes import HeldPrefixes
from penstock.kv_cache.kv_event_log import KvEventLog
from penstock.kv_cache.kv_events import MAX_BATCH_BYTES, BadEvents, read_batch
from penstock.routing.affinity import BLOCK_BYTES, HELD_S, STORING_S, AffinityIndex, prefix_keys

SIZE = 4


def stored(names: list[int], parent: int | None, tokens: list[int]) -> list[object]:
    return ["BlockStored", names, parent, tokens, SIZE, None, "GPU", None, None, 0]


def removed(*names: int) -> list[object]:
    return ["BlockRemoved", list(names), "GPU", 0]


def batch(*events: list[object]) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def blocks_after(*events: list[object], most: int = 100) -> HeldBlocks:
    blocks = HeldBlocks(most)
    blocks.apply(read_batch(batch(*events)))
    return blocks


def test_a_chain_is_held_as_far_as_its_blocks_are() -> None:
    tokens = list(range(3 * SIZE))
    first, second, third = chain_keys(tokens, SIZE)
    blocks = blocks_after(stored([11, 12], None, tokens[: 2 * SIZE]), stored([13], 12, tokens[2 * SIZE :]))
    assert [blocks.holds(key) for key in (first, second, third)] == [True, True, True]
    blocks.apply(read_batch(batch(removed(13))))
    assert [blocks.holds(key) for key in (first, second, third)] == [True, True, False]
    blocks.apply(read_batch(batch(["AllBlocksCleared"])))
    assert (len(blocks), blocks.holds(first), blocks.removed) == (0, False, 3)


def test_events_are_arrays_or_maps() -> None:
    """Versions of vLLM before 0.32 publish arrays."""
    as_maps = [
        {
            "type": "BlockStored",
            "block_hashes": [1, 2],
            "parent_block_hash": None,
            "token_ids": [0] * 8,
            "block_size": 4,
        },
        {"type": "BlockRemoved", "block_hashes": [2], "medium": "GPU", "added_later": 1},
        {"type": "AllBlocksCleared"},
    ]
    as_arrays = [["BlockStored", [1, 2], None, [0] * 8, 4], ["BlockRemoved", [2], "GPU"], ["AllBlocksCleared"]]
    for size in (1, 2, 3):
        kept = []
        for events in (as_maps, as_arrays):
            blocks = HeldBlocks()
            blocks.apply(read_batch(msgspec.msgpack.encode([1.5, events[:size], 0])))
            kept.append((blocks.names(), blocks.removed))
        assert kept[0] == kept[1]
        assert kept[0] == ({1: ({1, 2}, 0), 2: ({1}, 1), 3: (set(), 2)}[size])


def test_equal_tokens_behind_others_or_with_an_adapter_are_another_block() -> None:
    tokens = list(range(SIZE))
    (key,) = chain_keys(tokens, SIZE)
    adapter = ["BlockStored", [1], None, tokens, SIZE, 7, "GPU", "lora"]
    image = ["BlockStored", [2], None, tokens, SIZE, None, "GPU", None, [["image"]]]
    moved = ["BlockStored", [3], None, tokens, SIZE, None, "CPU"]
    behind = stored([5], 4, tokens)
    assert blocks_after(adapter, image, moved, stored([4], None, [9] * SIZE), behind).holds(key) is False


def test_what_is_beyond_the_bound_or_behind_an_unknown_block_leaves_the_record_incomplete() -> None:
    keys = chain_keys(list(range(3 * SIZE)), SIZE)
    full = blocks_after(stored([1, 2, 3], None, list(range(3 * SIZE))), most=2)
    assert (len(full), full.unknown, full.complete) == (2, 1, False)
    assert [full.holds(key) for key in keys] == [True, True, None]
    full.apply(read_batch(batch(removed(2))))
    assert full.holds(keys[1]) is False
    assert blocks_after(stored([2], 1, [0] * SIZE)).complete is False


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("store"), st.lists(st.integers(0, 1), min_size=1, max_size=4)),
            st.tuples(st.just("evict"), st.lists(st.integers(0, 1), min_size=1, max_size=4)),
            st.tuples(st.just("clear"), st.just([])),
        ),
        max_size=30,
    )
)
def test_the_record_equals_a_cache_that_is_kept_as_sets_of_prefixes(steps: list[tuple[str, list[int]]]) -> None:
    """A naive cache holds tuples of blocks; each block is SIZE equal tokens, and its name is derived from the tuple."""

    def name(prefix: tuple[int, ...]) -> int:
        return int("1" + "".join(map(str, prefix)))

    naive: set[tuple[int, ...]] = set()
    blocks = HeldBlocks()
    for what, path in steps:
        prefix = tuple(path)
        if what == "clear":
            naive.clear()
            blocks.apply(read_batch(batch(["AllBlocksCleared"])))
        elif what == "evict":
            gone = {held for held in naive if held[: len(prefix)] == prefix}
            naive -= gone
            blocks.apply(read_batch(batch(removed(*map(name, gone)))))
        else:
            for depth in range(1, len(prefix) + 1):
                part = prefix[:depth]
                if part not in naive:
                    naive.add(part)
                    parent = name(part[:-1]) if depth > 1 else None
                    blocks.apply(read_batch(batch(stored([name(part)], parent, [part[-1]] * SIZE))))
    assert blocks.names() == {name(held) for held in naive}
    for path in {tuple(path) for _, path in steps if path}:
        keys = chain_keys([token for token in path for _ in range(SIZE)], SIZE)
        assert [blocks.holds(key) for key in keys] == [path[: n + 1] in naive for n in range(len(path))]


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"\xc1", "decoded"),
        (batch(stored([1], None, [0] * (SIZE + 1))), "5 tokens"),
        (batch(["BlockStored", [1], None, [0], 0]), "decoded"),
        (batch(["BlockStored", [1], None, [0] * SIZE, SIZE, None, None, None, []]), "extra keys"),
        (batch(["Unheard", []]), "decoded"),
        (b"\x91" * 100_000, "decoded"),
        (b"\0" * (MAX_BATCH_BYTES + 1), "at most"),
    ],
)
def test_an_invalid_batch_is_rejected_with_a_reason(payload: bytes, problem: str) -> None:
    with pytest.raises(BadEvents, match=problem):
        read_batch(payload)


def entries(*numbers: int, run: int = 0) -> list[tuple[int, bytes]]:
    return [(n, batch(stored([100 * run + n], None, [run, n, 0, 0]))) for n in numbers]


def test_a_log_that_goes_on_where_it_was_is_complete() -> None:
    log = KvEventLog()
    assert log.receive([])
    assert log.receive(entries(0, 1))
    assert log.read_from == 1
    assert log.receive(entries(1, 2))
    assert (log.blocks.names(), log.blocks.complete, log.gaps) == ({0, 1, 2}, True, 0)


def test_a_restarted_engine_is_recognised_even_at_the_same_number() -> None:
    log = KvEventLog()
    log.receive(entries(0, 1))
    assert not log.receive(entries(1, 2, run=1))
    assert (len(log.blocks), log.read_from, log.gaps) == (0, 0, 1)
    assert log.receive(entries(0, 1, 2, run=1))
    assert (log.blocks.names(), log.blocks.complete) == ({100, 101, 102}, True)
    assert not log.receive([])
    assert log.receive([])
    assert (len(log.blocks), log.blocks.complete) == (0, True)


def test_missed_and_invalid_batches_leave_the_record_incomplete() -> None:
    log = KvEventLog()
    assert log.receive(entries(5, 6))
    assert (log.blocks.names(), log.blocks.complete) == ({5, 6}, False)
    assert not log.receive(entries(9, 10)), "the engine dropped what was applied last"
    assert log.receive(entries(9, 10))
    assert not log.receive(entries(10, 11, 13)), "the rest of an answer with a hole is read again"
    assert log.blocks.names() == {9, 10, 11}
    assert log.receive(entries(11, 13)), "a hole that stays is a gap"
    assert (log.blocks.names(), log.gaps) == ({13}, 2)
    assert log.receive([*entries(13), (14, b"\xc1"), *entries(15)])
    assert (log.blocks.names(), log.blocks.complete, log.gaps) == ({15}, False, 3)
    assert log.problem == ""


TEXT = "x" * BLOCK_BYTES * 2
TOKENS = list(range(8 * SIZE))
"""Four blocks of tokens for each block of text."""


def exact_index() -> tuple[AffinityIndex, list[int], HeldBlocks]:
    index, prefix = AffinityIndex(), prefix_keys("t/m", memoryview(TEXT.encode()))
    index.sent("a", prefix, None, "m", 0.0)
    blocks = blocks_after(stored(list(range(8)), None, TOKENS))
    index.exact.endpoints["a"] = blocks
    index.exact.link(prefix, BLOCK_BYTES, len(TEXT), TOKENS, SIZE)
    return index, prefix, blocks


def test_an_evicted_prefix_is_not_held_and_one_that_is_still_there_is_held_for_longer() -> None:
    index, prefix, blocks = exact_index()
    later = 10 * HELD_S
    assert index.held(prefix, None, later).blocks == {"a": 2}
    blocks.apply(read_batch(batch(removed(7))))
    assert index.held(prefix, None, later).blocks == {"a": 1}
    assert index.held(prefix, None, STORING_S / 2).blocks == {"a": 2}, "the engine may be storing it just now"
    blocks.apply(read_batch(batch(["AllBlocksCleared"])))
    assert index.held(prefix, None, STORING_S + 1).blocks == {}


def test_the_estimate_applies_without_current_events_or_tokens_and_with_other_block_sizes() -> None:
    index, prefix, blocks = exact_index()
    blocks.apply(read_batch(batch(["AllBlocksCleared"])))
    unlinked = prefix_keys("t/m", memoryview(("y" * BLOCK_BYTES).encode()))
    index.sent("a", unlinked, None, "m", 0.0)
    assert index.held(unlinked, None, 100.0).blocks == {"a": 1}, "its tokens are not known"
    blocks.block_size = 2 * SIZE
    assert index.held(prefix, None, 100.0).blocks == {"a": 2}
    blocks.block_size = SIZE
    del index.exact.endpoints["a"]
    assert index.held(prefix, None, 100.0).blocks == {"a": 2}


def test_a_tenant_is_not_sent_to_what_another_one_left() -> None:
    index, _, _ = exact_index()
    theirs = prefix_keys("u/m", memoryview(TEXT.encode()))
    index.exact.link(theirs, BLOCK_BYTES, len(TEXT), TOKENS, SIZE)
    assert index.exact.holds("a", theirs[0]) is True
    assert index.held(theirs, None, 1.0).blocks == {}


def test_links_are_bounded() -> None:
    held = HeldPrefixes(most=3)
    for n in range(5):
        held.link([n], BLOCK_BYTES, BLOCK_BYTES, TOKENS, SIZE)
    assert len(held) == 3
    assert held.is_linked([4])
    assert not held.is_linked([1])

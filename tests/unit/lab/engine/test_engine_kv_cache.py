"""The paged KV cache: every block is free, cached or held, and the oldest cached block is evicted first."""

from __future__ import annotations

from lab.engine.kv_cache import SPAN_BLOCKS, KvCache


def computed(cache: KvCache, *spans: int) -> None:
    """A sequence computes `spans`, then leaves."""
    for span in spans:
        assert cache.hold_blocks(SPAN_BLOCKS)
        cache.share_span(span)
    cache.release(0, spans)


def test_held_blocks_are_released() -> None:
    cache = KvCache(100)
    assert cache.hold_blocks(70)
    assert not cache.hold_blocks(31)
    assert cache.hold_blocks(30)
    assert cache.usage == 1
    cache.release(100, ())
    assert (cache.held_blocks, cache.free_blocks) == (0, 100)


def test_a_prefix_stays_cached_and_is_shared() -> None:
    cache = KvCache(10 * SPAN_BLOCKS)
    computed(cache, 1, 2)
    assert (cache.held_blocks, cache.cached_blocks) == (0, 2 * SPAN_BLOCKS)
    assert cache.hold_prefix([1, 2, 3]) == 2
    assert cache.hold_prefix([1, 9]) == 1
    assert cache.held_blocks == 2 * SPAN_BLOCKS
    cache.release(0, [1, 2])
    assert (cache.held_blocks, cache.cached_blocks) == (SPAN_BLOCKS, SPAN_BLOCKS)


def test_only_leading_blocks_count() -> None:
    cache = KvCache(10 * SPAN_BLOCKS)
    computed(cache, 1, 2)
    assert cache.hold_prefix([7, 1, 2]) == 0


def test_the_least_recently_used_prefix_is_evicted_from_its_end() -> None:
    cache = KvCache(4 * SPAN_BLOCKS)
    computed(cache, 1, 2)
    computed(cache, 3, 4)
    assert cache.hold_prefix([1, 2]) == 2
    cache.release(0, [1, 2])
    assert cache.hold_blocks(1)
    assert cache.hold_prefix([3, 4]) == 1, "of the older prefix the end has gone, the start is left"
    assert cache.hold_prefix([1, 2]) == 2


def test_held_prefixes_are_not_evicted() -> None:
    cache = KvCache(2 * SPAN_BLOCKS)
    computed(cache, 1)
    assert cache.hold_prefix([1]) == 1
    assert not cache.hold_blocks(SPAN_BLOCKS + 1)
    assert cache.hold_blocks(SPAN_BLOCKS)
    assert cache.hold_prefix([1]) == 1


def test_a_span_computed_twice_is_cached_once() -> None:
    cache = KvCache(4 * SPAN_BLOCKS)
    assert cache.hold_blocks(2 * SPAN_BLOCKS)
    cache.share_span(1)
    cache.share_span(1)
    assert cache.held_blocks == SPAN_BLOCKS
    cache.release(0, [1])
    cache.release(0, [1])
    assert (cache.held_blocks, cache.cached_blocks) == (0, SPAN_BLOCKS)


def test_the_end_of_a_prefix_counts_again_once_its_start_is_recomputed() -> None:
    cache = KvCache(4 * SPAN_BLOCKS)
    computed(cache, 1, 2)
    assert cache.hold_prefix([1]) == 1
    cache.release(0, [1])
    assert cache.hold_prefix([2]) == 1
    assert cache.hold_blocks(3 * SPAN_BLOCKS), "which forgets the start, as the end is held"
    cache.release(3 * SPAN_BLOCKS, [2])
    assert cache.hold_prefix([1, 2]) == 0
    assert cache.hold_blocks(2 * SPAN_BLOCKS)
    cache.share_span(1)
    cache.share_span(2)
    assert (cache.held_blocks, cache.cached_blocks, cache.free_blocks) == (
        2 * SPAN_BLOCKS,
        0,
        2 * SPAN_BLOCKS,
    )
    cache.release(0, [1, 2])
    assert cache.cached_blocks == 2 * SPAN_BLOCKS

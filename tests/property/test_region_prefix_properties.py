"""Sketches of prompt beginnings: bounded, for permitted regions and the same tenant, and no claim beyond the prompt."""

from __future__ import annotations

from hashlib import sha256
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.residency import residency_class
from penstock.routing.affinity import BLOCK_BYTES, prefix_keys
from penstock.routing.prefixes.hot_prefixes import ANCHORS, HotPrefixes
from penstock.routing.prefixes.prefix_sketch import (
    MAX_ENTRIES,
    MAX_SKETCH_BYTES,
    NOTHING_HELD,
    Held,
    decode_sketch,
    encode_sketch,
    held_in,
    spared_s,
)
from penstock.routing.region_selection import RegionChoice, RegionView
from tests.support.planet import choose_region, healthy, policy

keys = st.integers(0, 2**62 - 1)
regions = st.frozensets(st.sampled_from(["a", "b", "c"]), min_size=1)
prompts = st.lists(keys, min_size=1, max_size=70)


def chained(blocks: list[int]) -> list[int]:
    """Keys as `prefix_keys` makes them: each is that of all blocks until then."""
    return [int.from_bytes(sha256(bytes(blocks[: end + 1])).digest()[:7]) for end in range(len(blocks))]


common_prompts = st.lists(st.integers(0, 1), min_size=1, max_size=70).map(chained)
"""Prompts of which many have a common beginning."""


@given(st.lists(st.tuples(common_prompts, regions, st.floats(0, 100)), max_size=20), st.sampled_from(["a", "b", "c"]))
def test_a_beginning_is_published_only_to_regions_that_may_process_all_its_requests(
    sent: list[tuple[list[int], frozenset[str], float]], region: str
) -> None:
    hot, now = HotPrefixes(), 0.0
    for prefix, permitted, gap_s in sent * 2:
        now += gap_s
        hot.sent(prefix, permitted, now)
    published = set(hot.hottest(region, 99, now))
    assert not published & {key for prefix, permitted, _ in sent if region not in permitted for key in prefix}
    assert published <= {prefix[blocks - 1] for prefix, _, _ in sent for blocks in ANCHORS if blocks <= len(prefix)}


@given(st.lists(prompts, max_size=30), st.integers(1, 16))
def test_a_record_is_bounded_and_new_prompts_do_not_evict_a_hot_one(sent: list[list[int]], most: int) -> None:
    hot, everywhere = HotPrefixes(most + 5), frozenset("ab")
    for _ in range(9):
        hot.sent([1, 2, 3, 4], everywhere, 0.0)
    for number, prefix in enumerate(sent):
        hot.sent(prefix, everywhere, number * 0.01)
        assert len(hot) <= most + 5
    assert 4 in hot.hottest("b", 1, 1.0)
    assert len(hot.hottest("b", 3, 1.0)) <= 3


@given(st.dictionaries(keys, st.floats(0, 1e6), max_size=MAX_ENTRIES + 20))
def test_a_sketch_is_bounded_and_arrives_with_its_waits(waits_s: dict[int, float]) -> None:
    data = encode_sketch(waits_s)
    assert len(data) <= MAX_SKETCH_BYTES
    sketch = decode_sketch(data)
    assert sketch is not None
    assert sketch.keys() <= waits_s.keys()
    assert all(abs(wait_s - min(waits_s[key], 3276.75)) <= 0.026 for key, wait_s in sketch.items())


@given(st.binary(max_size=MAX_SKETCH_BYTES + 40))
def test_no_data_is_a_sketch_beyond_its_bounds(data: bytes) -> None:
    sketch = decode_sketch(data)
    assert sketch is None or len(sketch) <= MAX_ENTRIES


@given(st.binary(min_size=BLOCK_BYTES * 4, max_size=BLOCK_BYTES * 9))
def test_the_prompt_of_one_tenant_is_never_held_for_another(prompt: bytes) -> None:
    ours, theirs = (prefix_keys(f"{tenant}/m", memoryview(prompt)) for tenant in ("acme", "other"))
    sketch = dict.fromkeys(ours, 0.0)
    assert held_in(sketch, ours).blocks in ANCHORS
    assert held_in(sketch, theirs) == NOTHING_HELD


@given(st.integers(0, 64), *[st.floats(0, 1e4)] * 4)
def test_no_claim_spares_more_than_the_prompt(
    blocks: int, holder_s: float, block_s: float, prefill_s: float, wait_s: float
) -> None:
    assert 0.0 <= spared_s(Held(blocks, holder_s), block_s, prefill_s, wait_s) <= prefill_s


@given(
    st.dictionaries(st.sampled_from(["eu-es", "us-east", "eu-de"]), st.floats(0, 1e6)),
    st.integers(0, 2),
    st.booleans(),
)
def test_what_regions_claim_leads_to_no_forbidden_region_and_to_none_without_a_credit(
    claimed_s: dict[str, float], credits: int, overflow: bool
) -> None:
    permitted = residency_class(frozenset({"eu-de", "eu-es"}))
    views = healthy("eu-de", "eu-es", "us-east", credits=credits)
    views["eu-de"] = RegionView(views["eu-de"].state, ready=True, expected_wait_s=1.0)
    choice = choose_region(
        policy(), "eu-de", permitted, None, views, rng=Random(1), overflow=overflow, spared_s=claimed_s
    )
    if isinstance(choice, RegionChoice):
        assert choice.region in permitted.regions
        assert choice.region == "eu-de" or credits > 0

"""Prompts go where they fit, the largest endpoints stay free for long ones, and no request is left without a target."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cost.cost_estimate import CostEstimator
from penstock.cost.request_properties import CostInputs
from penstock.pools.context_lengths import ContextLengths, needed_tokens
from penstock.routes.presets.preset_registry import preset_routes
from penstock.routing.endpoint_selection import EndpointView

OPENAI = {route.path: route for preset in ("openai", "vllm") for route in preset_routes(preset)}
POOL = (("small-1", 4096), ("small-2", 4096), ("large", 32_768))


def views(*busy: str, pool: tuple[tuple[str, int], ...] = POOL) -> list[EndpointView]:
    return [EndpointView(name, 1, 2, ready=True, in_flight=name in busy) for name, _ in pool]


def left(likely: int, *busy: str, tried: frozenset[str] = frozenset()) -> set[str]:
    return {name for name, _ in POOL} - ContextLengths(POOL).excluded(likely, views(*busy), tried) - tried


@pytest.mark.parametrize(
    ("likely", "busy", "targets"),
    [
        (4096, (), {"small-1", "small-2"}),
        (4097, (), {"large"}),
        (100, ("small-1",), {"small-1", "small-2"}),
        (100, ("small-1", "small-2"), {"small-1", "small-2", "large"}),
        (4097, ("large",), {"large"}),
        (99_999, (), {"large"}),
    ],
)
def test_the_smallest_that_fits_and_has_a_free_slot_serves(
    likely: int, busy: tuple[str, ...], targets: set[str]
) -> None:
    assert left(likely, *busy) == targets


def test_endpoints_that_cannot_serve_for_other_reasons_keep_no_request_from_larger_ones() -> None:
    assert left(100, tried=frozenset({"small-1", "small-2"})) == {"large"}


def test_an_endpoint_of_unknown_length_may_serve_any_request_and_none_is_surely_too_long() -> None:
    lengths = ContextLengths((("a", 4096), ("b", 0)))
    assert (lengths.largest, lengths.is_mixed) == (0, True)
    assert lengths.excluded(9999, views(pool=(("a", 0), ("b", 0))), ()) == {"a"}
    assert not lengths.may_exceed(CostInputs(10**9))


def test_equal_endpoints_cost_nothing_until_the_body_could_be_too_long() -> None:
    lengths = ContextLengths((("a", 4096), ("b", 4096)))
    assert lengths.excluded(10**6, views(pool=(("a", 0), ("b", 0))), ()) == frozenset()
    assert not lengths.may_exceed(CostInputs(3000, max_tokens=1096))
    assert lengths.may_exceed(CostInputs(3000, max_tokens=1097))


def test_the_need_of_a_request_is_bounded_from_both_sides() -> None:
    chat = OPENAI["/v1/chat/completions"].cost
    needed = needed_tokens(CostEstimator(), "m", CostInputs(4_120, max_tokens=50), b"", chat)
    assert (needed.surely, needed.likely) == (550, 1250)
    assert needed_tokens(CostEstimator(), "m", CostInputs(4_120), b"", chat).surely == 500


@pytest.mark.parametrize(
    ("path", "body", "surely"),
    [
        ("/v1/embeddings", {"input": ["a" * 398] * 50}, 50),
        ("/v1/embeddings", {"input": "a" * 398}, 50),
        ("/v1/embeddings", {"input": [1111] * 400}, 250),
        ("/v1/embeddings", {"input": [[1111] * 80] * 5}, 50),
        ("/v1/embeddings", {"input": "a" * 4000, "truncate_prompt_tokens": 8}, 0),
        ("/v1/completions", {"prompt": ["a" * 398] * 50, "max_tokens": 7}, 57),
        ("/v1/completions", {"prompt": ["a"] * 50 + ["a" * 798], "max_tokens": 7}, 107),
        ("/v1/completions", {"prompt": "a" * 398, "max_tokens": 7}, 45),
        ("/v1/responses", {"input": [{"role": "user", "content": "a" * 398}] * 2}, 93),
        ("/v1/rerank", {"query": "a" * 398, "documents": ["a" * 398] * 50}, 100),
        ("/v1/score", {"text_1": "a" * 398, "text_2": ["a" * 398] * 50}, 50),
        ("/v1/chat/completions", {"messages": [{"content": "a" * 398}] * 2, "max_tokens": 7}, 98),
    ],
)
def test_of_several_prompts_the_longest_has_to_fit(path: str, body: dict[str, object], surely: int) -> None:
    text = msgspec.json.encode(body)
    ask = CostInputs(len(text), max_tokens=7 if "max_tokens" in body else None)
    assert needed_tokens(CostEstimator(), "m", ask, text, OPENAI[path].cost).surely == surely


@given(
    lengths=st.lists(st.sampled_from([0, 2048, 4096, 32_768, 131_072]), min_size=1, max_size=6),
    busy=st.lists(st.booleans(), min_size=6, max_size=6),
    tried=st.lists(st.booleans(), min_size=6, max_size=6),
    likely=st.integers(1, 200_000),
)
def test_a_request_that_some_open_endpoint_fits_has_a_target_that_fits(
    lengths: list[int], busy: list[bool], tried: list[bool], likely: int
) -> None:
    pool = tuple((f"gpu-{number}", length) for number, length in enumerate(lengths))
    found = [EndpointView(name, 1, 1, ready=True, in_flight=busy[at]) for at, (name, _) in enumerate(pool)]
    without = frozenset(name for at, (name, _) in enumerate(pool) if tried[at])
    excluded = ContextLengths(pool).excluded(likely, found, without)
    fits = {name for name, length in pool if not length or length >= likely}
    targets = {view.name for view in found if view.takes_more} - without - excluded
    able = {view.name for view in found if view.takes_more} & fits - without
    assert bool(targets) >= bool(able)
    if able:
        assert targets <= fits
        smallest = min(dict(pool)[name] or 10**9 for name in able)
        assert {dict(pool)[name] or 10**9 for name in targets} == {smallest}

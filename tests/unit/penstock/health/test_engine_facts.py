"""Facts that engines report: read from each engine's own pages, bounded, and never an error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.health.engines.engine_facts import (
    EngineFacts,
    ServedModel,
    combined,
    listed_model,
    read_facts,
)
from penstock.health.engines.engine_kinds import FactsPage

MAX_CONTEXT_TOKENS, MAX_FACT_CHARS = 1_000_000_000, 200
"""As documented, and not imported: a test fails if a tuned constant changes."""

NAMES = {"chat": "llama3"}


def read(page: FactsPage, content: Any) -> EngineFacts:
    return read_facts(page, msgspec.json.encode(content), NAMES)


@pytest.mark.parametrize(
    ("page", "content", "facts"),
    [
        (FactsPage.VERSION, {"version": "0.9.1"}, EngineFacts("0.9.1")),
        (FactsPage.OLLAMA_VERSION, {"version": "0.6.2"}, EngineFacts("0.6.2")),
        (
            FactsPage.SGLANG_SERVER,
            {"model_path": "/models/llama", "weight_version": "v7", "version": "0.5", "max_total_num_tokens": 60_000}
            | {"mem_fraction_static": 0.8, "internal_states": []},
            EngineFacts("0.5", (ServedModel("chat", "/models/llama@v7", 60_000, 60_000, 0.8),)),
        ),
        (
            FactsPage.SGLANG_SERVER,
            {"model_path": "/models/llama", "weight_version": "default"},
            EngineFacts("", (ServedModel("chat", "/models/llama"),)),
        ),
        (
            FactsPage.TGI_INFO,
            {"model_id": "org/llama", "model_sha": "0f3c", "version": "3.2", "max_total_tokens": 8192},
            EngineFacts("3.2", (ServedModel("chat", "org/llama@0f3c", 8192),)),
        ),
        (
            FactsPage.OLLAMA_TAGS,
            {"models": [{"name": "other:latest", "digest": "1"}, {"name": "llama3:latest", "digest": "365c"}]},
            EngineFacts("", (ServedModel("chat", "365c"),)),
        ),
    ],
)
def test_each_engines_page_is_read(page: FactsPage, content: Any, facts: EngineFacts) -> None:
    assert read(page, content) == facts


def test_what_is_invalid_is_a_problem_and_no_fact() -> None:
    assert read(FactsPage.VERSION, {"version": 9}).problems == ("version on /version is not a text",)
    tgi = read(FactsPage.TGI_INFO, {"model_id": "m", "max_total_tokens": -5})
    assert tgi.served == (ServedModel("chat", "m", 0),)
    assert tgi.problems == (f"max_total_tokens is not a number from 16 to {MAX_CONTEXT_TOKENS}",)
    for impossible in (0, 1, 15, -1, True, 1.5, "8192", MAX_CONTEXT_TOKENS + 1):
        facts = listed_model("chat", "/models/llama", impossible)
        assert facts.served == (ServedModel("chat", "/models/llama", 0),)
        assert len(facts.problems) == 1, impossible
    whole = read_facts(FactsPage.SGLANG_SERVER, b'{"mem_fraction_static": 1.0}', NAMES)
    assert (whole.served[0].memory_share, whole.problems) == (1.0, ())
    for share in (b"1" + b"0" * 400, b"-0.5", b'"nan"', b"[]"):
        sglang = read_facts(FactsPage.SGLANG_SERVER, b'{"mem_fraction_static": %b}' % share, NAMES)
        assert sglang.served[0].memory_share == 0.0
        assert sglang.problems == ("mem_fraction_static is not a number above 0 and up to 1",)
    assert read_facts(FactsPage.TGI_INFO, b"<html>", NAMES).problems == ("/info is not JSON",)
    assert read(FactsPage.TGI_INFO, []).problems == ("/info is not an object",)


def cache_info(*ranks: dict[str, object]) -> EngineFacts:
    lines = [
        f"vllm:cache_config_info{{{','.join(f'{key}={chr(34)}{value}{chr(34)}' for key, value in rank.items())}}} 1.0"
        for rank in ranks
    ]
    return read_facts(FactsPage.VLLM_METRICS, "\n".join(["# HELP x", *lines]).encode(), NAMES)


def test_the_kv_cache_of_the_smallest_rank_is_read_from_labels_of_vllm() -> None:
    many = {f"a{number}": None for number in range(40)}
    new = {
        **many,
        "gpu_memory_utilization": 0.92,
        "kv_cache_size_tokens": 9_000,
        "num_gpu_blocks": 100,
        "block_size": 16,
    }
    assert cache_info(new, {**new, "kv_cache_size_tokens": 8_000}).served == (
        ServedModel("chat", "", 8_000, 8_000, 0.92),
    )
    old = {"block_size": 16, "num_gpu_blocks": 7_653}
    assert cache_info(old) == EngineFacts(served=(ServedModel("chat", "", 0, 122_448),)), "no limit of a prompt"
    assert cache_info({"num_gpu_blocks": None, "block_size": 16}) == cache_info() == EngineFacts()
    for text in ("-5", "1e9", "9" * 30, "٣x"):
        lies = cache_info({"kv_cache_size_tokens": text, "gpu_memory_utilization": "nan"})
        assert (lies.served, len(lies.problems)) == ((), 2), text


def test_texts_are_cut_and_printable() -> None:
    facts = read(FactsPage.VERSION, {"version": "1\x1b[31m\n" + "x" * 10_000})
    assert len(facts.version) == MAX_FACT_CHARS
    assert facts.version.startswith("1?[31m?x")


def test_of_two_answers_the_first_fact_counts() -> None:
    listed = listed_model("chat", "/models/a", 4096)
    page = EngineFacts("1.0", (ServedModel("chat", "b@1", 8192), ServedModel("code", "c", 1)), ("x",))
    assert combined((listed, page)) == EngineFacts(
        "1.0", (ServedModel("chat", "/models/a", 4096), ServedModel("code", "c", 1)), ("x",)
    )
    assert combined((listed_model("chat", None, None), page)).served[0] == ServedModel("chat", "b@1", 8192)


def test_a_kv_cache_that_is_smaller_than_the_context_limits_it() -> None:
    cache = EngineFacts(served=(ServedModel("chat", "", 2_000, 2_000, 0.9),))
    (model,) = combined((listed_model("chat", "/m", 4_096), cache)).served
    assert model == ServedModel("chat", "/m", 2_000, 2_000, 0.9)
    assert model.room == "context 2000, KV cache 2000 tokens, 90% of GPU memory"
    assert not ServedModel("chat", kv_tokens=-1).is_possible


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "version",
                    "models",
                    "name",
                    "digest",
                    "model_id",
                    "model_sha",
                    "max_total_tokens",
                    "max_total_num_tokens",
                ]
            )
            | st.text(max_size=3),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(page=st.sampled_from(FactsPage), content=json_values | st.binary())
def test_whatever_an_engine_answers_the_facts_are_bounded(page: FactsPage, content: Any) -> None:
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    facts = read_facts(page, body, NAMES)
    texts = (facts.version, *(served.revision for served in facts.served))
    assert all(len(text) <= MAX_FACT_CHARS and text.isprintable() for text in texts)
    assert all(served.is_possible for served in facts.served)
    assert {served.model for served in facts.served} <= NAMES.keys()


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        (16, 16),
        (15, 0),
        (MAX_CONTEXT_TOKENS, MAX_CONTEXT_TOKENS),
        (0, 0),
        (MAX_CONTEXT_TOKENS + 1, 0),
        (True, 0),
        (8.0, 0),
    ],
)
def test_a_context_is_a_number_of_tokens_within_its_bounds(value: object, tokens: int) -> None:
    facts = read(FactsPage.TGI_INFO, {"model_id": "m", "max_total_tokens": value})
    assert [served.context_tokens for served in facts.served] == [tokens]
    assert bool(facts.problems) is (tokens == 0)

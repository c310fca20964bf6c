"""The estimate of a body's cost and affinity; unusual values are accepted, since it is only an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from penstock.answers.token_counts import MAX_TOKENS, Usage
from penstock.cost.cost_estimate import CostEstimator
from penstock.cost.cost_inputs import MAX_AT_ONCE
from penstock.http.header_rules import SESSION_HEADERS
from penstock.policy.kinds.models import TOKEN_COST, UNSTATED_COST, Cost, CostUnit
from penstock.pools.placement import WorkEstimate
from penstock.pools.speed_learning import microseconds
from penstock.routes.classify import RequestFields, classify
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routes.presets.preset_registry import PRESETS
from penstock.routing.affinity import BLOCK_BYTES
from regional_agent.http.messages import Request
from regional_agent.requests.request_context import work_estimate_of

OPENAI = {route.path.encode(): route for route in OPENAI_ROUTES}
TOKENS = Cost(CostUnit.TOKEN, 0.001, 0.01)


def estimate(
    cost: Cost,
    path: bytes = b"/v1/chat/completions",
    header: bytes = b"",
    headers: Sequence[tuple[bytes, bytes]] = (),
    **body: Any,
) -> WorkEstimate:
    request = Request()
    request.route, request.whole = OPENAI[path], True
    request.headers = [*headers, (b"x-session-id", header)] if header else [*headers]
    request.body = msgspec.json.encode({"model": "m", **body})
    asked = classify(request.body)
    assert isinstance(asked, RequestFields)
    return work_estimate_of(request, asked, "t", cost, CostEstimator())


def prompt(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_text_costs_tokens_unless_the_policy_states_a_cost() -> None:
    chat = {"messages": prompt("word " * 400), "max_tokens": 10}
    unstated, stated = estimate(UNSTATED_COST, **chat), estimate(TOKEN_COST, **chat)
    assert (unstated.cost, unstated.ask, unstated.prefix) == (TOKEN_COST, stated.ask, stated.prefix)
    assert unstated.work.prefill_s == stated.work.prefill_s > 0.0
    assert unstated.prefix
    for other in (Cost(CostUnit.REQUEST, output_unit_s=4.0), Cost(CostUnit.MEGAPIXEL_STEP, output_unit_s=0.1)):
        assert estimate(other, **chat).cost is other
    embeddings = estimate(UNSTATED_COST, b"/v1/embeddings", input="word " * 400)
    assert (embeddings.cost, embeddings.work.decode_s) == (TOKEN_COST, 0.0)
    assert estimate(UNSTATED_COST, b"/v1/images/generations", prompt="a cat").cost is UNSTATED_COST


def test_the_routes_of_text() -> None:
    text = {route.path for preset in PRESETS.values() for route in preset.routes(None) if route.cost.is_text}
    assert text >= {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"}
    assert text >= {"/api/chat", "/generate", "/v1/rerank", "/v2/models/{model}/generate_stream"}
    media = {"/v1/images/generations", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/realtime", "/prompt"}
    assert not text & {*media, "/v2/models/{model}/infer", "/predict", "/v1/responses/{response_id}"}


def test_a_chat_is_prompt_and_limited_answer() -> None:
    chat = estimate(TOKENS, messages=prompt("x" * 4000), max_tokens=10)
    assert chat.work.prefill_s == pytest.approx(1.0, rel=0.05)
    assert chat.work.decode_s == pytest.approx(0.1)
    assert estimate(TOKENS, messages=prompt("x"), max_tokens=99, max_completion_tokens=10, n=2).work.decode_s == 0.2


def test_embeddings_have_no_answer() -> None:
    assert estimate(TOKENS, b"/v1/embeddings", input="x" * 4000).work.decode_s == 0.0


def test_images_and_speech() -> None:
    images, path = Cost(CostUnit.MEGAPIXEL_STEP, 0.0, 1.0), b"/v1/images/generations"
    assert estimate(images, path, size="1000x500", steps=10, n=2).work.decode_s == pytest.approx(10.0)
    assert estimate(images, path, size="1000x500", num_inference_steps=4).work.decode_s == pytest.approx(2.0)
    speech = estimate(Cost(CostUnit.AUDIO_SECOND, 0.0, 1.0), b"/v1/audio/speech", input="x" * 148)
    assert speech.work.decode_s == pytest.approx(10.0)


@pytest.mark.parametrize("odd", [None, "7", -3, 1e99, [1], {"a": 1}, True, "x", 10**30])
def test_odd_values_are_the_engines_business(odd: object) -> None:
    number = odd if isinstance(odd, float | int) and odd is not True else None
    images = Cost(CostUnit.MEGAPIXEL_STEP, 0.0, 1.0)
    for cost, path in ((TOKENS, b"/v1/chat/completions"), (images, b"/v1/images/generations")):
        texts = {"size": odd, "input": odd, "user": odd, "prompt_cache_key": odd}
        work = estimate(cost, path, n=number, steps=number, **texts).work
        assert 0 < work.decode_s < 1e6


def test_counts_are_bounded() -> None:
    assert estimate(TOKENS, messages=[], n=9999, max_tokens=1).work.decode_s == pytest.approx(0.01 * MAX_AT_ONCE)


def test_a_conversations_next_turn_begins_with_the_same_keys() -> None:
    first = prompt("x" * 3 * BLOCK_BYTES)
    first_turn = estimate(TOKENS, temperature=0.1, messages=first)
    next_turn = estimate(TOKENS, messages=[*first, {"role": "assistant", "content": "y"}, *prompt("z" * BLOCK_BYTES)])
    assert len(first_turn.prefix) == 3
    assert next_turn.prefix[:3] == first_turn.prefix
    assert estimate(TOKENS, messages=prompt("short")).prefix == []


@pytest.mark.parametrize("name", ["x" * 65_536, "ü" * 65_536, "\ud800 \x00" * 20_000, '"\\' * 30_000])
def test_a_session_name_of_64_kilobytes_counts_by_its_beginning(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        name = name.replace("\ud800", "?")
    long = estimate(TOKENS, prompt_cache_key=name)
    assert long.session == estimate(TOKENS, prompt_cache_key=name + "end").session
    assert long.session != estimate(TOKENS, prompt_cache_key="y" + name).session
    assert estimate(TOKENS, header=name.encode()).session == estimate(TOKENS, header=name.encode() + b"end").session


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_agents_name_their_sessions_in_headers_of_their_own(name: bytes) -> None:
    named = estimate(TOKENS, headers=[(name, b"s1")], user="u").session
    assert named == estimate(TOKENS, header=b"s1").session
    if name != SESSION_HEADERS[0]:
        both = estimate(TOKENS, headers=[(name, b"s1"), (SESSION_HEADERS[0], b"s2")]).session
        assert both == estimate(TOKENS, header=b"s2").session
    assert estimate(TOKENS, headers=[(name, b"")], user="u").session == estimate(TOKENS, user="u").session


def test_a_session_is_named_by_header_or_cache_key_or_user() -> None:
    by_header = estimate(TOKENS, header=b"s1", prompt_cache_key="k", user="u").session
    assert by_header == estimate(TOKENS, header=b"s1").session
    assert estimate(TOKENS, prompt_cache_key="k", user="u").session == estimate(TOKENS, prompt_cache_key="k").session
    assert estimate(TOKENS, user="u").session not in (None, by_header)
    assert estimate(TOKENS).session is None
    assert estimate(TOKENS, user=None).session is None
    assert estimate(TOKENS, prompt_cache_key=None, user="u").session == estimate(TOKENS, user="u").session


@pytest.mark.parametrize("limit", [10**30, 1e300])
def test_a_limit_on_tokens_of_any_size_is_bounded(limit: int) -> None:
    bounded = estimate(TOKENS, messages=prompt("x"), max_tokens=limit)
    assert bounded.ask.max_tokens is not None
    assert estimate(TOKENS, messages=prompt("x"), max_tokens=-limit).ask.max_tokens is None
    assert 1 <= bounded.ask.max_tokens <= MAX_TOKENS
    learned = CostEstimator()
    learned.observe("t", "m", bounded.ask, Usage(prompt_tokens=10, answer_tokens=10), 1.0)
    assert learned.estimate(TOKENS, "t", "m", bounded.ask).decode_s > 0.0


def with_image(text: str) -> list[dict[str, Any]]:
    url = "data:image/webp;base64," + "QUJD" * 500_000
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


def test_an_inline_image_costs_what_an_image_does() -> None:
    chat = estimate(TOKENS, messages=with_image("x" * 4000), max_tokens=10)
    assert chat.ask.media is not None
    assert chat.ask.media.images == 1
    assert chat.work.prefill_s == pytest.approx(1.0 + 0.25 + 0.8 * 0.75, rel=0.05)


def test_a_conversation_about_an_image_has_one_prefix() -> None:
    """The cached share is at most the whole prefill, however many blocks the image has."""
    first, second = (estimate(TOKENS, messages=with_image(text)) for text in ("what is this?", "and this?"))
    assert first.prefix == second.prefix
    assert first.prefix
    prefill_us, _ = microseconds(first.work, None, 1, spared_s=len(first.prefix) * BLOCK_BYTES / 4 * 0.001)
    assert prefill_us == 0


def test_short_requests_are_searched_for_images_once_their_model_has_had_some() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    estimator = CostEstimator()

    def ask() -> WorkEstimate:
        request = Request()
        request.route, request.whole = OPENAI[b"/v1/chat/completions"], True
        request.body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": [part]}]})
        asked = classify(request.body)
        assert isinstance(asked, RequestFields)
        return work_estimate_of(request, asked, "t", TOKENS, estimator)

    first = ask()
    assert first.ask.media is None
    estimator.observe("t", "m", first.ask, Usage(1200, 10), 0.0)
    second = ask()
    assert second.ask.media is not None
    assert second.work.prefill_s > 5 * first.work.prefill_s

"""The cost inputs of requests of other APIs, and their bounds."""

from __future__ import annotations

from math import isfinite

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.answers.token_counts import MAX_TOKENS
from penstock.cost.cost_estimate import CostEstimator
from penstock.cost.cost_inputs import MAX_AT_ONCE, MAX_AUDIO_S, MAX_ELEMENTS, MAX_PIXELS, MAX_STEPS, cost_inputs
from penstock.cost.request_properties import CostInputs
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.routes.presets.preset_registry import PRESETS, preset_routes
from penstock.routes.route import CostFields, Route
from penstock.routes.route_reader import RouteReader

ROUTES = {route.name: route for preset in PRESETS for route in preset_routes(preset)}
AUDIO = Route("audio", "/audio", cost=CostFields(seconds=("/seconds",), speech=("/text",)))


def inputs(route: Route, unit: CostUnit, body: object) -> CostInputs:
    """The cost inputs of a body, whose size is stated as 400 bytes."""
    values = RouteReader(route).read(msgspec.json.encode(body))
    assert isinstance(values, dict)
    return cost_inputs(route.cost, values, unit, 400)


@pytest.mark.parametrize(
    ("route", "body", "expected"),
    [
        ("anthropic-messages", {"max_tokens": 64}, CostInputs(400, max_tokens=64)),
        ("openai-responses", {"max_output_tokens": 64, "max_tokens": 8}, CostInputs(400, max_tokens=64)),
        ("anthropic-count-tokens", {"max_tokens": 64}, CostInputs(400, answers=False, uses_tokens=False)),
        ("ollama-chat", {"options": {"num_predict": 32}}, CostInputs(400, max_tokens=32)),
        ("ollama-chat", {"options": {"num_predict": -1}}, CostInputs(400)),
        ("ollama-chat", {"options": None}, CostInputs(400)),
        ("tgi-generate", {"parameters": {"max_new_tokens": 20, "best_of": 2}}, CostInputs(400, max_tokens=20, count=2)),
        ("sglang-generate", {"sampling_params": {"max_new_tokens": 9}}, CostInputs(400, max_tokens=9)),
        ("kserve-generate", {"text_input": "x", "parameters": {"max_tokens": 7}}, CostInputs(400, max_tokens=7)),
        ("vllm-rerank", {"documents": ["a"]}, CostInputs(400, answers=False)),
    ],
)
def test_tokens(route: str, body: object, expected: CostInputs) -> None:
    assert inputs(ROUTES[route], CostUnit.TOKEN, body) == expected


@pytest.mark.parametrize(
    ("route", "body", "expected"),
    [
        (
            "automatic1111-txt2img",
            {"width": 512, "height": 768, "steps": 20, "batch_size": 2, "n_iter": 3},
            CostInputs(400, count=6, pixels=512 * 768, steps=20),
        ),
        ("openai-images-generations", {"size": "1024x768", "n": 2}, CostInputs(400, count=2, pixels=1024 * 768)),
    ],
)
def test_images(route: str, body: object, expected: CostInputs) -> None:
    assert inputs(ROUTES[route], CostUnit.MEGAPIXEL_STEP, body) == expected


@pytest.mark.parametrize(
    ("body", "elements"),
    [
        ({"inputs": [{"shape": [1, 3, 224, 224]}, {"name": "b", "shape": [2]}]}, 3 * 224 * 224 + 2),
        ({"inputs": [{"shape": []}]}, 1),
        ({"inputs": [{"shape": [4, -1]}, {"shape": "x"}, {}, 5]}, None),
        ({"inputs": {"shape": [4]}}, None),
        ({"inputs": [{"shape": [1 << 60, 1 << 60]}]}, MAX_ELEMENTS),
        ({}, None),
    ],
)
def test_tensor_elements(body: object, elements: int | None) -> None:
    assert inputs(ROUTES["kserve-infer"], CostUnit.TENSOR_ELEMENT, body).elements == elements


def test_audio() -> None:
    assert inputs(AUDIO, CostUnit.AUDIO_SECOND, {"seconds": 12.5}).audio_s == 12.5
    assert inputs(AUDIO, CostUnit.AUDIO_SECOND, {"seconds": 1e12}).audio_s == MAX_AUDIO_S
    assert inputs(AUDIO, CostUnit.AUDIO_SECOND, {"text": "a" * 30}).text_bytes == 32


numbers = (
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([10**400, -(10**400), 1e308])
)
anything = st.recursive(
    numbers | st.text(max_size=9) | st.booleans() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["shape", "max_new_tokens", "num_predict"]), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from(["max_tokens", "options", "parameters", "inputs", "width", "height", "steps", "n_iter", "size"])


@given(st.sampled_from(sorted(ROUTES)), st.sampled_from(list(CostUnit)), st.dictionaries(names, anything, max_size=6))
def test_every_number_is_bounded(name: str, unit: CostUnit, body: object) -> None:
    costs = inputs(ROUTES[name], unit, body)
    assert 1 <= costs.count <= MAX_AT_ONCE
    limits = (
        (costs.max_tokens, MAX_TOKENS),
        (costs.pixels, MAX_PIXELS),
        (costs.steps, MAX_STEPS),
        (costs.elements, MAX_ELEMENTS),
        (costs.audio_s, MAX_AUDIO_S),
    )
    for value, limit in limits:
        assert value is None or 0 < value <= limit
    work = CostEstimator().estimate(Cost(unit, 1e-4, 1e-3), "t", "m", costs)
    assert isfinite(work.prefill_s)
    assert isfinite(work.decode_s)
    assert work.prefill_s >= 0
    assert work.decode_s >= 0

"""The speed of a fake engine, compared with published measurements of real engines."""

from __future__ import annotations

import msgspec
import pytest

from lab.engine.accelerators import ACCELERATORS, Accelerator
from lab.engine.deployment import Deployment, min_deployment
from lab.engine.models import MODELS
from lab.engine.step_time import StepTime

LLAMA_8B = MODELS["llama-3.1-8b"]


def step_time(accelerator: Accelerator, devices: int = 1) -> StepTime:
    return StepTime(Deployment(LLAMA_8B, accelerator, devices))


def decode_s(step: StepTime, batch: int, context_tokens: int) -> float:
    return step.seconds(batch, batch, batch * context_tokens, batch * context_tokens)


def prefill_s(step: StepTime, tokens: int) -> float:
    return step.seconds(tokens, 1, tokens, tokens * (tokens + 1) / 2)


@pytest.mark.parametrize(
    ("accelerator", "batch", "context_tokens", "published_ms"),
    [
        # vLLM 0.21, H100 80 GB, fp16, short chats, concurrency 1 and 4: InferenceBench, "Recipe: concurrency sweep".
        (ACCELERATORS["h100"], 1, 300, 6.48),
        (ACCELERATORS["h100"], 4, 300, 6.59),
    ],
)
def test_time_per_token_is_within_a_tenth_of_published(
    accelerator: Accelerator, batch: int, context_tokens: int, published_ms: float
) -> None:
    assert decode_s(step_time(accelerator), batch, context_tokens) * 1000 == pytest.approx(published_ms, rel=0.1)


def test_time_to_first_token_is_a_little_less_than_published_with_http_and_tokenizer() -> None:
    # NVIDIA NIM, A100 80 GB SXM, bf16, 500 tokens, concurrency 1: 48.3 ms.
    assert 0.85 * 48.3 < prefill_s(step_time(ACCELERATORS["a100"]), 500) * 1000 < 48.3


def test_faster_memory_decodes_faster_and_faster_arithmetic_prefills_faster() -> None:
    by_bandwidth = sorted(ACCELERATORS.values(), key=lambda a: a.bandwidth_bytes_per_s)
    decode_times = [decode_s(step_time(accelerator), 1, 500) for accelerator in by_bandwidth]
    assert decode_times == sorted(decode_times, reverse=True)
    assert prefill_s(step_time(ACCELERATORS["l40s"]), 2000) < prefill_s(step_time(ACCELERATORS["a100"]), 2000)


def test_decode_slows_with_batch_and_with_kv() -> None:
    step = step_time(ACCELERATORS["h100"])
    assert decode_s(step, 1, 500) < decode_s(step, 64, 500) < decode_s(step, 256, 500)
    assert decode_s(step, 64, 500) < decode_s(step, 64, 4000)
    # With batching, 64 sequences take far less than 64 times as long as one.
    assert decode_s(step, 64, 500) < 2 * decode_s(step, 1, 500)


def test_long_prompts_cost_more_than_their_length() -> None:
    step = step_time(ACCELERATORS["h100"])
    assert prefill_s(step, 100_000) > 1.5 * 50 * prefill_s(step, 2000)


def test_more_devices_are_faster_but_not_in_proportion() -> None:
    single, fourfold = step_time(ACCELERATORS["h100"], 1), step_time(ACCELERATORS["h100"], 4)
    assert decode_s(single, 8, 1000) / 4 < decode_s(fourfold, 8, 1000) < decode_s(single, 8, 1000)


def test_a_model_takes_as_few_devices_as_hold_it_and_some_kv() -> None:
    devices = {
        (model, accelerator): deployment and deployment.tensor_parallel
        for model in MODELS
        for accelerator in ACCELERATORS
        for deployment in [min_deployment(MODELS[model], ACCELERATORS[accelerator])]
    }
    assert devices["llama-3.1-8b", "l4"] == 1
    assert devices["llama-3.1-8b", "h100"] == 1
    assert devices["llama-3.1-70b", "h100"] == 4
    assert devices["llama-3.1-70b", "mi300x"] == 1


def test_a_model_too_large_for_eight_devices_has_no_deployment() -> None:
    huge = msgspec.structs.replace(MODELS["llama-3.1-70b"], parameters=405_000_000_000)
    assert min_deployment(huge, ACCELERATORS["l4"]) is None
    assert Deployment(huge, ACCELERATORS["l4"], 8).kv_blocks == 0


def test_the_cache_limits_the_length_of_a_sequence() -> None:
    on_l4 = Deployment(LLAMA_8B, ACCELERATORS["l4"], 1)
    assert on_l4.max_sequence_tokens == on_l4.kv_tokens < LLAMA_8B.context_tokens
    assert Deployment(LLAMA_8B, ACCELERATORS["h100"], 1).max_sequence_tokens == LLAMA_8B.context_tokens


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_parameter_counts_follow_from_the_shapes(model: object) -> None:
    # Intermediate sizes of the gated MLP, from the same config.json files.
    intermediate = {"llama-3.1-8b": 14336, "llama-3.1-70b": 28672, "qwen2.5-32b": 27648}
    assert isinstance(model, type(LLAMA_8B))
    hidden, kv = model.hidden_size, model.kv_heads * model.head_size
    layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * intermediate[model.name]
    assert model.layers * layer + 2 * model.vocabulary * hidden == pytest.approx(model.parameters, rel=1e-4)


def test_loading_takes_longer_for_larger_models() -> None:
    small = Deployment(LLAMA_8B, ACCELERATORS["h100"], 1)
    large = Deployment(MODELS["llama-3.1-70b"], ACCELERATORS["mi300x"], 1)
    assert 30 < small.load_s < large.load_s < 300

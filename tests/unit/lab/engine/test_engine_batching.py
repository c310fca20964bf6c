"""The scheduler of a pass: computed tokens, waiting requests, preemption, and cached prefixes."""

from __future__ import annotations

import msgspec
import pytest

from lab.engine.accelerators import ACCELERATORS, Accelerator
from lab.engine.batching import BatchingModel, Sequence
from lab.engine.deployment import Deployment
from lab.engine.models import MODELS
from lab.engine.step_time import StepTime

STEP_TIME = StepTime(Deployment(MODELS["llama-3.1-8b"], ACCELERATORS["h100"], 1))


def engine(kv_blocks: int = 20_000, max_num_seqs: int = 256, budget: int = 2048) -> BatchingModel:
    return BatchingModel(STEP_TIME, kv_blocks, max_num_seqs, budget)


def one_pass(model: BatchingModel) -> dict[Sequence, int]:
    """Run one pass and return its computed tokens."""
    step = model.begin(horizon_s=0)
    assert step is not None
    assert len(step.durations_s) == 1
    model.complete(step)
    return step.work


def time_until(model: BatchingModel, sequence: Sequence, tokens: int, horizon_s: float = 0) -> float:
    """Run until the sequence has generated `tokens`; the modelled time that took."""
    elapsed_s = 0.0
    while sequence.generated < tokens:
        step = model.begin(horizon_s)
        assert step is not None
        elapsed_s += step.total_s
        model.complete(step)
    return elapsed_s


def ttft_s(prompt_tokens: int, model: BatchingModel | None = None, spans: tuple[int, ...] = ()) -> float:
    model = model or engine()
    sequence = Sequence(prompt_tokens, 1, spans)
    model.add(sequence)
    return time_until(model, sequence, 1)


def test_time_to_first_token_grows_with_the_prompt() -> None:
    times = [ttft_s(tokens) for tokens in (100, 500, 2000, 8000, 30_000)]
    assert times == sorted(times)
    assert times[-1] > 10 * times[1]


def test_a_prompt_is_computed_in_chunks_beside_the_decodes() -> None:
    model = engine(budget=512)
    chatting, pasting = Sequence(100, 50), Sequence(1200, 5)
    model.add(chatting)
    one_pass(model)
    model.add(pasting)
    assert one_pass(model) == {chatting: 1, pasting: 511}
    assert one_pass(model) == {chatting: 1, pasting: 511}
    assert pasting.generated == 0
    assert one_pass(model) == {chatting: 1, pasting: 178}
    assert pasting.generated == 1
    assert one_pass(model) == {chatting: 1, pasting: 1}


def test_a_decode_is_slower_while_a_prompt_is_computed() -> None:
    model = engine()
    chatting = Sequence(100, 50)
    model.add(chatting)
    one_pass(model)
    alone = time_until(model, chatting, 2)
    model.add(Sequence(30_000, 5))
    assert time_until(model, chatting, 3) > 5 * alone


def test_decode_slows_with_batch_size_and_context() -> None:
    def second_token_s(batch: int, prompt_tokens: int) -> float:
        model = engine(budget=10_000_000, kv_blocks=100_000)
        sequences = [Sequence(prompt_tokens, 5) for _ in range(batch)]
        for sequence in sequences:
            model.add(sequence)
        one_pass(model)
        return time_until(model, sequences[0], 2)

    assert second_token_s(1, 500) < second_token_s(50, 500) < second_token_s(200, 500)
    assert second_token_s(50, 500) < second_token_s(50, 5000)


def test_concurrent_sequences_are_limited() -> None:
    model = engine(max_num_seqs=2)
    sequences = [Sequence(10, 3) for _ in range(5)]
    for sequence in sequences:
        model.add(sequence)
    one_pass(model)
    assert (len(model.running), len(model.waiting)) == (2, 3)
    one_pass(model)
    one_pass(model)
    assert sequences[0].finished
    one_pass(model)
    assert set(model.running) == {sequences[2], sequences[3]}


def test_a_prompt_that_does_not_fit_beside_the_others_waits() -> None:
    model = engine(kv_blocks=100)
    first, second = Sequence(1000, 100), Sequence(1000, 10)
    model.add(first)
    model.add(second)
    one_pass(model)
    assert list(model.running) == [first]
    time_until(model, first, 100)
    assert time_until(model, second, 10) > 0
    assert model.preemptions == 0


def test_a_full_cache_preempts_the_youngest_sequence() -> None:
    model = engine(kv_blocks=100)
    old, young = Sequence(700, 300), Sequence(700, 300)
    model.add(old)
    model.add(young)
    one_pass(model)
    assert list(model.running) == [old, young]
    time_until(model, old, 300)
    assert model.preemptions >= 1
    time_until(model, young, 300)
    assert young.finished
    assert model.kv.held_blocks == 0


def test_a_preempted_sequence_is_not_admitted_in_the_same_pass() -> None:
    model = engine(kv_blocks=100, budget=400)  # chunks so small that one would fit at once
    old, young = Sequence(799, 300), Sequence(799, 300)
    model.add(old)
    model.add(young)
    while not model.preemptions:
        step = model.begin(0)
        assert step is not None
        if model.preemptions:
            assert young not in step.work
        model.complete(step)
    assert list(model.waiting) == [young]


def test_a_shared_prefix_is_not_computed_again() -> None:
    model = engine()
    spans = (11, 12, 13, 14)
    cold_s = ttft_s(2100, model, spans)
    warm_s = ttft_s(2100, model, spans)
    assert warm_s < cold_s / 2
    assert model.prefix_hit_tokens == 4 * 512
    sequence = Sequence(2100, 1, spans)
    model.add(sequence)
    assert one_pass(model) == {sequence: 2100 - 2048}
    assert sequence.cached_tokens == 2048


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    model = engine()
    ttft_s(1024, model, (1, 2))
    sequence = Sequence(1024, 2, (1, 2))
    model.add(sequence)
    assert one_pass(model) == {sequence: 1}
    assert sequence.generated == 1


def test_ids_beyond_the_prompt_are_ignored() -> None:
    assert Sequence(1000, 1, (1, 2, 3)).spans == (1,)
    assert Sequence(100, 1, (1,)).spans == ()


def test_an_abort_frees_everything_at_once_in_any_state() -> None:
    model = engine(max_num_seqs=1)
    running, waiting = Sequence(3000, 10, (1, 2)), Sequence(3000, 10)
    model.add(running)
    model.add(waiting)
    step = model.begin(0)
    assert step is not None
    assert model.kv.held_blocks > 0
    model.abort(running)
    model.abort(waiting)
    assert model.kv.held_blocks == 0
    assert model.complete(step) == []
    assert model.begin(0) is None
    model.abort(running)


def test_merged_passes_change_neither_tokens_nor_time() -> None:
    def run(horizon_s: float) -> tuple[float, list[int], int]:
        model = engine(max_num_seqs=8)
        sequences = [Sequence(200 + 31 * n, 20 + 7 * n) for n in range(12)]
        for sequence in sequences:
            model.add(sequence)
        elapsed_s, steps = 0.0, 0
        while (step := model.begin(horizon_s)) is not None:
            elapsed_s += step.total_s
            steps += 1
            model.complete(step)
        return elapsed_s, [sequence.generated for sequence in sequences], steps

    one_by_one_s, tokens, steps = run(0)
    together_s, tokens_together, steps_together = run(0.1)
    assert tokens_together == tokens
    assert together_s == pytest.approx(one_by_one_s, rel=1e-9)
    assert steps_together < steps / 3


def test_passes_that_have_not_begun_can_be_removed() -> None:
    model = engine()
    sequence = Sequence(100, 50)
    model.add(sequence)
    one_pass(model)
    step = model.begin(horizon_s=0.1)
    assert step is not None
    first_s, second_s = step.durations_s[:2]
    assert step.passes_begun(0) == 1
    assert step.passes_begun(first_s * 1.01) == 2
    assert step.passes_begun(10) == len(step.durations_s)
    step.cut(2)
    assert step.total_s == pytest.approx(first_s + second_s)
    assert model.complete(step) == [(sequence, 2)]
    assert sequence.generated == 3


def test_admission_is_reported_once_in_spite_of_preemptions() -> None:
    model = engine(kv_blocks=100)
    sequences = [Sequence(700, 300), Sequence(700, 300)]
    for sequence in sequences:
        model.add(sequence)
    admitted: list[Sequence] = []
    while (step := model.begin(0)) is not None:
        admitted += step.admitted
        model.complete(step)
    assert model.preemptions
    assert admitted == sequences


def test_a_sequence_longer_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than the whole KV cache"):
        engine(kv_blocks=10).add(Sequence(100, 100))


def closed_loop_tokens_per_s(
    accelerator: Accelerator, clients: int, prompt_tokens: int, output_tokens: int, requests: int, budget: int
) -> float:
    """The throughput of clients that each send the next request after the last response, as benchmark tools do."""
    deployment = Deployment(MODELS["llama-3.1-8b"], accelerator, 1)
    model = BatchingModel(StepTime(deployment), deployment.kv_blocks, 256, budget)
    for _ in range(clients):
        model.add(Sequence(prompt_tokens, output_tokens))
    to_come, elapsed_s = requests - clients, 0.0
    while (step := model.begin(horizon_s=0.05)) is not None:
        elapsed_s += step.total_s
        finished = sum(sequence.finished for sequence, _ in model.complete(step))
        for _ in range(min(finished, to_come)):
            model.add(Sequence(prompt_tokens, output_tokens))
        to_come -= min(finished, to_come)
    return requests * output_tokens / elapsed_s


def test_an_a100_scales_with_concurrency_as_published() -> None:
    # J. Musgrave, "vLLM throughput-latency sweep on NVIDIA A100" (40 GB): about 75 tokens/s alone, 6.6 times that at 8.
    a100_40gb = msgspec.structs.replace(ACCELERATORS["a100"], memory_bytes=40e9, bandwidth_bytes_per_s=1.555e12)
    alone, eight = (closed_loop_tokens_per_s(a100_40gb, n, 1024, 128, 20 * n, 2048) for n in (1, 8))
    assert alone == pytest.approx(75, rel=0.1)
    assert eight / alone == pytest.approx(6.6, rel=0.2)


def test_a_full_h100_makes_as_many_tokens_as_published() -> None:
    # Morph, "vLLM benchmarks": about 12,500 tokens/s, Llama-3.1-8B in bf16 on one H100; lengths are not given.
    tokens_per_s = closed_loop_tokens_per_s(ACCELERATORS["h100"], 256, 200, 200, 1024, 8192)
    assert tokens_per_s == pytest.approx(12_500, rel=0.2)

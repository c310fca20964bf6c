"""For any order of arrivals, ends and aborts: no KV block is lost, no limit exceeded, no request starves."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lab.engine.accelerators import ACCELERATORS
from lab.engine.batching import BatchingModel, Sequence, Step
from lab.engine.deployment import KV_BLOCK_TOKENS, Deployment
from lab.engine.kv_cache import SPAN_BLOCKS
from lab.engine.models import MODELS
from lab.engine.step_time import StepTime
from tests.support.examples import examples

STEP_TIME = StepTime(Deployment(MODELS["llama-3.1-8b"], ACCELERATORS["h100"], 1))
KV_BLOCKS = 200
MAX_TOKENS = KV_BLOCKS * KV_BLOCK_TOKENS


class Scheduler(RuleBasedStateMachine):
    """Drives a small engine, so that waiting, preemption and eviction all happen."""

    @initialize(max_num_seqs=st.integers(1, 6), budget=st.integers(16, 2048))
    def start(self, max_num_seqs: int, budget: int) -> None:
        self.model = BatchingModel(STEP_TIME, KV_BLOCKS, max_num_seqs, budget)
        self.max_num_seqs, self.budget = max_num_seqs, budget
        self.live: list[Sequence] = []
        self.step: Step | None = None

    @rule(prompt=st.integers(1, MAX_TOKENS - 1), output=st.integers(1, 300), family=st.integers(0, 2))
    def add(self, prompt: int, output: int, family: int) -> None:
        sequence = Sequence(prompt, min(output, MAX_TOKENS - prompt), tuple(range(family * 100, family * 100 + 6)))
        self.live.append(sequence)
        self.model.add(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.live.remove(sequence)
        self.model.abort(sequence)

    @precondition(lambda self: self.step is None)
    @rule(horizon_s=st.sampled_from([0.0, 0.05, 1.0]))
    def begin(self, horizon_s: float) -> None:
        self.step = self.model.begin(horizon_s)
        assert (self.step is None) == (not self.live), "idle exactly when there is nothing to do"
        if self.step is not None:
            assert sum(self.step.work.values()) <= self.budget
            assert all(duration_s > 0 for duration_s in self.step.durations_s)

    @precondition(lambda self: self.step is not None)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        assert self.step is not None
        self.step.cut(data.draw(st.integers(1, len(self.step.durations_s))))
        before = {sequence: sequence.generated for sequence in self.live}
        for sequence, tokens in self.model.complete(self.step):
            assert sequence.generated == before[sequence] + tokens
            if sequence.finished:
                assert sequence.generated == sequence.output_tokens
                self.live.remove(sequence)
        self.step = None

    @invariant()
    def blocks_are_conserved(self) -> None:
        kv = self.model.kv
        shared = {span for sequence in self.model.running for span in sequence.spans[: sequence.spans_held]}
        private = sum(sequence.private_blocks for sequence in self.model.running)
        assert kv.held_blocks == private + len(shared) * SPAN_BLOCKS
        assert kv.held_blocks + kv.cached_blocks + kv.free_blocks == KV_BLOCKS
        assert min(kv.held_blocks, kv.cached_blocks, kv.free_blocks) >= 0
        for sequence in self.model.running:
            held = sequence.private_blocks + sequence.spans_held * SPAN_BLOCKS
            assert held * KV_BLOCK_TOKENS >= sequence.computed
        assert all(not sequence.private_blocks and not sequence.spans_held for sequence in self.model.waiting)

    @invariant()
    def everyone_is_in_one_place(self) -> None:
        assert len(self.model.running) <= self.max_num_seqs
        assert sorted(map(id, (*self.model.running, *self.model.waiting))) == sorted(map(id, self.live))

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        if self.step is not None:
            self.model.complete(self.step)
        for _ in range(200_000):
            step = self.model.begin(1.0)
            if step is None:
                break
            self.model.complete(step)
        assert not self.model.running, "every sequence gets to its end"
        assert not self.model.waiting
        assert self.model.kv.held_blocks == 0


TestScheduler = Scheduler.TestCase
TestScheduler.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)

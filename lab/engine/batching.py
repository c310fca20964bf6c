"""Continuous batching with chunked prefill, as in vLLM's V1 scheduler: a state machine without a clock.

`begin` schedules the next step and computes its duration; `complete` applies the step. The caller waits for the
duration in between. Passes that only decode may be combined into one step; the duration of each pass is still computed
separately, so only the number of the caller's wake-ups changes.

Running sequences are scheduled first, in order of admission, each with one token or the next chunk of its prompt; the
rest of the token budget admits waiting sequences. If the KV cache is full, the youngest running sequence is preempted:
its blocks are released and recomputed later (vLLM docs, "Optimization and Tuning"; chunked prefill: Agrawal et al.,
"Sarathi-Serve", OSDI 2024; paged KV: Kwon et al., SOSP 2023).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items

from lab.engine.accelerators import ACCELERATORS
from lab.engine.deployment import KV_BLOCK_TOKENS, min_deployment
from lab.engine.kv_cache import SPAN_TOKENS, KvCache
from lab.engine.models import MODELS
from lab.engine.step_time import StepTime

MAX_BATCHED_TOKENS = 2048
"""Maximum number of new tokens per pass: vLLM's default."""

MAX_PASSES = 64
"""Maximum number of passes in one step."""


class Sequence:
    """One request in the engine."""

    __slots__ = (
        "admitted",
        "cached_tokens",
        "computed",
        "generated",
        "output_tokens",
        "private_blocks",
        "prompt_tokens",
        "spans",
        "spans_held",
    )

    def __init__(self, prompt_tokens: int, output_tokens: int, spans: Items[int] = ()) -> None:
        """Create a sequence that stops after `output_tokens`.

        Args:
            prompt_tokens: at least 1.
            output_tokens: at least 1.
            spans: prefix ids of the prompt; ids of incomplete spans are ignored.
        """
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.spans = tuple(spans[: prompt_tokens // SPAN_TOKENS])
        self.generated = 0
        self.computed = 0
        """Tokens whose KV is in the cache."""
        self.cached_tokens = 0
        """Prompt tokens that the prefix cache contained at admission."""
        self.spans_held = 0
        """Number of leading spans that the sequence holds; its other blocks are private."""
        self.private_blocks = 0
        self.admitted = False
        """Whether prefill has ever started, also before a preemption."""

    @property
    def known_tokens(self) -> int:
        """Tokens of the prompt and the output so far, which must be computed before the next token is sampled."""
        return self.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        """Whether all output tokens are generated."""
        return self.generated >= self.output_tokens


class Step:
    """A batch and the duration of each pass over the batch."""

    __slots__ = ("admitted", "durations_s", "work")

    def __init__(self, work: dict[Sequence, int], admitted: list[Sequence], durations_s: list[float]) -> None:
        self.work = work
        """New tokens per sequence and pass, in order of admission."""
        self.admitted = admitted
        """Sequences whose prefill starts for the first time in this step."""
        self.durations_s = durations_s
        """Duration of each pass (s of the modelled hardware)."""

    @property
    def total_s(self) -> float:
        """Total duration (s) of all passes."""
        return sum(self.durations_s)

    def passes_begun(self, elapsed_s: float) -> int:
        """Number of passes that have started `elapsed_s` after the step, which can no longer be cancelled."""
        for count, duration_s in enumerate(self.durations_s, 1):
            elapsed_s -= duration_s
            if elapsed_s < 0:
                return count
        return len(self.durations_s)

    def cut(self, passes: int) -> None:
        """Remove all passes after the first `passes`."""
        del self.durations_s[passes:]


class BatchingModel:
    """The scheduler of one engine."""

    def __init__(self, step_time: StepTime, kv_blocks: int, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """Create an idle scheduler.

        Args:
            step_time: durations of passes.
            kv_blocks: size of the KV cache (blocks); each sequence must fit in the cache on its own.
            max_num_seqs: maximum number of running sequences.
            max_num_batched_tokens: maximum number of new tokens per pass.
        """
        self._step_time = step_time
        self.max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self.kv = KvCache(kv_blocks)
        self.running: dict[Sequence, None] = {}
        """Running sequences, in order of admission."""
        self.waiting: deque[Sequence] = deque()
        self.preemptions = 0
        self.prefix_queried_tokens = 0
        self.prefix_hit_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """Append a new sequence to the waiting queue.

        Raises:
            ValueError: the sequence is larger than the KV cache.
        """
        if _blocks(sequence.prompt_tokens + sequence.output_tokens) > self.kv.total_blocks:
            raise ValueError("the sequence is longer than the whole KV cache")
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Remove a sequence and free its blocks at once; a sequence that has finished is ignored."""
        if sequence in self.running:
            self._stop(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def begin(self, horizon_s: float) -> Step | None:
        """Schedule the next step; None if no sequence can run.

        Args:
            horizon_s: passes that only decode are combined until their duration reaches this value (s).
        """
        preemptions = self.preemptions
        work = self._continue_running()
        # A sequence that was just preempted would only take the released blocks back.
        admitted = self._admit(work) if self.preemptions == preemptions else []
        if not work:
            return None
        durations_s = [self._pass_s(work)]
        only_decodes = all(sequence.known_tokens - sequence.computed == 1 for sequence in work)
        if only_decodes and self.preemptions == preemptions and len(work) == len(self.running):
            self._decode_on(work, durations_s, horizon_s)
        return Step(work, admitted, durations_s)

    def complete(self, step: Step) -> list[tuple[Sequence, int]]:
        """Apply a completed step. Returns the sequences that have new tokens, with the number of new tokens.

        Finished sequences are removed. Sequences that were aborted during the step are not returned.
        """
        passes = len(step.durations_s)
        fresh: list[tuple[Sequence, int]] = []
        for sequence, tokens in step.work.items():
            if sequence not in self.running:
                continue
            sequence.computed += tokens * passes
            self._share_spans(sequence)
            if sequence.computed < sequence.known_tokens:
                continue
            sequence.generated += passes
            fresh.append((sequence, passes))
            if sequence.finished:
                self._stop(sequence)
        return fresh

    def _continue_running(self) -> dict[Sequence, int]:
        budget = self._max_num_batched_tokens
        work: dict[Sequence, int] = {}
        for sequence in list(self.running):
            if sequence not in self.running:
                break  # preempted for an older sequence, as are all younger sequences
            tokens = min(sequence.known_tokens - sequence.computed, budget)
            if tokens and self._make_room(sequence, tokens):
                work[sequence] = tokens
                budget -= tokens
        return work

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Allocate blocks for `tokens`, preempting the youngest sequences first; False if it preempted `sequence`."""
        while not self._grow(sequence, tokens):
            youngest = next(reversed(self.running))
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _admit(self, work: dict[Sequence, int]) -> list[Sequence]:
        budget = self._max_num_batched_tokens - sum(work.values())
        admitted: list[Sequence] = []
        while self.waiting and budget and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            hit_tokens = self._hold_prefix(sequence)
            tokens = min(sequence.known_tokens - sequence.computed, budget)
            if not self._grow(sequence, tokens):
                self._release_blocks(sequence)
                break
            self.prefix_queried_tokens += sequence.known_tokens
            self.prefix_hit_tokens += hit_tokens
            if not sequence.admitted:
                sequence.admitted = True
                sequence.cached_tokens = hit_tokens
                admitted.append(sequence)
            self.waiting.popleft()
            self.running[sequence] = None
            work[sequence] = tokens
            budget -= tokens
        return admitted

    def _hold_prefix(self, sequence: Sequence) -> int:
        """Hold the cached prefix and return its tokens. The last token is always computed, to sample from it."""
        sequence.spans_held = self.kv.hold_prefix(sequence.spans)
        sequence.computed = min(sequence.spans_held * SPAN_TOKENS, sequence.known_tokens - 1)
        return sequence.computed

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        shared_tokens = sequence.spans_held * SPAN_TOKENS
        needed = _blocks(sequence.computed + tokens - shared_tokens) - sequence.private_blocks
        if needed > 0:
            if not self.kv.hold_blocks(needed):
                return False
            sequence.private_blocks += needed
        return True

    def _share_spans(self, sequence: Sequence) -> None:
        """Share completely computed spans with other sequences."""
        while (
            sequence.spans_held < len(sequence.spans) and (sequence.spans_held + 1) * SPAN_TOKENS <= sequence.computed
        ):
            self.kv.share_span(sequence.spans[sequence.spans_held])
            sequence.spans_held += 1
            sequence.private_blocks -= SPAN_TOKENS // KV_BLOCK_TOKENS

    def _decode_on(self, work: dict[Sequence, int], durations_s: list[float], horizon_s: float) -> None:
        """Add decode passes over the same batch until the horizon, or until a sequence finishes."""
        passes = min(min(sequence.output_tokens - sequence.generated for sequence in work), MAX_PASSES)
        count, context_tokens = len(work), sum(sequence.known_tokens for sequence in work)
        total_s = durations_s[0]
        while len(durations_s) < passes and total_s < horizon_s:
            context_tokens += count
            durations_s.append(self._step_time.seconds(count, count, context_tokens, context_tokens))
            total_s += durations_s[-1]
        for sequence in work:
            if not self._grow(sequence, len(durations_s)):
                del durations_s[1:]
                return

    def _pass_s(self, work: dict[Sequence, int]) -> float:
        tokens = samples = context_tokens = 0
        pairs = 0.0
        for sequence, new in work.items():
            end = sequence.computed + new
            tokens += new
            samples += end == sequence.known_tokens
            context_tokens += end
            pairs += new * (end - (new - 1) / 2)
        return self._step_time.seconds(tokens, samples, context_tokens, pairs)

    def _preempt(self, sequence: Sequence) -> None:
        self._stop(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _stop(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self._release_blocks(sequence)

    def _release_blocks(self, sequence: Sequence) -> None:
        self.kv.release(sequence.private_blocks, sequence.spans[: sequence.spans_held])
        sequence.private_blocks = sequence.spans_held = sequence.computed = 0


def batching_model(model: str, accelerator: str, max_num_seqs: int) -> BatchingModel:
    """Return an idle scheduler of a model on the fewest devices that hold it, with vLLM's default of new tokens."""
    deployment = min_deployment(MODELS[model], ACCELERATORS[accelerator])
    assert deployment is not None, f"{model} does not fit on {accelerator}"
    return BatchingModel(StepTime(deployment), deployment.kv_blocks, max_num_seqs, MAX_BATCHED_TOKENS)


def _blocks(tokens: int) -> int:
    return -(-tokens // KV_BLOCK_TOKENS)

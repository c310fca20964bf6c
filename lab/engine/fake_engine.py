"""Runs one engine's batching model in real time: delivers tokens, records witness events and updates metrics."""

from __future__ import annotations

import asyncio

import msgspec

from lab.engine.batching import BatchingModel, Sequence, Step
from lab.engine.deployment import KV_BLOCK_TOKENS
from lab.engine.engine_config import EndpointConfig
from lab.engine.engine_response import Answer
from lab.engine.faults import NO_FAULTS, Faults
from lab.engine.metrics import EngineMetrics
from lab.engine.step_time import StepTime
from lab.engine.witness_log import WitnessEvent, WitnessLog

WAKE_INTERVAL_S = 0.01
"""Passes that only decode are combined up to this wall-clock time (s), to save wake-ups and writes."""

GREATEST_LAG_S = 0.25
"""Maximum lag (s) behind the modelled hardware that an engine catches up; a longer lag, as after a SIGSTOP, remains."""

RESET_GRACE_S = 0.005
"""Time (s) before the reset of a connection in which written tokens reach the socket."""


class Engine:
    """Runs a batching model in real time. While a step runs, exactly one timer waits for its end."""

    def __init__(self, config: EndpointConfig, witness: WitnessLog, loop: asyncio.AbstractEventLoop) -> None:
        """Create an engine; it starts to load its model immediately.

        Args:
            config: validated configuration of the engine.
            witness: log of the events of requests.
            loop: event loop whose clock the engine uses.
        """
        deployment = config.deployment
        self._config = config
        self._witness = witness
        self._loop = loop
        self._model = BatchingModel(
            StepTime(deployment), deployment.kv_blocks, config.max_num_seqs, config.max_num_batched_tokens
        )
        self._metrics = EngineMetrics(config.served_model_name)
        self._answers: dict[Sequence, Answer] = {}
        self._step: Step | None = None
        self._step_begins = 0.0
        """Start of the current step (s on the loop's clock); a late timer does not shift later steps."""
        self._timer: asyncio.TimerHandle | None = None
        self.faults = NO_FAULTS
        self.loaded = False
        self._loading = loop.call_later(config.cold_start_s / config.time_scale, self._become_ready)

    @property
    def _wall_per_model_s(self) -> float:
        return self.faults.slow / self._config.time_scale

    def submit(self, answer: Answer) -> None:
        """Queue a request; its response receives tokens until it is finished or cancelled."""
        self._answers[answer.sequence] = answer
        self._model.add(answer.sequence)
        answer.accept()
        if self.faults.die_mid_stream == 0:
            self._kill(answer, 0)
        self._wake()

    def cancel(self, answer: Answer) -> None:
        """Abort the request of a client that disconnected and release its blocks; a finished request is ignored."""
        if self._answers.pop(answer.sequence, None) is None:
            return
        self._model.abort(answer.sequence)
        self._metrics.finished["abort"] += 1
        self._record(WitnessEvent.ABORTED, answer)
        self._wake()

    def set_faults(self, faults: Faults) -> None:
        """Replace the active faults. A hang stops the clock; the step in progress continues after the hang."""
        self.faults = faults
        if faults.hang and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not faults.hang and self._step is not None and self._timer is None:
            self._wait_for_step(self._loop.time())
        self._wake()

    def render_metrics(self) -> bytes:
        """Metrics in Prometheus text format."""
        return self._metrics.render(self._model, KV_BLOCK_TOKENS)

    def render_load(self) -> bytes:
        """Response of SGLang's /get_load, which SGLang's router polls for the policy power_of_two."""
        running, waiting = self._model.running, self._model.waiting
        tokens = sum(sequence.known_tokens for sequence in (*running, *waiting))
        load = {"dp_rank": 0, "num_reqs": len(running) + len(waiting), "num_waiting_reqs": len(waiting)}
        return msgspec.json.encode([{**load, "num_tokens": tokens}])

    def close(self) -> None:
        """Stop the engine permanently."""
        self._loading.cancel()
        self.set_faults(Faults(hang=True))

    def _become_ready(self) -> None:
        self.loaded = True

    def _wake(self) -> None:
        """Start a step after a change: immediately if idle, else after the current pass."""
        if self.faults.hang:
            return
        now = self._loop.time()
        if self._step is None:
            self._begin(now)
        elif self._timer is not None and len(self._step.durations_s) > 1:
            elapsed_s = (now - self._step_begins) / self._wall_per_model_s
            self._step.cut(self._step.passes_begun(elapsed_s))
            self._timer.cancel()
            self._wait_for_step(self._step_begins)

    def _begin(self, at: float) -> None:
        """Start the next step, if any, at `at` (loop clock; may be slightly in the past)."""
        self._step = step = self._model.begin(WAKE_INTERVAL_S / self._wall_per_model_s)
        if step is None:
            return
        now = self._loop.time()
        for sequence in step.admitted:
            answer = self._answers[sequence]
            self._metrics.request_queue_time_s.observe(now - answer.arrived_at)
            self._record(WitnessEvent.STARTED, answer)
        self._wait_for_step(at)

    def _wait_for_step(self, begins: float) -> None:
        assert self._step is not None
        self._step_begins = begins
        ends = begins + self._step.total_s * self._wall_per_model_s
        self._timer = self._loop.call_at(ends, self._end_step, ends)

    def _end_step(self, due: float) -> None:
        step, self._step, self._timer = self._step, None, None
        assert step is not None
        now = self._loop.time()
        self._metrics.busy_s += step.total_s * self.faults.slow
        later_tokens = 0
        for sequence, tokens in self._model.complete(step):
            later_tokens += self._hand_out(self._answers[sequence], tokens, now)
        if later_tokens:
            for duration_s in step.durations_s:
                self._metrics.inter_token_latency_s.observe(duration_s * self._wall_per_model_s, later_tokens)
        self._begin(max(due, now - GREATEST_LAG_S))

    def _hand_out(self, answer: Answer, tokens: int, now: float) -> bool:
        """Deliver new tokens to a response; returns whether it had tokens before."""
        metrics, sequence = self._metrics, answer.sequence
        first = answer.first_token_at is None
        if first:
            answer.first_token_at = now
            metrics.prompt_tokens += sequence.prompt_tokens
            metrics.time_to_first_token_s.observe(now - answer.arrived_at)
        metrics.generation_tokens += tokens
        fatal = self.faults.die_mid_stream
        if answer.dying:
            return not first
        if fatal is not None and sequence.generated >= fatal:
            self._kill(answer, fatal)
            return not first
        if sequence.finished:
            del self._answers[sequence]
            metrics.finished[answer.finish_reason] += 1
            metrics.e2e_request_latency_s.observe(now - answer.arrived_at)
            self._record(WitnessEvent.FINISHED, answer)
        answer.deliver()
        return not first

    def _kill(self, answer: Answer, tokens: int) -> None:
        answer.die_after(tokens)
        self._loop.call_later(RESET_GRACE_S, answer.break_off)

    def _record(self, event: WitnessEvent, answer: Answer) -> None:
        tokens = None
        if event is not WitnessEvent.STARTED:
            tokens = answer.sequence.prompt_tokens, answer.sequence.generated
        self._witness.write(event, self._config.name, answer.request_id, answer.required, tokens)

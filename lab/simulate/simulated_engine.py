"""One engine on the virtual clock, based on the lab's batching model."""

from __future__ import annotations

from collections.abc import Callable

from lab.engine.batching import Sequence, Step, batching_model
from lab.simulate.clock import VirtualClock

HORIZON_S = 0.05
"""Maximum duration (s) of decode passes that are combined into one step."""


class SimulatedEngine:
    """Runs the steps of a batching model with their modelled durations."""

    def __init__(self, clock: VirtualClock, model: str, accelerator: str, max_num_seqs: int) -> None:
        """Create an idle engine with a loaded model."""
        self.busy_s = 0.0
        """Total duration (s) of all passes."""
        self._clock = clock
        self._model = batching_model(model, accelerator, max_num_seqs)
        self._watchers: dict[Sequence, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._step: Step | None = None
        self._began_at = 0.0
        self._turn = 0

    @property
    def running(self) -> int:
        """Number of sequences in the batch."""
        return len(self._model.running)

    @property
    def waiting(self) -> int:
        """Number of sequences that wait for the batch."""
        return len(self._model.waiting)

    @property
    def kv_used(self) -> float:
        """Used share (0-1) of the KV cache."""
        return self._model.kv.usage

    def submit(self, sequence: Sequence, on_first: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Queue a sequence; the callbacks report its first and its last token."""
        self._watchers[sequence] = (on_first, on_end)
        self._model.add(sequence)
        if self._step is None:
            self._begin()
        elif len(self._step.durations_s) > 1:
            self._step.cut(self._step.passes_begun(self._clock.now - self._began_at))
            self._wait()

    def _begin(self) -> None:
        self._step = self._model.begin(HORIZON_S)
        if self._step is not None:
            self._began_at = self._clock.now
            self._wait()

    def _wait(self) -> None:
        assert self._step is not None
        self._turn += 1
        turn = self._turn
        self._clock.at(self._began_at + self._step.total_s, lambda: self._end(turn))

    def _end(self, turn: int) -> None:
        if turn != self._turn or self._step is None:
            return  # `submit` has shortened the step
        step, self._step = self._step, None
        self.busy_s += step.total_s
        callbacks = []
        for sequence, tokens in self._model.complete(step):
            on_first, on_end = self._watchers[sequence]
            if sequence.generated == tokens:
                callbacks.append(on_first)
            if sequence.finished:
                del self._watchers[sequence]
                callbacks.append(on_end)
        self._begin()
        for callback in callbacks:
            callback()

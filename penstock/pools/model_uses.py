"""When each model of one endpoint was last used, by this agent's requests and by what other agents publish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

LATELY_S = 0.5
"""Time (s) for which a published use counts as one that continues: agents publish ten times a second."""

MIN_IDLE_S = 0.001
"""Published time (s) of a use that has just ended."""


class ModelUses:
    """The uses of one endpoint's models.

    Requests count without a clock, so that they cost little: the time is that of the next `tick`.
    """

    __slots__ = ("_elsewhere", "_loaded_at", "_running", "_runs_elsewhere", "_touched", "_used_at")

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._touched: set[str] = set()
        """Models of requests that began or ended since the last tick."""
        self._used_at: dict[str, float] = {}
        self._elsewhere: dict[str, float] = {}
        """Times of the uses by other agents: published again, they would never grow old."""
        self._runs_elsewhere: dict[str, float] = {}
        """Times at which other agents last had requests."""
        self._loaded_at: dict[str, float] = {}

    def begun(self, model: str) -> None:
        """Count a request that begins."""
        self._running[model] = self._running.get(model, 0) + 1

    def ended(self, model: str) -> None:
        """Count the end of a request; one that began before this object existed is no longer counted."""
        self._touched.add(model)
        left = self._running.get(model, 0) - 1
        if left > 0:
            self._running[model] = left
        else:
            self._running.pop(model, None)

    def used_elsewhere(self, model: str, idle_s: float, at: float) -> None:
        """Record that another agent published at a time (s) how long it has not used a model; 0: it has requests."""
        self._elsewhere[model] = max(at - idle_s, self._elsewhere.get(model, -inf))
        if idle_s == 0.0:
            self._runs_elsewhere[model] = at

    def tick(self, loaded: Iterable[str], now: float) -> None:
        """Set the time (s) of what happened since the last tick, and of models that are `loaded` since then."""
        for model in (*self._touched, *self._running):
            self._used_at[model] = now
        self._touched.clear()
        self._loaded_at = {model: self._loaded_at.get(model, now) for model in loaded}

    def running(self, model: str) -> int:
        """The requests of this agent that run."""
        return self._running.get(model, 0)

    def runs_elsewhere(self, model: str, now: float) -> bool:
        """Whether another agent has requests for a model."""
        return now - self._runs_elsewhere.get(model, -inf) < LATELY_S

    def in_use(self, model: str, now: float) -> bool:
        """Whether requests for a model run."""
        return model in self._running or self.runs_elsewhere(model, now)

    def idle_s(self, model: str, now: float) -> float:
        """Time (s) since the last request or the load of a model."""
        if model in self._running or model in self._touched:
            return 0.0
        used_at = max(self._used_at.get(model, -inf), self._elsewhere.get(model, -inf))
        return max(0.0, now - max(used_at, self._loaded_at.get(model, now)))

    def own(self, now: float) -> Mapping[str, float]:
        """Time (s) since this agent last used each model that it has used; 0 while requests run."""
        idle = {model: max(MIN_IDLE_S, now - at) for model, at in self._used_at.items()}
        return {**idle, **dict.fromkeys(self._touched, MIN_IDLE_S), **dict.fromkeys(self._running, 0.0)}

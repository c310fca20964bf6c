"""What the engine of one endpoint reports about itself and its models, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

import structlog
from msgspec import UNSET

from penstock.health.engines.engine_facts import EngineFacts, combined
from penstock.health.engines.gpu_metrics import GpuState
from penstock.health.version_skew import Skew
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.on_demand import WakeMethod
from penstock.policy.kinds.warm_up import WarmUp

MODELS_INTERVAL_S: Final = 5.0
"""Interval (s) between two queries of a ready engine's loaded models."""

MIN_MODELS_INTERVAL_S: Final = 0.5
"""Minimum interval (s) between two such queries when requests fail with 404."""

FACTS_INTERVAL_S: Final = 30.0
"""Interval (s) between two reads of the pages on which a ready engine reports about itself."""

NO_FACTS: Final = EngineFacts()
NO_MODELS: Final[frozenset[str]] = frozenset()
NO_METHODS: Final[Mapping[str, WakeMethod]] = {}
NO_WARM_UPS: Final[Mapping[str, WarmUp]] = {}

log = structlog.get_logger()


class ReportedModels:
    """The models of one endpoint as its engine reports them."""

    def __init__(self) -> None:
        self.loaded: frozenset[str] | None = None
        """The loaded models; None if the engine does not report them."""
        self.adapters: frozenset[str] = frozenset()
        """Names of the loaded adapters."""
        self.facts = NO_FACTS
        """Versions, revisions and room."""
        self.skews: Mapping[str, Skew] = {}
        """How the endpoint differs from policy or siblings, by model; only models for which it does."""
        self.refused: frozenset[str] = frozenset()
        """Models that policy does not let the endpoint serve, because it serves another revision."""
        self.gpus: GpuState | None = None
        """The state of its GPUs; None if no exporter is configured, or the last read failed."""
        self.gpu_problem = ""
        """Why the last read of the GPUs failed; empty if it succeeded."""
        self.listed_at = -inf
        """Time (s) of the last list of models; -inf queries it with the next probe."""
        self.wake_methods: Mapping[str, WakeMethod] = NO_METHODS
        """How the models wake that are loaded on demand."""
        self.falls_asleep: frozenset[str] = frozenset()
        """Models that this agent lets sleep now, so that they receive no requests."""
        self.slept_until: dict[str, float] = {}
        """Until when (s) other agents may not have seen that this one has put a model to sleep."""
        self._asleep_elsewhere = NO_MODELS
        """Models that other agents let sleep, until a probe has read here that they sleep."""
        self._known_elsewhere = NO_MODELS
        """Models that other agents let sleep as they publish it."""
        self.warm_ups: Mapping[str, WarmUp] = NO_WARM_UPS
        """The warm-ups of the models that have one."""
        self.warm: frozenset[str] = frozenset()
        """Models of which the warm-up has ended; the others of `warm_ups` receive no requests."""
        self.warm_problem = ""
        """Why the last warm-up was incomplete; empty if it was complete."""
        self.wake_problem = ""
        """Why the endpoint does not wake or sleep; empty if the last attempt succeeded."""
        self.size_bytes: dict[str, float] = {}
        """Memory (bytes) of each model that the engine has reported while it was loaded."""
        self.other_bytes = 0.0
        """Memory (bytes) of what the engine has loaded beside the models on demand."""
        self._on_pages = NO_FACTS
        self._pages_at = -inf

    def loaded_of(self, configured: tuple[str, ...]) -> tuple[str, ...]:
        """Return the configured models that are loaded."""
        loaded = self.loaded
        return configured if loaded is None else tuple(model for model in configured if model in loaded)

    def accepted_of(self, configured: tuple[str, ...]) -> tuple[str, ...]:
        """Return the configured models that are loaded and that policy lets the endpoint serve."""
        loaded, withheld = self.loaded_of(configured), self.refused | self.going
        if self.warm_ups:
            withheld |= self.warm_ups.keys() - self.warm
        return tuple(model for model in loaded if model not in withheld) if withheld else loaded

    @property
    def going(self) -> frozenset[str]:
        """Models that an agent of the region lets sleep, so that they receive no requests."""
        return self.falls_asleep | self._asleep_elsewhere

    def put_to_sleep(self, now: float) -> frozenset[str]:
        """Return the models that this agent lets sleep, or has put to sleep without all agents having seen it."""
        return self.falls_asleep.union(model for model, until in self.slept_until.items() if now < until)

    def set_asleep_elsewhere(self, models: frozenset[str]) -> bool:
        """Apply what other agents let sleep; returns whether that has changed."""
        if models == self._known_elsewhere:
            return False
        self._asleep_elsewhere = (self._asleep_elsewhere & models) | (models - self._known_elsewhere)
        self._known_elsewhere = models
        return True

    def warms_up(self, model: str) -> bool:
        """Whether a configured model is loaded, and receives no requests until its warm-up has ended."""
        is_cold = model in self.warm_ups and model not in self.warm and model not in self.refused
        return is_cold and (self.loaded is None or model in self.loaded)

    def use_models(self, models: Mapping[str, Model], configured: tuple[str, ...]) -> None:
        """Use what policy states about the configured models: how they wake, and how they are warmed up."""
        known = [models[name] for name in configured if name in models]
        self.wake_methods = {each.name: each.on_demand.wake for each in known if each.on_demand is not UNSET}
        self.warm_ups = {each.name: each.warm_up for each in known if each.warm_up is not UNSET}

    def models_with(self, method: WakeMethod) -> list[str]:
        """Return the models that wake by a method."""
        return [model for model, used in self.wake_methods.items() if used is method]

    def context_tokens(self, model: str) -> int:
        """Return the context length of a model (tokens); 0 if the engine reports none."""
        return next((served.context_tokens for served in self.facts.served if served.model == model), 0)

    def are_due(self, now: float) -> bool:
        """Whether to query the models of a ready engine at `now` (s)."""
        return now - self.listed_at >= MODELS_INTERVAL_S

    def are_due_after_failure(self, now: float) -> bool:
        """Whether to query the models at `now` (s) because a request failed with 404."""
        return now - self.listed_at >= MIN_MODELS_INTERVAL_S

    def are_pages_due(self, now: float, *, ready: bool) -> bool:
        """Whether to read the engine's pages at `now` (s): with each probe of an engine that is not ready, else after
        FACTS_INTERVAL_S; once true, false until then."""
        if ready and now - self._pages_at < FACTS_INTERVAL_S:
            return False
        self._pages_at = now
        return True

    def set_pages(self, facts: EngineFacts) -> None:
        """Apply what the engine's own pages report; `set_listed` puts it in force."""
        self._on_pages = facts

    def set_listed(
        self, loaded: frozenset[str] | None, adapters: frozenset[str], facts: EngineFacts, now: float
    ) -> bool:
        """Apply a list of models, read at `now` (s). Returns whether any fact has changed."""
        self.loaded, self.adapters, self.listed_at = loaded, adapters, now
        if loaded is not None:
            self.slept_until = {model: at for model, at in self.slept_until.items() if model not in loaded}
            # What is read to sleep may wake while the other agent still publishes it.
            self._asleep_elsewhere &= loaded
        before, self.facts = self.facts, combined((facts, self._on_pages))
        return self.facts != before

    def set_skews(self, endpoint: str, skews: Mapping[str, Skew], refused: frozenset[str]) -> None:
        """Apply how the endpoint of this name differs, and the models that it may not serve."""
        if refused != self.refused:
            log.warning("models refused for their revision", endpoint=endpoint, models=sorted(refused))
        self.skews, self.refused = skews, refused

    @property
    def skew(self) -> str:
        """How the endpoint differs, for operators; empty if it does not."""
        return "; ".join(f"{model}: {self.skews[model].detail}" for model in sorted(self.skews))

"""An endpoint as its agent sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from math import inf
from random import Random
from typing import Final, NamedTuple

from penstock.health.endpoint_health import EndpointHealth, EndpointState, ProbeOutcome, broke, probed
from penstock.health.engine_kinds import EngineKind
from penstock.health.engine_signals import Readings, Signal, heard, pressure
from penstock.health.outlier_ejection import EjectionRules, Outcome, Standing, Trust, at, ended, taken
from penstock.health.warm_up import warm_since, warm_up_weight
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.pool_accounting import EndpointAccount
from penstock.routing.speed_learning import SpeedLearner
from regional_agent.endpoints.endpoint_fields import EndpointSpec

MODELS_EVERY_S: Final = 5.0
"""Time (s) between two questions for what an engine that is ready has loaded."""

MODELS_AGAIN_S: Final = 0.5
"""The least between two of them, whatever clients ask it for that it has not."""


FULL: Final = 1.0
"""What an engine says of its utilisation that takes no more."""


class OutlierDetection(NamedTuple):
    """What all endpoints of an agent are judged by."""

    rules: EjectionRules = EjectionRules()
    warm_up_s: float = 30.0
    """Time (s) over which a newcomer's weight grows to whole."""
    clock: Callable[[], float] = time.monotonic
    rng: Random = Random()
    """Spreads the ends of ejections."""


_TRUSTED, _SERVED, _INCONCLUSIVE = Trust.TRUSTED, Outcome.SERVED, Outcome.INCONCLUSIVE
"""In Python 3.11, to read a member off its class is a function call."""


class Endpoint(EndpointAccount):
    """One model server. Its `view` is what the core chooses by; only this class writes to it."""

    __slots__ = (
        "_judge",
        "_models_at",
        "_on_models",
        "_out_since",
        "_warm_since",
        "address",
        "health",
        "kind",
        "load_heard_at",
        "loaded",
        "readings",
        "signals_problem",
        "spec",
        "standing",
        "wake",
    )

    def __init__(
        self, spec: EndpointSpec, judge: OutlierDetection, on_models: Callable[[], None] = lambda: None
    ) -> None:
        """Not ready before its first good probe; `on_models` hears when other models are loaded than before."""
        super().__init__(EndpointView(spec.name, spec.slots, spec.slots + spec.queue), spec.accelerator)
        self.spec = spec
        self.address = spec.address
        """Where it listens."""
        self.health = EndpointHealth()
        """What its probes say."""
        self.standing = Standing()
        """What requests say."""
        self.kind = spec.engine
        """What runs there: as configured, or as found out."""
        self.loaded: frozenset[str] | None = None
        """Which of its models its engine says it has; None where it does not say."""
        self.readings: Readings = {}
        """How full its engine says it is."""
        self.load_heard_at = -inf
        """When a header of its answers was last read for that, in seconds."""
        self.signals_problem = ""
        """Why its metrics page was of no use when it was last read; empty when it was."""
        self._on_models = on_models
        self._models_at = -inf
        self._judge = judge
        self._warm_since = inf
        self._out_since = -inf
        self.wake = asyncio.Event()
        """Set to have it probed at once."""

    @property
    def models(self) -> tuple[str, ...]:
        """What it serves: those that are loaded of what it is configured with."""
        return self.spec.models if self.loaded is None else tuple(one for one in self.spec.models if one in self.loaded)

    def take(self, prefill_us: int = 0, decode_us: int = 0) -> None:
        """Count one more request of this agent, which may be the one that an ejected endpoint is tried with."""
        super().take(prefill_us, decode_us)
        if self.standing.trust is not _TRUSTED:
            self._trust(taken(self.standing))

    def resize(self, spec: EndpointSpec) -> None:
        """Take a changed entry of the file for the same server."""
        if spec.engine is not self.spec.engine:
            self.kind = spec.engine
            self.signals_problem = ""
        if spec.accelerator != self.spec.accelerator:
            self.learner = SpeedLearner(spec.accelerator)
        self.spec = spec
        self.view.slots = spec.slots
        self.view.limit = spec.slots + spec.queue
        self.view.update_score()
        self._models_at = -inf

    def retire(self) -> None:
        """Take no more requests; those on it may finish. The caller refills the pools."""
        self.view.draining = True
        self.view.update_score()
        self.pools = ()
        if self.health.ready:
            self._out_since = self._judge.clock()

    def come_back(self) -> None:
        """Take it back before its last requests have finished. It was not probed meanwhile, so a probe comes first.

        The caller refills the pools.
        """
        self.view.draining = False
        self.health = EndpointHealth()

    def probed(self, outcome: ProbeOutcome) -> None:
        """A health probe ended."""
        self._believe(probed(self.health, outcome))

    def models_due(self) -> bool:
        """Whether to ask what is loaded: now and then, and always before there is something and it is ready."""
        waits = not self.health.ready or not self.models
        return waits or self._judge.clock() - self._models_at >= MODELS_EVERY_S

    def missed(self) -> None:
        """It answered 404: ask soon what it has loaded, for one that turns requests down at once looks idle."""
        if self._judge.clock() - self._models_at >= MODELS_AGAIN_S:
            self._models_at = -inf
            self.wake.set()

    def heard_loaded(self, loaded: frozenset[str] | None) -> None:
        """Which of its models are loaded; None where its engine does not say."""
        self._models_at = self._judge.clock()
        before, self.loaded = self.models, loaded
        if self.models != before:
            self._on_models()

    def is_of(self, kind: EngineKind) -> None:
        """Take up what kind of engine it turned out to be, which may have to be asked for its models in another way."""
        self.kind = kind
        self._models_at = -inf
        self.wake.set()

    def heard_signals(self, told: Mapping[Signal, float]) -> None:
        """What its engine says of how full it is."""
        self.readings = heard(self.readings, told, self._judge.clock())

    def busy(self) -> None:
        """It turned a request down as too many: others come first for a while, or it would be offered every request."""
        self.heard_signals({Signal.UTILISATION: FULL})
        self.view.pressure = FULL
        self.view.update_score()

    def broke(self) -> None:
        """A request could not connect: out until a good probe, which comes at once."""
        if self.health.state is not EndpointState.DOWN:
            self._believe(broke(self.health))
            self.wake.set()

    def ended(self, outcome: Outcome, started_at: float) -> bool:
        """A request that was sent at `started_at` (s, the judge's clock) ended so; true where that ejects it."""
        judge, before = self._judge, self.standing
        if (outcome is _SERVED and before.spotless) or (outcome is _INCONCLUSIVE and not before.out):
            return False
        may_eject = all(pool.has_room_to_eject() for pool in self.pools)
        now = judge.clock()
        standing = ended(before, outcome, started_at, now, judge.rules, judge.rng, may_eject=may_eject)
        self._trust(standing)
        return standing.trust is Trust.EJECTED and before.trust is not Trust.EJECTED

    def now(self) -> float:
        """Seconds by the clock that everything remembered of it is timed by."""
        return self._judge.clock()

    def tick(self) -> None:
        """Time has passed: an ejection may be over, and a newcomer is warmer. The caller judges the pools."""
        now = self._judge.clock()
        self.standing = at(self.standing, now)
        self.view.weight = self._weight(now)
        if self.readings:
            self.view.pressure = pressure(self.readings, self.spec.slots, now)
        self.view.update_score()

    def update_readiness(self) -> None:
        """Let the view say whether it may take requests: alive, something loaded, and trusted or needed anyway."""
        alive = self.health.ready and bool(self.pools)
        self.view.ready = alive and (self.standing.open or any(pool.panics for pool in self.pools))
        self.view.trial = self.standing.trust is Trust.TRIAL
        self.view.update_score()

    def _trust(self, standing: Standing) -> None:
        before, self.standing = self.standing, standing
        if standing.trust is before.trust:
            return
        if standing.trust is Trust.TRUSTED:
            self._warm_since = self._judge.clock()
        self.view.weight = self._weight(self._judge.clock())
        self._recount()

    def _weight(self, now: float) -> float:
        """It warms up from when it is trusted."""
        if self.standing.out:
            return 1.0
        return warm_up_weight(max(0.0, now - self._warm_since), self._judge.warm_up_s)

    def _believe(self, health: EndpointHealth) -> None:
        was_ready, self.health = self.health.ready, health
        if health.ready is was_ready:
            return
        now = self._judge.clock()
        if health.ready:
            self._warm_since = warm_since(self._warm_since, self._out_since, now)
            self.view.weight = self._weight(now)
        else:
            self._out_since = now
        self._recount()

    def _recount(self) -> None:
        for pool in self.pools:
            pool.update_readiness()
        if not self.pools:
            self.update_readiness()

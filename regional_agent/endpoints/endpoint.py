"""The state of one endpoint in its agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final

import structlog

from penstock.health.adapter_ejections import AdapterEjections
from penstock.health.endpoint_health import EndpointHealth, EndpointState, ProbeOutcome, connection_failed, probed
from penstock.health.engines.engine_facts import EngineFacts, room_text
from penstock.health.engines.engine_kinds import ENGINES, EngineKind
from penstock.health.engines.engine_signals import Readings, Signal, pressure, updated_readings
from penstock.health.health_check import HealthCheck
from penstock.health.outlier_ejection import (
    AttemptOutcome,
    Ejection,
    EjectionState,
    EndedAttempt,
    at_time,
    made_no_progress,
    made_progress,
    request_sent,
    room_to_eject,
)
from penstock.health.progress import ProgressSample, ProgressTracker, Stall
from penstock.health.unanswered_probes import Occupation
from penstock.health.warm_up_weight import warm_since, warm_up_weight
from penstock.meters.endpoint_traffic import EndpointTraffic
from penstock.policy.adapter_patterns import matches
from penstock.pools.pool_accounting import EndpointAccount
from penstock.pools.speed_learning import SpeedLearner
from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.reasons import Reason
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.outlier_settings import OutlierDetection as OutlierDetection
from regional_agent.endpoints.reported_models import NO_FACTS, ReportedModels
from regional_agent.kv_cache.kv_event_follower import KvEventFollower
from regional_agent.routing.request_rewrite import RequestRewrite

FULL: Final = 1.0
"""Utilisation (0-1) that is assumed for an engine that rejects requests."""

log = structlog.get_logger()


_NOT_ANSWERED: Final = (ProbeOutcome.SLOW, ProbeOutcome.UNREACHABLE)
_SERVED: Final = AttemptOutcome.SERVED
_INCONCLUSIVE: Final = AttemptOutcome.INCONCLUSIVE
_SUSPECT: Final = EjectionState.SUSPECT
_NOT_READY: Final = Reason.ENDPOINT_NOT_READY
_UNREADY: Final = {EjectionState.EJECTED: Reason.ENDPOINT_EJECTED, EjectionState.SUSPECT: Reason.ENDPOINT_SUSPECT}
"""Reason by the state of an endpoint that receives no requests though it is healthy."""
"""Module constants, since in Python 3.11 access to an enum member through its class is a function call."""


class Endpoint(EndpointAccount):
    """One model server. Endpoint selection reads its `view`; only this class changes it."""

    def __init__(
        self, spec: EndpointSpec, outlier_detection: OutlierDetection, on_models: Callable[[], None] = lambda: None
    ) -> None:
        """Create an endpoint that is not ready before its first successful probe.

        Args:
            on_models: called when the set of loaded models changes.
        """
        super().__init__(EndpointView(spec.name, 1, 1), spec.accelerator)
        self.spec = spec
        self.address = spec.address
        """The address on which the engine listens."""
        self.health = EndpointHealth.at_first(is_probed=spec.is_probed)
        """Health by active probes."""
        self.ejection = Ejection()
        """Health by the outcomes of requests."""
        self.clean: Ejection | None = None
        """The last value of `ejection` that another success left unchanged."""
        self.ejected_by = ""
        """The outcome that ejected the endpoint last; empty if none did."""
        self.adapter_ejections = AdapterEjections()
        """The adapters that are ejected here although the endpoint is not."""
        self.kv_events: KvEventFollower | None = None
        """Follower of the engine's KV events; None if KV events are not read."""
        self.drained_because = ""
        """The override by which an operator drains the endpoint; empty if none does."""
        self.traffic = EndpointTraffic()
        """Counts of this agent's attempts, for metrics."""
        self.progress = ProgressTracker()
        """The progress of this agent's requests."""
        self.occupation = Occupation()
        """What its requests mean for its probes."""
        self.sample = ProgressSample()
        """The progress as of the last tick."""
        self.stall: Stall | None = None
        """Why the endpoint last became suspect; None if it never did."""
        self.kind = spec.engine
        """The kind of engine: configured, or detected."""
        self.reported = ReportedModels()
        """What the engine reports about itself and its models."""
        self.readings: Readings = {}
        """The load that the engine reports."""
        self.load_header_read_at = -inf
        """Time (s) at which a load header was last read."""
        self.signals_problem = ""
        """Why the last read of the metrics page failed; empty if it succeeded."""
        self.rewrite: RequestRewrite | None = None
        """Changes to the requests that are sent to this endpoint; None if requests are not changed."""
        self.usable = True
        """Whether requests and probes are sent; false if a configured credential or certificate was never readable."""
        self.problem = ""
        """The problem of the files that the endpoint's entry names; empty if all files are valid."""
        self.credential_rejected = ""
        """How the engine rejected the configured credential; empty once the engine has accepted the credential."""
        self.lacks_health_page = False
        """Whether the server has no page at the health path of `auto`, so that its list of models is probed."""
        self.probe_failure = ""
        """Why the last health probe was not good; empty if it was good, or there was none."""
        self._on_models = on_models
        self.detection = outlier_detection
        """The settings of outlier detection."""
        self.warm_since = inf if spec.is_probed else -inf
        """Start of the warm-up (s); inf before the first."""
        self.out_since = outlier_detection.clock()
        """Since when the endpoint has not been ready, if it is not, by its health probes (s)."""
        self.probe_now = asyncio.Event()
        """Set to trigger an immediate probe."""
        self.set_slots(spec.slots, spec.queue)

    @property
    def health_check(self) -> HealthCheck:
        """How the endpoint is probed: by its kind of engine and its entry."""
        return self.spec.health.applied_to(ENGINES[self.kind].health)

    @property
    def accelerator_problem(self) -> str:
        """Why the speed of the hardware is not known before completions; empty if it is, or the entry names none."""
        name = self.spec.accelerator
        if not name or self.learner.prior is not None:
            return ""
        return f"accelerator {name!r} is unknown, so its speed counts as that of an H100 until requests have completed"

    @property
    def loaded_models(self) -> tuple[str, ...]:
        """The configured models that are loaded."""
        return self.reported.loaded_of(self.spec.models)

    @property
    def models(self) -> tuple[str, ...]:
        """The configured models that are loaded and that policy lets the endpoint serve."""
        return self.reported.accepted_of(self.spec.models)

    def sent_while_ejected(self) -> None:
        """Record that a request was sent to the ejected endpoint, which may be its trial."""
        self.set_ejection(request_sent(self.ejection))

    def resize(self, spec: EndpointSpec) -> None:
        """Apply a changed entry for the same server."""
        if spec.engine is not self.spec.engine:
            self.kind = spec.engine
            self.signals_problem = ""
        if spec.accelerator != self.spec.accelerator:
            self.learner = SpeedLearner(spec.accelerator)
        self.spec = spec
        self.set_slots(spec.slots, spec.queue)
        self.reported.listed_at = -inf

    def set_rewrite(self, rewrite: RequestRewrite | None, problem: str, *, usable: bool) -> None:
        """Apply the files that the entry names, after they or the entry have changed. Triggers an immediate probe.

        Args:
            problem: problem of the files; empty if all files are valid.
            usable: whether requests can be sent.
        """
        self.rewrite, self.problem, self.usable = rewrite, problem, usable
        self.credential_rejected = ""
        self.reported.listed_at = -inf
        if not usable or not self.spec.is_probed:
            self._set_health(EndpointHealth.at_first(is_probed=not usable))
        self.probe_now.set()

    def reject_credential(self, where: str) -> None:
        """Record that the engine rejects the configured credential.

        Args:
            where: the request and the status with which it was rejected.
        """
        if not self.credential_rejected:
            log.warning("engine rejects the credential of its endpoint", endpoint=self.name, where=where)
        self.credential_rejected = f"{where}: the engine rejects the secret in {self.spec.credential_file}; replace it"

    def drain(self) -> None:
        """Drain the endpoint: it accepts no new requests. The caller refills the pools."""
        self.view.draining = True
        self.view.update_score()
        self.pools = ()
        if self.health.ready:
            self.out_since = self.detection.clock()

    def use_drain(self, because: str) -> None:
        """Drain the endpoint as an operator asks for, or end that drain. It stays in its pools, and is probed.

        Args:
            because: the override; empty if no operator drains the endpoint.
        """
        self.drained_because = because
        self.view.draining = because != ""
        self.update_detail()
        self.view.update_score()
        for pool in self.pools:
            pool.recount()

    def undrain(self) -> None:
        """Return a draining endpoint to service. It must pass a probe first, since draining endpoints are not probed.

        The caller refills the pools.
        """
        self.view.draining = self.drained_because != ""
        self.health = EndpointHealth.at_first(is_probed=self.spec.is_probed)

    def probed(self, outcome: ProbeOutcome, *, while_running: bool = False) -> None:
        """Apply the outcome of a health probe.

        Args:
            while_running: one request ran on the endpoint from the beginning of the probe to its answer.
        """
        explained = False
        if outcome in _NOT_ANSWERED:
            explained = self.is_occupied(self.view.in_flight, refused=outcome is ProbeOutcome.UNREACHABLE)
            self.occupation.not_answered(explained=explained)
        else:
            busy = outcome is ProbeOutcome.BUSY
            self.occupation.answered(self.detection.clock(), busy=busy, while_running=while_running)
            if busy and self.view.in_flight < self.view.slots:
                self.mark_full()
        self._set_health(probed(self.health, outcome, self.health_check.thresholds, explained=explained))

    def is_occupied(self, in_flight: int, *, refused: bool) -> bool:
        """Whether `in_flight` requests explain that the endpoint is late, or refuses the connection (`refused`)."""
        busy_s, longest_s, progressed_at = (
            self.health_check.busy_s,
            self.progress.longest_s,
            self.progress.progressed_at,
        )
        for pool in self.pools:
            longest_s = max(longest_s, pool.service_s)
        now = self.detection.clock()
        return self.occupation.explains_silence(in_flight, progressed_at, busy_s, longest_s, now, refused=refused)

    def is_engaged(self) -> bool:
        """Whether its requests explain that it answers no probe, or answers that it is busy. It is not suspect then."""
        if not self.occupation.is_engaged or not self.occupation.is_serial(self.health_check.busy_s):
            return False
        return self.is_occupied(self.view.in_flight, refused=False)

    def may_be_serial(self) -> bool:
        """Whether the server may serve one connection at a time. Without TLS, since each probe opens a connection."""
        return not self.address.tls and self.occupation.is_serial(self.health_check.busy_s)

    def models_due(self) -> bool:
        """Whether to query the loaded models: periodically, and with every probe while not ready or without a model."""
        unsettled = not self.health.ready or not self.models
        return not self.spec.burst and (unsettled or self.reported.are_due(self.detection.clock()))

    def check_models_soon(self) -> None:
        """Query the loaded models soon after a 404: an engine that rejects requests at once would appear idle."""
        if self.reported.are_due_after_failure(self.detection.clock()):
            self.reported.listed_at = -inf
            self.probe_now.set()

    def has_adapter(self, name: str) -> bool:
        """Whether the engine reports an adapter of this name, or a pattern of the endpoint's entry matches the name."""
        return name in self.reported.adapters or any(matches(pattern, name) for pattern in self.spec.adapters)

    def update_detail(self) -> None:
        """Update the text for operators, after a drain, a skew or the room has changed."""
        because = self.drained_because or self.reported.skew
        self.view.detail = "; ".join(filter(None, (because, room_text(self.reported.facts.served))))

    def set_loaded_models(
        self,
        loaded: frozenset[str] | None,
        adapters: frozenset[str] = frozenset(),
        facts: EngineFacts = NO_FACTS,
    ) -> None:
        """Apply the loaded models that the engine reports; None if it does not report them.

        Args:
            adapters: the loaded adapters that the engine reports.
            facts: what the list of models states about them.
        """
        if loaded is not None:
            self.credential_rejected = ""
        before = self.models
        if self.reported.set_listed(loaded, adapters, facts, self.detection.clock()) or self.models != before:
            self._on_models()

    def set_kind(self, kind: EngineKind) -> None:
        """Set the detected kind of engine, which determines how to query its models."""
        self.kind = kind
        self.reported.listed_at = -inf
        self.probe_now.set()

    def update_signals(self, values: Mapping[Signal, float]) -> None:
        """Apply the load that the engine reports."""
        now = self.detection.clock()
        self.readings = updated_readings(self.readings, values, now)
        if Signal.RUNNING in values:
            self.progress.read_load(values[Signal.RUNNING] + values.get(Signal.QUEUED, 0.0), now)

    def mark_full(self) -> None:
        """Mark the engine as full after it rejected a request, so that other endpoints are preferred for a while."""
        self.update_signals({Signal.UTILISATION: FULL})
        self.view.pressure = FULL
        self.view.update_score()

    def connection_failed(self) -> bool:
        """Mark the endpoint as not ready after a failed connection, until a probe succeeds; probe at once.

        Returns False, and marks it as full, if its other requests explain the failure.
        """
        self.probe_now.set()
        if self.is_occupied(self.local_load.requests - 1, refused=True):
            self.mark_full()
            return False
        if self.spec.is_probed and self.health.state is not EndpointState.DOWN:
            self._set_health(connection_failed(self.health))
        return True

    def adapter_ended(
        self, adapter: str, outcome: AttemptOutcome, started_at: float, others: Iterable[Endpoint]
    ) -> bool | None:
        """Apply the outcome of a request for an adapter; None if it counts against the endpoint.

        Returns whether it ejects the adapter, which never happens at more than a part of the endpoints that have it.

        Args:
            others: all endpoints of the region.
        """
        detection, ejections = self.detection, self.adapter_ejections
        now, ended = detection.clock(), EndedAttempt(outcome, started_at)
        is_success = outcome is _SERVED
        if not (adapter in ejections if is_success else ejections.charges(adapter, outcome, now)):
            return None
        having = [each for each in others if each.has_adapter(adapter)]
        out = sum(not each.view.ready or each.adapter_ejections.is_out(adapter, now) for each in having)
        may_eject = room_to_eject(out, len(having), detection.rules)
        ejects = ejections.ended(adapter, ended, now, detection.rules, detection.rng, may_eject=may_eject)
        return None if is_success else ejects

    def make_suspect(self, stall: Stall) -> bool:
        """Make the endpoint suspect, unless the evidence is weak and a pool has too many ejected; returns whether."""
        itself = int(self.ejection.is_ejected)
        if not stall.is_certain and not all(pool.has_room_to_eject(itself) for pool in self.pools):
            return False
        detection = self.detection
        self.stall = stall
        self.traffic.suspicions += 1
        self.set_ejection(made_no_progress(self.ejection, detection.clock(), detection.rules, detection.rng))
        return True

    def stall_at(self, sent_at: float) -> Stall | None:
        """Return why a request, sent at `sent_at` (s), makes no progress; None if the endpoint is not suspect."""
        ejection = self.ejection
        return self.stall if ejection.state is _SUSPECT and sent_at < ejection.since else None

    def now(self) -> float:
        """Return the current time (s) of the outlier detection clock."""
        return self.detection.clock()

    def tick(self) -> None:
        """Update progress, ejection, weight and pressure, which depend on time. The caller updates the pools."""
        now = self.detection.clock()
        self.occupation.tick(self.view.in_flight, now)
        self.sample = self.progress.take_sample()
        self.ejection = made_progress(at_time(self.ejection, now), self.sample.progressed_at)
        self.view.weight = self._weight(now)
        if self.readings:
            self.view.pressure = pressure(self.readings, self.view.slots, now)
        self.view.update_score()

    def set_ejection(self, ejection: Ejection) -> None:
        """Change the ejection, and the readiness that depends on it."""
        before, self.ejection = self.ejection, ejection
        if ejection.state is before.state:
            return
        if ejection.state is EjectionState.NONE:
            self.warm_since = self.detection.clock()
        self.view.weight = self._weight(self.detection.clock())
        self._update_pools()

    def update_readiness(self) -> None:
        """Update the view's readiness: healthy, a model loaded, and not ejected, or ejected in a pool that panics."""
        alive, ejection = self.health.ready and bool(self.pools), self.ejection
        panics = not ejection.is_stalled and any(pool.panics for pool in self.pools)
        self.view.ready = alive and (ejection.accepts_requests or panics)
        self.view.unready_reason = _UNREADY.get(self.ejection.state, _NOT_READY) if alive else _NOT_READY
        self.view.trial = self.ejection.state is EjectionState.TRIAL
        self.view.update_score()

    def _weight(self, now: float) -> float:
        """The warm-up weight, which starts to rise when an ejection ends."""
        if self.ejection.is_ejected:
            return 1.0
        return warm_up_weight(max(0.0, now - self.warm_since), self.detection.warm_up_s)

    def _set_health(self, health: EndpointHealth) -> None:
        was_ready, self.health = self.health.ready, health
        if health.ready is was_ready:
            return
        now = self.detection.clock()
        if health.ready:
            self.warm_since = warm_since(self.warm_since, self.out_since, now)
            self.view.weight = self._weight(now)
        else:
            self.out_since = now
        self._update_pools()

    def _update_pools(self) -> None:
        for pool in self.pools:
            pool.update_readiness()
        if not self.pools:
            self.update_readiness()

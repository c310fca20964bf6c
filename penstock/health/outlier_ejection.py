"""Outlier ejection: decides by the outcomes of requests whether an endpoint is ejected, in addition to health probes.

A probe tests whether the server responds; an engine whose GPU has failed may still respond to probes. Failed requests
therefore eject an endpoint for a time that grows with each ejection in a row, until one trial request succeeds. This is
Envoy's outlier detection (docs/root/intro/arch_overview/upstream/outlier.rst: consecutive gateway failures, failure
percentage, base time times ejections in a row, capped, decaying, a cap on the ejected share, panic) with linkerd's
probation by a single request (linkerd2-proxy, outbound/src/http/breaker/consecutive_failures.rs). Unlike Envoy's
default, a good health probe does not end an ejection, since the engine runs other code for probes than for requests.

An endpoint whose requests make no progress (`penstock.health.progress`) is suspect. A suspect endpoint is treated as an
ejected endpoint, and returns in the same way. The cap applies where the evidence is a comparison with other endpoints,
and not where it is the endpoint's own history. Panic mode sends no requests to suspect endpoints.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil
from random import Random
from typing import NamedTuple

import msgspec


class AttemptOutcome(StrEnum):
    """Outcome of one attempt, as evidence about its endpoint."""

    SERVED = "served"
    """A complete response with a status below 400."""
    INCONCLUSIVE = "inconclusive"
    """Client error, cancellation, deadline of the request, or a full engine: no evidence about the endpoint."""
    UNREACHABLE = "unreachable"
    """The connection failed, or ended before any response."""
    GATEWAY_ERROR = "gateway_error"
    """502, 504, or a 503 that does not mean that the engine is full."""
    SERVER_ERROR = "server_error"
    """Another 5xx status."""
    CREDENTIAL_REJECTED = "credential_rejected"
    """401 or 403 of an endpoint with a configured credential: the configured secret is wrong, whatever the request."""
    BROKEN_OFF = "broken_off"
    """The response began and was not completed: reset, closed, or invalid."""
    STALLED = "stalled"
    """No byte arrived within the agent's timeout, as distinct from the client's deadline."""


FAILURES = tuple(
    outcome for outcome in AttemptOutcome if outcome not in (AttemptOutcome.SERVED, AttemptOutcome.INCONCLUSIVE)
)
"""Outcomes that count against an endpoint."""


ENGINE_ERRORS = frozenset({AttemptOutcome.GATEWAY_ERROR, AttemptOutcome.SERVER_ERROR})
"""Failures that the engine itself reported, so that the request may be their cause."""


class EjectionState(StrEnum):
    """Whether an agent has ejected an endpoint, by the outcomes of its requests."""

    NONE = "none"
    """Not ejected."""
    SUSPECT = "suspect"
    """The endpoint's requests make no progress. It receives no new requests until the ejection time is over or one of
    its requests makes progress."""
    EJECTED = "ejected"
    TRIAL = "trial"
    """The ejection time is over; one request may be sent."""
    TRIAL_RUNNING = "trial_running"
    """The trial request is in progress."""


class EjectionEvent(StrEnum):
    """The effect of an outcome, or of time, on the state."""

    SUCCESS = "success"
    FAILURE = "failure"
    """A failure that does not eject."""
    OUTLIER = "outlier"
    """A failure that ejects."""
    INCONCLUSIVE = "inconclusive"
    """A request ended with an inconclusive outcome."""
    EXPIRED = "expired"
    REQUEST_SENT = "request_sent"
    """A request was sent to the endpoint."""
    NO_PROGRESS = "no_progress"
    """The endpoint's requests make no progress."""
    PROGRESS = "progress"
    """A request that was sent before the endpoint became suspect makes progress."""


_S, _E = EjectionState, EjectionEvent

TRANSITIONS: dict[tuple[EjectionState, EjectionEvent], EjectionState] = {
    (_S.NONE, _E.SUCCESS): _S.NONE,
    (_S.NONE, _E.FAILURE): _S.NONE,
    (_S.NONE, _E.OUTLIER): _S.EJECTED,
    (_S.NONE, _E.INCONCLUSIVE): _S.NONE,
    (_S.NONE, _E.REQUEST_SENT): _S.NONE,
    (_S.NONE, _E.NO_PROGRESS): _S.SUSPECT,
    # Outcomes of requests that were sent at the same time as the endpoint became suspect.
    (_S.SUSPECT, _E.SUCCESS): _S.NONE,
    (_S.SUSPECT, _E.FAILURE): _S.SUSPECT,
    (_S.SUSPECT, _E.INCONCLUSIVE): _S.SUSPECT,
    (_S.SUSPECT, _E.EXPIRED): _S.TRIAL,
    (_S.SUSPECT, _E.REQUEST_SENT): _S.SUSPECT,
    (_S.SUSPECT, _E.PROGRESS): _S.TRIAL,
    # Requests reach an ejected endpoint only in panic mode; a successful request counts as a trial.
    (_S.EJECTED, _E.SUCCESS): _S.NONE,
    (_S.EJECTED, _E.FAILURE): _S.EJECTED,
    (_S.EJECTED, _E.OUTLIER): _S.EJECTED,
    (_S.EJECTED, _E.INCONCLUSIVE): _S.EJECTED,
    (_S.EJECTED, _E.EXPIRED): _S.TRIAL,
    (_S.EJECTED, _E.REQUEST_SENT): _S.EJECTED,
    (_S.TRIAL, _E.SUCCESS): _S.NONE,
    (_S.TRIAL, _E.FAILURE): _S.EJECTED,
    (_S.TRIAL, _E.OUTLIER): _S.EJECTED,
    (_S.TRIAL, _E.INCONCLUSIVE): _S.TRIAL,
    (_S.TRIAL, _E.REQUEST_SENT): _S.TRIAL_RUNNING,
    (_S.TRIAL_RUNNING, _E.SUCCESS): _S.NONE,
    (_S.TRIAL_RUNNING, _E.FAILURE): _S.EJECTED,
    (_S.TRIAL_RUNNING, _E.OUTLIER): _S.EJECTED,
    (_S.TRIAL_RUNNING, _E.INCONCLUSIVE): _S.TRIAL,
    (_S.TRIAL_RUNNING, _E.REQUEST_SENT): _S.TRIAL_RUNNING,
    (_S.TRIAL_RUNNING, _E.NO_PROGRESS): _S.SUSPECT,
}

MEMORY_OUTCOMES = 20
"""Effective window of the failing share, in outcomes; the share is used only after this number of outcomes."""

NEGLIGIBLE_SHARE = 1e-3
"""A failing share below this counts as zero."""


class EjectionRules(msgspec.Struct, frozen=True):
    """The conditions under which an endpoint is ejected, and the duration of an ejection."""

    consecutive_failures: int = 3
    """Failures in a row that eject; Envoy's default is 5 and linkerd's 7, for requests that cost far less."""
    failing_share: float = 0.3
    """Share of recent outcomes (0-1] that ejects even if successes are in between."""
    server_errors_count: bool = True
    """Whether 5xx other than gateway errors are failures; set to false if clients can provoke them."""
    base_s: float = 5.0
    """Time (s) of a first ejection; the n-th in a row takes n times as long."""
    max_s: float = 120.0
    """Maximum time (s) of an ejection."""
    forgive_s: float = 30.0
    """Each period of this length (s) without ejection reduces the number of ejections in a row by one."""
    max_ejected_share: float = 0.5
    """Share of a pool's endpoints [0-1] that this agent may eject at once."""
    panic_share: float = 0.3
    """Minimum share [0-1] of a pool's endpoints that must be available; below it, ejections are ignored, as in Envoy's
    panic mode."""
    suspect_after_s: float = 10.0
    """Time (s) without progress that makes an endpoint suspect; 0 disables the check."""


_NONE = EjectionState.NONE
"""Copy of the enum member, since reading a member from its class is a function call in Python 3.11."""

_TIMED = frozenset({EjectionState.EJECTED, EjectionState.SUSPECT})
"""States that end after a time."""

_JUDGED = frozenset({EjectionState.NONE, EjectionState.TRIAL_RUNNING})
"""States in which an endpoint can become suspect, since new requests run on it."""


class Ejection(msgspec.Struct, frozen=True):
    """Ejection of one endpoint by one agent; `request_ended`, `request_sent` and `at_time` return the next value."""

    state: EjectionState = EjectionState.NONE
    failures: int = 0
    """Consecutive failures since the last ejection or return."""
    outcomes: int = 0
    """Outcomes since the last ejection or return, up to MEMORY_OUTCOMES."""
    failing: float = 0.0
    """Share (0-1) of recent outcomes that failed."""
    ejections: int = 0
    """Consecutive ejections, less forgiven ones, up to the number at which `max_s` is reached."""
    since: float = float("-inf")
    """Time (s) of the last ejection or return."""
    until: float = 0.0
    """Time (s) at which the ejection ends."""
    is_stalled: bool = False
    """Whether the endpoint was ejected for a lack of progress."""

    @property
    def accepts_requests(self) -> bool:
        """Whether a request may be sent to the endpoint."""
        return self.state in (EjectionState.NONE, EjectionState.TRIAL)

    @property
    def is_ejected(self) -> bool:
        """Whether the endpoint counts as ejected, which lasts until a trial request succeeds."""
        return self.state is not _NONE

    @property
    def can_become_suspect(self) -> bool:
        """Whether a lack of progress changes the state."""
        return self.state in _JUDGED

    @property
    def is_clean(self) -> bool:
        """Whether another success leaves this value unchanged."""
        return self.failing == 0.0 and self.outcomes >= MEMORY_OUTCOMES and self.state is _NONE


def outcome_of(status: int, *, has_retry_after: bool, has_room: bool, rules: EjectionRules) -> AttemptOutcome | None:
    """The outcome that a response's status determines; None if it depends on the rest of the response.

    A request for what an engine does not implement (501) is the client's fault, such as one for embeddings of a model
    that only generates (Ollama, llama.cpp). A full engine has not failed, so 429 and 529 (overloaded) are inconclusive,
    as is a 503 with Retry-After or from an engine without free slots. Engines return a bare 503 both when their queue
    is full (SGLang, Triton) and when they are broken, so a 503 of an engine with free slots is a gateway error, as in
    Envoy.

    Args:
        status: the response's HTTP status.
        has_retry_after: whether the response has a Retry-After header.
        has_room: whether the endpoint has fewer requests than slots.
        rules: whether plain 5xx count.
    """
    if status < 400:
        return None
    if status < 500 or status in (501, 529):
        return AttemptOutcome.INCONCLUSIVE
    if status == 503:
        return AttemptOutcome.GATEWAY_ERROR if has_room and not has_retry_after else AttemptOutcome.INCONCLUSIVE
    if status in (502, 504):
        return AttemptOutcome.GATEWAY_ERROR
    return AttemptOutcome.SERVER_ERROR if rules.server_errors_count else AttemptOutcome.INCONCLUSIVE


class EndedAttempt(NamedTuple):
    """The end of one attempt at an endpoint."""

    outcome: AttemptOutcome
    started_at: float
    """Time (s) at which the request was sent; attempts sent before an ejection are ignored."""


def request_ended(
    ejection: Ejection,
    ended: EndedAttempt,
    now: float,
    rules: EjectionRules,
    rng: Random,
    *,
    may_eject: bool = True,
) -> Ejection:
    """The state after the end of a request.

    Args:
        ejection: the previous state.
        now: the present time (s), by the clock of `ended`.
        rules: see `EjectionRules`.
        rng: shortens ejections by up to a fifth, so that agents do not send their trial requests at the same time.
        may_eject: whether the cap permits an ejection, see `room_to_eject`; an ejected endpoint may stay ejected.

    Raises:
        KeyError: the table has no such transition, which is a defect in this module.
    """
    outcome = ended.outcome
    if ejection.is_ejected and ended.started_at < ejection.since:
        return ejection
    if outcome is AttemptOutcome.INCONCLUSIVE:
        return _moved(ejection, EjectionEvent.INCONCLUSIVE)
    counted = _counted(ejection, failed=outcome is not AttemptOutcome.SERVED)
    if outcome is AttemptOutcome.SERVED:
        return _returned(counted, now) if ejection.is_ejected else counted
    if ejection.state in _TIMED or not (ejection.is_ejected or (may_eject and _is_outlier(counted, rules))):
        return _moved(counted, EjectionEvent.FAILURE)
    return _taken_out(ejection, EjectionEvent.OUTLIER, now, rules, rng)


def made_no_progress(ejection: Ejection, now: float, rules: EjectionRules, rng: Random) -> Ejection:
    """The state of an endpoint that becomes suspect at `now` (s), if it `can_become_suspect`.

    Raises:
        KeyError: the endpoint cannot become suspect.
    """
    return _taken_out(ejection, EjectionEvent.NO_PROGRESS, now, rules, rng)


def made_progress(ejection: Ejection, progressed_at: float) -> Ejection:
    """The state after a byte of a response arrived at `progressed_at` (s), which gives a suspect endpoint its trial."""
    if ejection.state is EjectionState.SUSPECT and progressed_at > ejection.since:
        return _moved(ejection, EjectionEvent.PROGRESS)
    return ejection


def request_sent(ejection: Ejection) -> Ejection:
    """The state after a request was sent, which may be the trial request."""
    return _moved(ejection, EjectionEvent.REQUEST_SENT)


def at_time(ejection: Ejection, now: float) -> Ejection:
    """The state at `now` (s): an ejection whose time is over becomes a trial."""
    if ejection.state in _TIMED and now >= ejection.until:
        return _moved(ejection, EjectionEvent.EXPIRED)
    return ejection


def room_to_eject(out: int, members: int, rules: EjectionRules) -> bool:
    """Whether another of a pool's `members` endpoints may be ejected if `out` of them are ejected."""
    return out + 1 <= members * rules.max_ejected_share


def panicking(left: int, members: int, rules: EjectionRules) -> bool:
    """Whether ejections are ignored, because only `left` of a pool's `members` endpoints may receive requests."""
    return left < members * rules.panic_share


def _counted(ejection: Ejection, *, failed: bool) -> Ejection:
    outcomes = min(MEMORY_OUTCOMES, ejection.outcomes + 1)
    failing = ejection.failing + (failed - ejection.failing) / outcomes
    failing = failing if failing > NEGLIGIBLE_SHARE else 0.0
    failures = ejection.failures + 1 if failed else 0
    return msgspec.structs.replace(ejection, failures=failures, outcomes=outcomes, failing=failing)


def _is_outlier(ejection: Ejection, rules: EjectionRules) -> bool:
    if ejection.failures >= rules.consecutive_failures:
        return True
    return ejection.outcomes >= MEMORY_OUTCOMES and ejection.failing >= rules.failing_share


def _taken_out(ejection: Ejection, event: EjectionEvent, now: float, rules: EjectionRules, rng: Random) -> Ejection:
    forgiven = int((now - ejection.since) / rules.forgive_s) if ejection.ejections and not ejection.is_ejected else 0
    ejections = min(max(0, ejection.ejections - forgiven) + 1, ceil(rules.max_s / rules.base_s))
    for_s = min(rules.max_s, rules.base_s * ejections) * rng.uniform(0.8, 1.0)
    state, is_stalled = TRANSITIONS[ejection.state, event], event is EjectionEvent.NO_PROGRESS
    return Ejection(state, ejections=ejections, since=now, until=now + for_s, is_stalled=is_stalled)


def _returned(ejection: Ejection, now: float) -> Ejection:
    return Ejection(TRANSITIONS[ejection.state, EjectionEvent.SUCCESS], ejections=ejection.ejections, since=now)


def _moved(ejection: Ejection, event: EjectionEvent) -> Ejection:
    state = TRANSITIONS[ejection.state, event]
    return ejection if state is ejection.state else msgspec.structs.replace(ejection, state=state)

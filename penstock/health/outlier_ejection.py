"""Outlier ejection: decides by the outcomes of requests whether an endpoint is trusted, beside its health probes.

A probe tests whether the server answers; an engine whose GPU is gone may answer probes all day. So failed requests
eject an endpoint for a while, longer each time in a row, until one request on trial is served. This is Envoy's outlier
detection (docs/root/intro/arch_overview/upstream/outlier.rst: consecutive gateway failures, failure percentage, base
time times ejections in a row, capped, decaying, a cap on the ejected share, panic) with linkerd's probation by a single
request (linkerd2-proxy, outbound/src/http/breaker/consecutive_failures.rs). Unlike Envoy's default, a good health probe
does not return an ejected endpoint: probes run other code than requests do.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil
from random import Random

import msgspec


class Outcome(StrEnum):
    """What one request shows of the endpoint that it was sent to."""

    SERVED = "served"
    """A complete response with a status below 400."""
    INCONCLUSIVE = "inconclusive"
    """The client was at fault or left, its own deadline passed, or the engine was full: it shows nothing."""
    UNREACHABLE = "unreachable"
    """No connection, or one that ended before any response."""
    GATEWAY_ERROR = "gateway_error"
    """502, 504, or a 503 that does not mean full."""
    SERVER_ERROR = "server_error"
    """Another 5xx."""
    BROKEN_OFF = "broken_off"
    """The response began and was not completed: reset, closed, or invalid."""
    STALLED = "stalled"
    """No byte came for longer than this agent allows; not for longer than a client would wait."""


FAILURES = tuple(outcome for outcome in Outcome if outcome not in (Outcome.SERVED, Outcome.INCONCLUSIVE))
"""Outcomes that count against an endpoint."""


class Trust(StrEnum):
    """The trust that an agent has in one endpoint, by the outcomes of its requests."""

    TRUSTED = "trusted"
    EJECTED = "ejected"
    TRIAL = "trial"
    """The ejection is over; one request may be sent."""
    TRYING = "trying"
    """The trial request is in progress."""


class TrustEvent(StrEnum):
    """The effect of an outcome, or of time, on the trust."""

    GOOD = "good"
    BAD = "bad"
    """A failure that does not eject."""
    OUTLIER = "outlier"
    """A failure that ejects."""
    NOTHING = "nothing"
    """A request ended inconclusively."""
    TIME_SERVED = "time_served"
    TAKEN = "taken"
    """A request was sent there."""


_T, _E = Trust, TrustEvent

TRANSITIONS: dict[tuple[Trust, TrustEvent], Trust] = {
    (_T.TRUSTED, _E.GOOD): _T.TRUSTED,
    (_T.TRUSTED, _E.BAD): _T.TRUSTED,
    (_T.TRUSTED, _E.OUTLIER): _T.EJECTED,
    (_T.TRUSTED, _E.NOTHING): _T.TRUSTED,
    (_T.TRUSTED, _E.TAKEN): _T.TRUSTED,
    # Requests reach an ejected endpoint only in panic; one that is served there counts as a trial.
    (_T.EJECTED, _E.GOOD): _T.TRUSTED,
    (_T.EJECTED, _E.BAD): _T.EJECTED,
    (_T.EJECTED, _E.OUTLIER): _T.EJECTED,
    (_T.EJECTED, _E.NOTHING): _T.EJECTED,
    (_T.EJECTED, _E.TIME_SERVED): _T.TRIAL,
    (_T.EJECTED, _E.TAKEN): _T.EJECTED,
    (_T.TRIAL, _E.GOOD): _T.TRUSTED,
    (_T.TRIAL, _E.BAD): _T.EJECTED,
    (_T.TRIAL, _E.OUTLIER): _T.EJECTED,
    (_T.TRIAL, _E.NOTHING): _T.TRIAL,
    (_T.TRIAL, _E.TAKEN): _T.TRYING,
    (_T.TRYING, _E.GOOD): _T.TRUSTED,
    (_T.TRYING, _E.BAD): _T.EJECTED,
    (_T.TRYING, _E.OUTLIER): _T.EJECTED,
    (_T.TRYING, _E.NOTHING): _T.TRIAL,
    (_T.TRYING, _E.TAKEN): _T.TRYING,
}

MEMORY_OUTCOMES = 20
"""The failing share remembers about this many outcomes, and is not used before there are as many."""


FORGOTTEN = 1e-3
"""A failing share below this counts as zero."""


class EjectionRules(msgspec.Struct, frozen=True):
    """When an endpoint is ejected, and for how long."""

    consecutive_failures: int = 3
    """Failures in a row that eject; Envoy's default is 5 and linkerd's 7, of requests that cost far less than these."""
    failing_share: float = 0.3
    """Share of the latest outcomes (0-1] that ejects even where successes are in between."""
    server_errors_count: bool = True
    """Whether 5xx other than gateway errors are failures; false where clients can provoke them."""
    base_s: float = 5.0
    """Time (s) of a first ejection; the n-th in a row takes n times as long."""
    max_s: float = 120.0
    """No ejection is longer, in seconds."""
    forgive_s: float = 30.0
    """One earlier ejection is forgotten after each period of this many seconds of trust."""
    max_ejected_share: float = 0.5
    """Share of a pool's endpoints [0-1] that this agent may eject at once."""
    panic_share: float = 0.3
    """With a smaller share of a pool left [0-1], ejections are ignored: an unreliable endpoint is better than none."""


_TRUSTED = Trust.TRUSTED
"""In Python 3.11, to read a member off its class is a function call."""


class Standing(msgspec.Struct, frozen=True):
    """One agent's trust in one endpoint; `ended`, `taken` and `at` return the next one."""

    trust: Trust = Trust.TRUSTED
    failures: int = 0
    """Consecutive, while trusted."""
    outcomes: int = 0
    """Outcomes while trusted, up to MEMORY_OUTCOMES."""
    failing: float = 0.0
    """Share of the latest outcomes that failed."""
    ejections: int = 0
    """Ejections in a row without those forgiven, up to the number that makes the longest one."""
    since: float = float("-inf")
    """When it was last ejected or trusted again, in seconds."""
    until: float = 0.0
    """When the ejection ends, in seconds."""

    @property
    def open(self) -> bool:
        """Whether a request may be sent to it."""
        return self.trust in (Trust.TRUSTED, Trust.TRIAL)

    @property
    def out(self) -> bool:
        """Whether it counts as ejected: until a trial has succeeded."""
        return self.trust is not _TRUSTED

    @property
    def spotless(self) -> bool:
        """Whether one more success changes nothing."""
        return self.failing == 0.0 and self.outcomes >= MEMORY_OUTCOMES and self.trust is _TRUSTED


def outcome_of(status: int, *, says_when: bool, has_room: bool, rules: EjectionRules) -> Outcome | None:
    """The outcome that the status of a response shows at once; None where it depends on the rest of the response.

    Busy is not failed: 429 never counts, nor a 503 of an engine that states a Retry-After or has no free slot. Engines
    answer a bare 503 both when their queue is full (SGLang, Triton) and when they are broken, so a 503 of an engine
    with free slots is a gateway error, as it is to Envoy.

    Args:
        status: the response's HTTP status.
        says_when: it has a Retry-After header.
        has_room: fewer requests are on the endpoint than it runs at once.
        rules: whether plain 5xx count.
    """
    if status < 400:
        return None
    if status < 500:
        return Outcome.INCONCLUSIVE
    if status == 503:
        return Outcome.GATEWAY_ERROR if has_room and not says_when else Outcome.INCONCLUSIVE
    if status in (502, 504):
        return Outcome.GATEWAY_ERROR
    return Outcome.SERVER_ERROR if rules.server_errors_count else Outcome.INCONCLUSIVE


def ended(
    standing: Standing,
    outcome: Outcome,
    started_at: float,
    now: float,
    rules: EjectionRules,
    rng: Random,
    *,
    may_eject: bool = True,
) -> Standing:
    """The standing after the end of a request.

    Args:
        standing: the previous one.
        outcome: what the request shows.
        started_at: when it was sent (s): a request from before the ejection shows nothing of the time since.
        now: the same clock.
        rules: see `EjectionRules`.
        rng: spreads the ends of ejections, so that several agents do not try at once.
        may_eject: whether the cap leaves room, see `room_to_eject`; an ejected endpoint may always stay out.

    Raises:
        KeyError: the table has no such transition, which is a defect in this module.
    """
    if standing.out and started_at < standing.since:
        return standing
    if outcome is Outcome.INCONCLUSIVE:
        return _moved(standing, TrustEvent.NOTHING)
    counted = _counted(standing, failed=outcome is not Outcome.SERVED)
    if outcome is Outcome.SERVED:
        return _trusted_again(counted, now) if standing.out else counted
    if standing.trust is Trust.EJECTED or not (standing.out or (may_eject and _is_outlier(counted, rules))):
        return _moved(counted, TrustEvent.BAD)
    return _ejected(standing, now, rules, rng)


def taken(standing: Standing) -> Standing:
    """The standing after a request was sent, which may be the one of a trial."""
    return _moved(standing, TrustEvent.TAKEN)


def at(standing: Standing, now: float) -> Standing:
    """The standing at `now` (s): an ejection whose time is over becomes a trial."""
    if standing.trust is Trust.EJECTED and now >= standing.until:
        return _moved(standing, TrustEvent.TIME_SERVED)
    return standing


def room_to_eject(out: int, members: int, rules: EjectionRules) -> bool:
    """Whether one more of a pool's `members` may be ejected when `out` of them are."""
    return out + 1 <= members * rules.max_ejected_share


def panicking(left: int, members: int, rules: EjectionRules) -> bool:
    """Whether so few of a pool's `members` may take requests that ejections are ignored."""
    return left < members * rules.panic_share


def _counted(standing: Standing, *, failed: bool) -> Standing:
    outcomes = min(MEMORY_OUTCOMES, standing.outcomes + 1)
    failing = standing.failing + (failed - standing.failing) / outcomes
    failing = failing if failing > FORGOTTEN else 0.0
    failures = standing.failures + 1 if failed else 0
    return msgspec.structs.replace(standing, failures=failures, outcomes=outcomes, failing=failing)


def _is_outlier(standing: Standing, rules: EjectionRules) -> bool:
    if standing.failures >= rules.consecutive_failures:
        return True
    return standing.outcomes >= MEMORY_OUTCOMES and standing.failing >= rules.failing_share


def _ejected(standing: Standing, now: float, rules: EjectionRules, rng: Random) -> Standing:
    forgiven = int((now - standing.since) / rules.forgive_s) if standing.ejections and not standing.out else 0
    ejections = min(max(0, standing.ejections - forgiven) + 1, ceil(rules.max_s / rules.base_s))
    for_s = min(rules.max_s, rules.base_s * ejections) * rng.uniform(0.8, 1.0)
    trust = TRANSITIONS[standing.trust, TrustEvent.OUTLIER]
    return Standing(trust, ejections=ejections, since=now, until=now + for_s)


def _trusted_again(standing: Standing, now: float) -> Standing:
    return Standing(TRANSITIONS[standing.trust, TrustEvent.GOOD], ejections=standing.ejections, since=now)


def _moved(standing: Standing, event: TrustEvent) -> Standing:
    trust = TRANSITIONS[standing.trust, event]
    return standing if trust is standing.trust else msgspec.structs.replace(standing, trust=trust)

"""How an endpoint is probed, and what a response to a probe means.

Some servers run one request at a time: while it runs, they answer no probe, or answer that they are busy (Replicate's
Cog: GET /health-check with a `status` of STARTING, READY, BUSY, SETUP_FAILED, DEFUNCT or UNHEALTHY, in its
docs/http.md; llama.cpp: 503 with "no slot available"). Such an answer is no failure.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from penstock.health.endpoint_health import HealthThresholds, ProbeOutcome

MAX_READ_BYTES: Final = 4096
"""Size (bytes) of the beginning of an answer that is read."""

MAX_SHOWN_CHARS: Final = 80
"""Length of the beginning of an answer that is shown to operators."""

NO_PAGE: Final = frozenset({404, 405, 501})
"""Statuses of a server that has no page at the path of the probe."""

_BUSY_STATUSES: Final = frozenset({429, 529})
"""Statuses that only a server which accepts requests sends; 529 is Anthropic's `overloaded_error`."""

_BUSY: Final = re.compile(
    r"\b(?:busy|overloaded|at capacity|too many requests|no slots? available|queue (?:is )?full)\b", re.IGNORECASE
)
_NOT_STARTED: Final = re.compile(
    _BUSY.pattern + r"|\b(?:queue|back-?pressure|rate.?limit|overflow|capacity|try again|retry|temporarily|unavailable"
    r"|loading|starting|initiali[sz]ing|warming)\b|^\W*$",
    re.IGNORECASE,
)
"""What servers write in a 503 with which they reject a request without starting it; most write nothing else."""
_FAILURE: Final = re.compile(r"\b(?:failed|failure|fatal|cuda|exception|traceback|crash\w*|died|dead)\b", re.IGNORECASE)

_UNREADY_STATES: Final = frozenset({"FAILED", "SETUP_FAILED", "DEFUNCT", "UNHEALTHY", "STARTING", "LOADING", "UNKNOWN"})
_STATE_FIELDS: Final = ("status", "state")


class HealthCheck(msgspec.Struct, frozen=True):
    """How an endpoint is probed."""

    path: str = "/health"
    interval_s: float = 0.5
    """Time (s) between two probes. Five times shorter while the next probe may change the state."""
    timeout_s: float = 2.0
    """Time (s) after which a probe is late."""
    unhealthy_threshold: int = 2
    """Failed probes in a row that mark an endpoint as down; a late probe counts half."""
    healthy_threshold: int = 2
    """Good probes in a row that mark it as ready again."""
    status: tuple[int, ...] = (200,)
    """Statuses of a good response."""
    body: str = ""
    """Text that a good response contains; empty for any response."""
    busy_body: str = ""
    """Text of a response that means that the endpoint is busy, in addition to those that are recognised."""
    busy_s: float = 120.0
    """Time (s) for which late and refused probes do not count while a request runs on the endpoint, or twice its
    longest recent response if that is longer; 0 if its server answers probes while requests run."""

    @property
    def thresholds(self) -> HealthThresholds:
        """How many probes in a row change the state."""
        return HealthThresholds(self.unhealthy_threshold, self.healthy_threshold)


ANSWERS_WHILE_BUSY: Final = HealthCheck(busy_s=0.0)
"""The health check of servers that run requests and answer probes concurrently."""


class HealthCheckOptions(msgspec.Struct, frozen=True):
    """The fields of the health check that an endpoint's entry sets; None for the value of its kind of engine."""

    path: str | None = None
    interval_s: float | None = None
    timeout_s: float | None = None
    unhealthy_threshold: int | None = None
    healthy_threshold: int | None = None
    status: tuple[int, ...] | None = None
    body: str | None = None
    busy_body: str | None = None
    busy_s: float | None = None

    def applied_to(self, check: HealthCheck) -> HealthCheck:
        """The health check with these fields."""
        own = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(check, **own) if own else check


def asks_for_models(asked: bool, status: int) -> bool:
    """Whether the next probe of an engine whose health path nothing states asks for its list of models.

    Args:
        asked: whether the last probe did, and not the health path of `auto`.
        status: of the response; a server may lack either page.
    """
    return asked is not (status in NO_PAGE)


def is_busy_text(body: bytes) -> bool:
    """Whether the body of a 503 states that the server is full. The first MAX_READ_BYTES are read."""
    return _BUSY.search(_text(body)) is not None


def is_rejection(body: bytes) -> bool:
    """Whether the body of a 503 agrees with a request that was not started; else the server failed.

    The first MAX_READ_BYTES are read.
    """
    text = _text(body)
    return _NOT_STARTED.search(text) is not None and _FAILURE.search(text) is None


def _text(body: bytes) -> str:
    return body[:MAX_READ_BYTES].decode("utf-8", "replace")


def answer_outcome(check: HealthCheck, status: int, body: bytes, *, has_retry_after: bool) -> ProbeOutcome:
    """The outcome of a probe by its response.

    Args:
        check: what a good response is.
        status: the HTTP status.
        body: the body, of which the first MAX_READ_BYTES are read.
        has_retry_after: whether the response has a Retry-After header.
    """
    text = _text(body)
    if check.busy_body and check.busy_body in text:
        return ProbeOutcome.BUSY
    state = _state(body)
    if status in check.status:
        if state == "BUSY" and check.body != "BUSY":
            return ProbeOutcome.BUSY
        if check.body:
            return ProbeOutcome.GOOD if check.body in text else ProbeOutcome.UNREADY
        return ProbeOutcome.UNREADY if state in _UNREADY_STATES else ProbeOutcome.GOOD
    if status in _BUSY_STATUSES or (status == 503 and (has_retry_after or _BUSY.search(text))):
        return ProbeOutcome.BUSY
    return ProbeOutcome.UNREADY


def unready_because(check: HealthCheck, status: int, body: bytes) -> str:
    """Why a response to a probe has the outcome UNREADY, for operators: its status and what its body states."""
    if status in check.status:
        stated = "without the text that its entry expects" if check.body else f"and the state {_state(body)}"
        return f"it answers the health probe with {status} {stated}"
    stated = "".join(letter if letter.isprintable() else " " for letter in _text(body))
    stated = " ".join(stated.split())
    shown = "" if not stated or stated.startswith("<") else f": {stated[:MAX_SHOWN_CHARS]}"
    remedy = "; name its kind of `engine`, or the path of its `health`, in its entry" if status in NO_PAGE else ""
    return f"it answers the health probe with {status}{shown}{remedy}"


def _state(body: bytes) -> str:
    """The state in an answer, in upper case: a field of a JSON object, or the whole text; empty if there is none."""
    stripped = body[: MAX_READ_BYTES + 1].strip()
    if not stripped or len(stripped) > MAX_READ_BYTES:
        return ""
    if stripped.startswith(b"{"):
        try:
            fields: Any = msgspec.json.decode(stripped)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        found = next((fields[name] for name in _STATE_FIELDS if isinstance(fields.get(name), str)), "")
        return str(found).upper()
    return stripped.decode("utf-8", "replace").strip('"').upper()

"""Outcome of a request at its client. Times are seconds since the replay began."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class OutcomeKind(StrEnum):
    """The verdict on one request."""

    OK = "ok"
    """Answered whole."""
    REFUSED = "refused"
    """Rejected with 4xx, or with 503 and a typed error."""
    FAILED = "failed"
    """Cut after it had started, not answered, or a server error."""
    CANCELLED = "cancelled"
    """The client hung up mid-stream, as some do."""


class TryResult(StrEnum):
    """Result of one attempt at an entry."""

    ANSWERED = "answered"
    """A response came, complete or not."""
    REDIRECTED = "redirected"
    """421 with the names of entries to use instead."""
    ASKED_TO_WAIT = "asked_to_wait"
    """429 or 503 with a Retry-After that was honoured."""
    UNREACHABLE = "unreachable"
    """No connection."""
    BROKEN = "broken"
    """The connection died before the first byte of an answer."""
    SILENT = "silent"
    """No byte of an answer in time."""


class Try(msgspec.Struct, frozen=True):
    """One time that a client went to an entry."""

    region: str
    url: str
    at_s: float
    ended_s: float
    result: TryResult
    status: int = 0
    """HTTP status; 0 where no answer came."""


class Outcome(msgspec.Struct, frozen=True):
    """One request from when it was due to when it was over."""

    id: str
    site: str
    tenant: str
    model: str
    scheduled_s: float
    """When it was due; every latency counts from here."""
    started_s: float
    """When the replayer took it up."""
    sent_s: float | None
    """When it was written to the connection that was answered, or to the last that was tried."""
    first_token_s: float | None
    end_s: float
    kind: OutcomeKind
    status: int
    """HTTP status of the last answer; 0 where there was none."""
    code: str
    """Why it was not served: the error's code, or what the client saw happen; empty for a served one."""
    tries: tuple[Try, ...]
    region: str
    """The region that served it, by the answer; empty where none did."""
    endpoint: str
    tokens: int
    """How many arrived."""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token (s), from when the request was due."""
        return None if self.first_token_s is None else self.first_token_s - self.scheduled_s

    @property
    def e2e_s(self) -> float:
        """Time to the end (s), from when the request was due.

        Not from when it was sent: a stalled server must not hide the wait of those it kept from being sent
        (coordinated omission: Tene, "How NOT to Measure Latency", 2013).
        """
        return self.end_s - self.scheduled_s

    @property
    def lag_s(self) -> float:
        """Lag (s) of the replayer itself; large values mean that the machine, not the server, was slow."""
        return self.started_s - self.scheduled_s


def judge(status: int, code: str, whole: bool) -> OutcomeKind:
    """The verdict on a request that was answered and not hung up on.

    Args:
        status: of the answer; 0 where none came.
        code: of a typed error, empty without one.
        whole: whether the answer came to its proper end.
    """
    if status == 200:
        return OutcomeKind.OK if whole and not code else OutcomeKind.FAILED
    if 400 <= status < 500 or (status == 503 and code):
        return OutcomeKind.REFUSED
    return OutcomeKind.FAILED

"""Outcome of a request at its client. Times are in seconds since the start of the replay."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class OutcomeKind(StrEnum):
    """The verdict on one request."""

    OK = "ok"
    """The response was complete."""
    REFUSED = "refused"
    """Rejected with 4xx, or with 503 and a typed error."""
    FAILED = "failed"
    """No response, an incomplete response, or a server error."""
    CANCELLED = "cancelled"
    """The client disconnected during the stream, as planned."""


class TryResult(StrEnum):
    """Result of one attempt at an entry."""

    ANSWERED = "answered"
    """The entry sent a response, complete or not."""
    REDIRECTED = "redirected"
    """421 with the names of regions to use instead."""
    ASKED_TO_WAIT = "asked_to_wait"
    """429 or 503 with a Retry-After that was honoured."""
    UNREACHABLE = "unreachable"
    """No connection to the entry could be established."""
    BROKEN = "broken"
    """The connection failed before the first byte of a response."""
    SILENT = "silent"
    """No byte of a response arrived within the timeout."""


class Try(msgspec.Struct, frozen=True):
    """One attempt of a client at an entry."""

    region: str
    url: str
    at_s: float
    ended_s: float
    result: TryResult
    status: int = 0
    """HTTP status; 0 without a response."""


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of one request."""

    id: str
    site: str
    tenant: str
    model: str
    scheduled_s: float
    """Due time, from which every latency is measured."""
    started_s: float
    """Time at which the replayer started the request."""
    sent_s: float | None
    """Time at which the client last wrote the request to a connection."""
    first_token_s: float | None
    end_s: float
    kind: OutcomeKind
    status: int
    """HTTP status of the last response; 0 without a response."""
    code: str
    """Error code, or the problem that the client detected; empty for a served request."""
    tries: tuple[Try, ...]
    region: str
    """Region that served the request, according to the response; empty if none."""
    endpoint: str
    tokens: int
    """Number of tokens received."""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token (s), from the due time."""
        return None if self.first_token_s is None else self.first_token_s - self.scheduled_s

    @property
    def e2e_s(self) -> float:
        """Time to the end of the request (s), from the due time.

        Measured from the send time, the latency would omit the wait of requests that a stalled server delayed
        (coordinated omission: Tene, "How NOT to Measure Latency", 2013).
        """
        return self.end_s - self.scheduled_s

    @property
    def lag_s(self) -> float:
        """Lag (s) of the replayer itself; large values mean that the machine, not the server, was slow."""
        return self.started_s - self.scheduled_s


def judge(status: int, code: str, whole: bool) -> OutcomeKind:
    """Return the outcome kind of a request that received a response and was not cancelled by the client.

    Args:
        status: HTTP status of the response; 0 without a response.
        code: code of a typed error; empty without an error.
        whole: whether the response was complete.
    """
    if status == 200:
        return OutcomeKind.OK if whole and not code else OutcomeKind.FAILED
    if 400 <= status < 500 or (status == 503 and code):
        return OutcomeKind.REFUSED
    return OutcomeKind.FAILED

"""A line of an agent's access log: the fields that describe the request."""

from __future__ import annotations

import msgspec

from penstock.routing.reasons import Reason


class BadLogLine(Exception):
    """The text is not a line of an access log."""


class AccessLogLine(msgspec.Struct, frozen=True):
    """A logged request."""

    tenant: str
    model: str
    kind: str
    """Reason for the choice of the serving region."""
    server: str
    """Region that served the request."""
    endpoint: str
    outcome: str
    request_id: str = ""
    origin: str = ""
    """Region that received the request."""
    country: str = ""
    subdivision: str = ""
    at: float | None = None
    """Unix time (s) at the end of the request."""
    total_ms: float = 0.0
    policy_digest: str = ""
    plan_generation: int | None = None
    tried: dict[str, Reason] = {}
    """Regions that did not start the request, with the reason."""

    @property
    def began_at(self) -> float | None:
        """Unix time (s) at which the request arrived."""
        return None if self.at is None else max(0.0, self.at - self.total_ms / 1000)

    def __str__(self) -> str:
        served = f"{self.server}/{self.endpoint}" if self.endpoint else self.server
        return f"request {self.request_id}: {self.outcome}, {self.kind} at {served}"


def read_line(line: str) -> AccessLogLine:
    """Return the request of a line.

    Raises:
        BadLogLine: the text is not a line of an access log.
    """
    try:
        return msgspec.json.decode(line, type=AccessLogLine)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLogLine(f"no line of an agent's access log: {error}") from None

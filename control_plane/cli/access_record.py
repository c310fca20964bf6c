"""A line of an agent's access log: the fields that describe the request."""

from __future__ import annotations

import msgspec


class BadRecord(Exception):
    """The text is not a line of an access log."""


class AccessRecord(msgspec.Struct, frozen=True):
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

    def __str__(self) -> str:
        served = f"{self.server}/{self.endpoint}" if self.endpoint else self.server
        return f"request {self.request_id}: {self.outcome}, {self.kind} at {served}"


def read_record(line: str) -> AccessRecord:
    """Return the request of a line.

    Raises:
        BadRecord: the text is not a line of an access log.
    """
    try:
        return msgspec.json.decode(line, type=AccessRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"no line of an agent's access log: {error}") from None

"""A line of an agent's access log, as far as it says what was asked for."""

from __future__ import annotations

import msgspec


class BadRecord(Exception):
    """What is given is no line of an access log; the message says what to give."""


class AccessRecord(msgspec.Struct, frozen=True):
    """One request as its agent logged it."""

    tenant: str
    model: str
    kind: str
    """Why it went where it went."""
    server: str
    """Region that served it."""
    endpoint: str
    outcome: str
    request_id: str = ""
    origin: str = ""
    """Region that it landed on; empty in lines of older agents."""
    country: str = ""
    subdivision: str = ""

    def __str__(self) -> str:
        served = f"{self.server}/{self.endpoint}" if self.endpoint else self.server
        return f"request {self.request_id}: {self.outcome}, {self.kind} at {served}"


def read_record(line: str) -> AccessRecord:
    """The request in a line.

    Raises:
        BadRecord: it is not one of an access log.
    """
    try:
        return msgspec.json.decode(line, type=AccessRecord)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadRecord(f"no line of an agent's access log: {error}") from None

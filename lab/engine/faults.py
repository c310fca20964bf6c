"""Faults that can be injected into an engine at run time."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The faults in force. A new set replaces the old one whole, so `{}` heals the engine."""

    slow: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 1.0
    """Every pass takes this many times as long."""
    hang: bool = False
    """Accept connections and requests but neither answer nor generate; what is held back goes on afterwards."""
    error_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of completion requests (0-1) that are answered with `error_status`."""
    error_status: Literal[500, 503] = 500
    die_mid_stream: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    """Reset the connection of each completion once it has this many tokens; None never does."""
    refuse_health: bool = False
    """Answer 503 to /health; completions go on."""
    reject: bool = False
    """Answer 429 to completions, as a gateway in front of a full engine would."""

    def encoded(self) -> bytes:
        """The faults as JSON."""
        return msgspec.json.encode(self)


NO_FAULTS = Faults()


def parse_faults(body: bytes) -> Faults:
    """The faults that a request body sets.

    Raises:
        ValueError: naming the field and what is wrong with it.
    """
    try:
        return msgspec.json.decode(body, type=Faults)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error

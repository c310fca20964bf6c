"""Faults that can be injected into an engine at run time."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The active faults. A new set replaces the previous set completely, so `{}` removes all faults."""

    slow: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 1.0
    """Factor on the duration of every pass."""
    hang: bool = False
    """Accept connections and requests but neither respond nor generate; held requests continue afterwards."""
    error_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of completion requests (0-1) that fail with `error_status`."""
    error_status: Literal[500, 503] = 500
    die_mid_stream: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    """Reset the connection of each completion after this many tokens; None disables the fault."""
    refuse_health: bool = False
    """Respond 503 to /health; completions continue."""
    revision: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """The revision (`root`) that the engine reports; empty for the model."""
    reject: bool = False
    """Respond 429 to completions, as a gateway in front of a full engine does."""

    def encoded(self) -> bytes:
        """The faults as JSON."""
        return msgspec.json.encode(self)


NO_FAULTS = Faults()


def parse_faults(body: bytes) -> Faults:
    """Parse the faults in a request body.

    Raises:
        ValueError: the body is invalid; the message states the field and the problem.
    """
    try:
        return msgspec.json.decode(body, type=Faults)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error

"""What is taken of an endpoint for one request, until it is given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regional_agent.endpoints.endpoint import Endpoint


class Reservation:
    """One request's place on an endpoint, and the work that is reserved for it; knows what was given back."""

    __slots__ = ("decode_us", "endpoint", "prefill_us", "released")

    def __init__(self, endpoint: Endpoint, prefill_us: int = 0, decode_us: int = 0) -> None:
        """Counts from `SharedLoad.reserve` on; of so much work at the endpoint's speed (microseconds)."""
        self.endpoint = endpoint
        self.prefill_us = prefill_us
        """What is still reserved for prefill."""
        self.decode_us = decode_us
        self.released = False

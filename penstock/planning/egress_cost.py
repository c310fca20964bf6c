"""The cost of traffic between two regions, for numbers (what-if) and for arrays over all regions (the planner)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.policy.policy import BYTES_PER_GB

if TYPE_CHECKING:
    # Agents use it for numbers, and numpy takes long to import.
    import numpy as np
    from numpy.typing import NDArray

Amount = TypeVar("Amount", float, "NDArray[np.float64]")


class MessageSizes(Protocol):
    """The sizes of a body and of its response: as policy assumes them, or as measured."""

    @property
    def request_bytes(self) -> float:
        """Size (bytes) of the body."""

    @property
    def response_bytes(self) -> float:
        """Size (bytes) of the response."""


def egress_cost(sizes: MessageSizes, entry_per_gb: Amount, server_per_gb: Amount) -> Amount:
    """The egress cost of a request that enters in one region and is served in another: its body and its response.

    Args:
        sizes: of the request, or of the mean request.
        entry_per_gb: price of a GB leaving the entry region, in the currency of the bundle.
        server_per_gb: the same for the serving region.
    """
    return (entry_per_gb * sizes.request_bytes + server_per_gb * sizes.response_bytes) / BYTES_PER_GB

"""The cost of traffic between two regions, for numbers (what-if) and for arrays over all regions (the planner)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.fleet.message_bytes import MessageBytes
from penstock.policy.kinds.models import Model
from penstock.policy.policy import BYTES_PER_GB

if TYPE_CHECKING:
    # Agents use it for numbers, and numpy takes long to import.
    import numpy as np
    from numpy.typing import NDArray

Amount = TypeVar("Amount", float, "NDArray[np.float64]")


def egress_cost(sizes: Model | MessageBytes, entry_per_gb: Amount, server_per_gb: Amount) -> Amount:
    """The egress cost of a request that enters in one region and is served in another: its body and its response.

    Args:
        sizes: the mean sizes of bodies and responses: as policy assumes them, or as measured.
        entry_per_gb: price of a GB leaving the entry region, in the currency of the bundle.
        server_per_gb: the same for the serving region.
    """
    return (entry_per_gb * sizes.request_bytes + server_per_gb * sizes.response_bytes) / BYTES_PER_GB

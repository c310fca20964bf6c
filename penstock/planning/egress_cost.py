"""What bytes between two regions cost: one rule, for the planner, which asks about all regions at once, and what-if."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.policy.policy import BYTES_PER_GB, Model

Amount = TypeVar("Amount", float, NDArray[np.float64])


def egress_cost(model: Model, entry_per_gb: Amount, server_per_gb: Amount) -> Amount:
    """What one request costs that is read in one region and served in another: its body there, the answer's back.

    Args:
        entry_per_gb: price of a GB that leaves the region that reads it, in the currency of the bundle.
        server_per_gb: the same for the region that serves it.
    """
    return (entry_per_gb * model.request_bytes + server_per_gb * model.response_bytes) / BYTES_PER_GB

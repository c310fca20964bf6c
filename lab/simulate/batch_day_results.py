"""The dials and the results of a day of four regions with a batch (`batch_day`)."""

from __future__ import annotations

import msgspec


class BatchDay(msgspec.Struct, frozen=True):
    """The results of one day."""

    name: str
    idle_used_share: float
    """Slot time of the batch, without runs that were preempted, as a share (0-1) of what requests of clients left."""
    batch_gpu_hours: float
    """GPU hours that a separate fleet, which is always full, needs for the requests of the batch."""
    batch_requests: int
    away_share: float
    """Share (0-1) of the batch's requests that ran outside its region."""
    mean_price: float
    """Mean price of the batch's GPU hours, relative to the price at day."""
    returned: int
    """Requests of the batch that another region refused on arrival."""
    preempted: int
    """Runs of the batch's requests that ended for a client's request."""
    lost_share: float
    """Slot time of these runs, as a share (0-1) of what requests of clients left."""
    wait_p99_s: float
    """99th percentile of the time that requests of clients waited for a slot."""
    response_p99_s: float
    """99th percentile of their time from arrival to end, trips between regions included."""


class Bounds(msgspec.Struct, frozen=True):
    """The dials of a run."""

    max_use: float
    """Part (0-1) of the slots up to which requests of the batch start."""
    target: float
    """Target utilisation (0-1], up to which regions grant credits."""
    preempts: bool = False
    """Whether requests of clients end running requests of the batch."""
    patience: float = 0.0
    """Part (0-1) of the mean service time for which a request waits before it ends one of any age."""

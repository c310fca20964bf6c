"""What capacity is missing where: the signal that an autoscaler, or a person who buys GPUs, acts on."""

from __future__ import annotations

import msgspec


class Shortfall(msgspec.Struct, frozen=True):
    """Capacity that one model lacks, now or at the loss of one region."""

    model: str
    residency: tuple[str, ...]
    """Names of the residency classes that feel it: they may go nowhere else."""
    regions: tuple[str, ...]
    """Where more capacity would help, any of them; none where the classes have no other region than the lost one."""
    lost: str | None
    """The region whose loss would make it felt; None where it is missing already, for serving within the target."""
    requests_per_s: float
    slots: float
    """The same as concurrent requests, at the mean service time of those regions."""

"""What every region can give every model now: what a plan may fill, faded by the age of the news.

A region on its failback ramp has all its slots; what is held back is its part of each class. If its slots were held
back as well, it would look full for as long as the ramp lasts, and get the last of its traffic back after all others.
"""

from __future__ import annotations

import msgspec

from penstock.policy import Policy
from penstock.region_health import RegionHealth
from penstock.snapshot import Snapshot, pools


class Supply(msgspec.Struct, frozen=True):
    """What one region can give one model."""

    slots: float
    """Requests that it runs at once, all of them: a plan fills them up to the spillover target."""
    service_s: float
    """Mean time (s) a request holds one."""
    most: float = 1.0
    """The most (0-1] of any class's demand that may go there now: less than all of it on a failback ramp."""


def supply(policy: Policy, snapshot: Snapshot, now: float) -> dict[tuple[str, str], Supply]:
    """By (region, model), of every region that may be planned for: not failed, not draining, some endpoint ready.

    Args:
        now: the planner's clock, in seconds; for ages and ramps.
    """
    weights = {
        region: snapshot.health.get(region, RegionHealth()).weight(now, policy.failover) for region in policy.regions
    }
    found = {}
    for (region, model), seen in sorted(pools(snapshot, now).items()):
        weight = weights.get(region, 0.0)
        if weight > 0.0 and model in policy.models and seen.report.ready > 0:
            service_s = seen.report.service_s or policy.models[model].expected_service_s
            found[region, model] = Supply(seen.report.slots * seen.counts, service_s, weight)
    return found

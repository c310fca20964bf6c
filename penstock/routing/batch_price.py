"""The price of a batch request in a region: that of its GPU time, and of the data that leaves regions because of it."""

from __future__ import annotations

import msgspec

from penstock.planning.egress_cost import egress_cost
from penstock.policy.gpu_price import gpu_price
from penstock.policy.kinds.models import Model
from penstock.policy.policy import SECONDS_PER_HOUR, Policy


class BatchWork(msgspec.Struct, frozen=True):
    """What a batch request uses, in any region alike."""

    gpu_s: float
    """GPU time (s)."""
    request_bytes: float
    """Size (bytes) of its body, which the origin sends."""
    response_bytes: float
    """Expected size (bytes) of its response, which the serving region sends."""


def batch_work(model: Model, service_s: float = 0.0, slots: float = 0.0) -> BatchWork:
    """The work of a mean request of a model, whose sizes are those of the policy.

    Args:
        service_s: time (s) for which such a request occupies a slot; 0 for that of the policy.
        slots: slots of one endpoint, which the batch fills; 0 for those of the policy.
    """
    held_s = service_s or model.expected_service_s
    gpu_s = held_s * model.scaling.gpus_per_endpoint / (slots or model.scaling.slots_per_endpoint)
    return BatchWork(gpu_s, model.request_bytes, model.response_bytes)


def batch_price(policy: Policy, origin: str, region: str, model: str, work: BatchWork, now: float) -> float:
    """The price of a GPU hour of a batch request for a model in a region at `now` (Unix time, s), with its egress.

    Without egress it is the price of a GPU hour, so that regions with equal prices stay equal.
    """
    price = gpu_price(policy, region, model, now)
    if region == origin:
        return price
    per_gb = policy.regions[origin].egress_cost_per_gb, policy.regions[region].egress_cost_per_gb
    return price + egress_cost(work, *per_gb) * SECONDS_PER_HOUR / work.gpu_s

"""The GPU time of an attempt, which the ledger records and budgets count."""

from __future__ import annotations

from penstock.cost.work import Work
from penstock.policy.kinds.models import Model


def gpus_of(model: Model | None) -> float:
    """Return the GPUs of one endpoint of a model.

    Args:
        model: of the policy under which the request ran; None if that policy lacks it, which counts as one GPU, the
            number of a model whose policy states none.
    """
    return 1.0 if model is None else model.scaling.gpus_per_endpoint


def estimated_gpu_s(model: Model | None, work: Work) -> float:
    """Return the estimated GPU seconds of a request on the reference accelerator; `model` is as of `gpus_of`."""
    return gpus_of(model) * (work.prefill_s + work.decode_s)


def gpu_time_s(model: Model | None, held_s: float, streams: float) -> float:
    """Return the GPU seconds of an attempt: its share of the time of its endpoint's GPUs.

    Args:
        model: as of `gpus_of`.
        held_s: time (s) for which the attempt held its slot.
        streams: mean number of requests on the endpoint during that time, this one included.
    """
    return gpus_of(model) * held_s / streams

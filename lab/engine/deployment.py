"""A model on so many accelerators: whether it fits, how much KV cache is left, how long it takes to load."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lab.engine.accelerators import Accelerator
from lab.engine.models import ServedModel

KV_BLOCK_TOKENS = 16
"""Tokens in a block of the KV cache: vLLM's default on GPUs."""

MEMORY_UTILISATION = 0.9
"""Share of device memory that the engine may take: vLLM's default `gpu_memory_utilization`."""

ACTIVATION_BYTES = 2e9
"""Memory per device that activations and graphs take from the KV cache; vLLM measures 1-3 GB at start-up."""

MIN_KV_TOKENS = 16_384
"""A deployment that is left to choose its own size takes enough devices to cache this many tokens."""

LOAD_BYTES_PER_S = 2e9
"""Weights from a local NVMe disk to a device."""

WARM_UP_S = 35.0
"""Compiling, profiling and capturing graphs with a warm compile cache: "init engine took 34.11 seconds" in vLLM issue
20264."""


class Deployment(msgspec.Struct, frozen=True):
    """One engine's model and hardware."""

    model: ServedModel
    accelerator: Accelerator
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1)]
    """Devices that hold a slice of every layer each."""

    @property
    def kv_blocks(self) -> int:
        """Blocks of KV cache that fit beside the weights; 0 where not even the weights do."""
        usable_bytes = self.tensor_parallel * (self.accelerator.memory_bytes * MEMORY_UTILISATION - ACTIVATION_BYTES)
        left_bytes = usable_bytes - self.model.weight_bytes
        return max(0, int(left_bytes / (self.model.kv_bytes_per_token * KV_BLOCK_TOKENS)))

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit in the KV cache at once."""
        return self.kv_blocks * KV_BLOCK_TOKENS

    @property
    def max_sequence_tokens(self) -> int:
        """The model's context, or less where the cache cannot hold one such sequence (vLLM refuses to start then)."""
        return min(self.model.context_tokens, self.kv_tokens)

    @property
    def load_s(self) -> float:
        """Time (s) from start until it can serve."""
        return self.model.weight_bytes / self.tensor_parallel / LOAD_BYTES_PER_S + WARM_UP_S


def min_deployment(model: ServedModel, accelerator: Accelerator) -> Deployment | None:
    """The fewest devices (1, 2, 4 or 8) that serve the model with room to work in; None where eight are too few."""
    for tensor_parallel in (1, 2, 4, 8):
        deployment = Deployment(model, accelerator, tensor_parallel)
        if deployment.kv_tokens >= MIN_KV_TOKENS:
            return deployment
    return None

"""A model on a number of accelerators: memory fit, size of the KV cache, and load time."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lab.engine.accelerators import Accelerator
from lab.engine.models import ServedModel

KV_BLOCK_TOKENS = 16
"""Tokens per block of the KV cache: vLLM's default on GPUs."""

MEMORY_UTILISATION = 0.9
"""Share of device memory that the engine may use: vLLM's default `gpu_memory_utilization`."""

ACTIVATION_BYTES = 2e9
"""Memory per device for activations and graphs, not available to the KV cache; vLLM measures 1-3 GB at startup."""

MIN_KV_TOKENS = 16_384
"""Minimum size (tokens) of the KV cache of a deployment whose number of devices is not configured."""

LOAD_BYTES_PER_S = 2e9
"""Rate at which a device loads weights from a local NVMe disk."""

WARM_UP_S = 35.0
"""Time (s) for compiling, profiling and capturing graphs with a warm compile cache: "init engine took 34.11 seconds" in
vLLM issue 20264."""


class Deployment(msgspec.Struct, frozen=True):
    """Model and hardware of one engine."""

    model: ServedModel
    accelerator: Accelerator
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1)]
    """Number of devices, each of which holds a slice of every layer."""

    @property
    def kv_blocks(self) -> int:
        """Number of KV cache blocks that fit in memory with the weights; 0 if the weights do not fit."""
        usable_bytes = self.tensor_parallel * (self.accelerator.memory_bytes * MEMORY_UTILISATION - ACTIVATION_BYTES)
        left_bytes = usable_bytes - self.model.weight_bytes
        return max(0, int(left_bytes / (self.model.kv_bytes_per_token * KV_BLOCK_TOKENS)))

    @property
    def kv_tokens(self) -> int:
        """Size (tokens) of the KV cache."""
        return self.kv_blocks * KV_BLOCK_TOKENS

    @property
    def max_sequence_tokens(self) -> int:
        """The model's context, or the size of the KV cache if smaller (vLLM refuses to start in that case)."""
        return min(self.model.context_tokens, self.kv_tokens)

    @property
    def load_s(self) -> float:
        """Time (s) from the start until the engine is ready."""
        return self.model.weight_bytes / self.tensor_parallel / LOAD_BYTES_PER_S + WARM_UP_S


def min_deployment(model: ServedModel, accelerator: Accelerator) -> Deployment | None:
    """The fewest devices (1, 2, 4 or 8) with MIN_KV_TOKENS of KV cache; None if eight devices are too few."""
    for tensor_parallel in (1, 2, 4, 8):
        deployment = Deployment(model, accelerator, tensor_parallel)
        if deployment.kv_tokens >= MIN_KV_TOKENS:
            return deployment
    return None

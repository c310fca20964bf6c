"""Duration of one forward pass of a batch on given hardware: a roofline model per kind of kernel.

A pass alternates between two kinds of work that do not overlap, so their times add up: matrix products with the
weights (which read every weight once for any batch) and attention (which reads the KV cache of every sequence). Each is
bound by memory or by arithmetic, whichever takes longer. Decode is bound by memory and slows with the size of the
batch's KV cache; prefill is bound by arithmetic and slows with its tokens (Pope et al., "Efficiently Scaling
Transformer Inference", 2022; the roofline: Williams et al., CACM 2009).
"""

from __future__ import annotations

from lab.engine.deployment import Deployment
from lab.engine.models import BYTES_PER_VALUE

STEP_OVERHEAD_S = 0.9e-3
"""Time (s) of scheduling, sampling, detokenizing and launches in every pass."""

ALL_REDUCE_S = 10e-6
"""Latency (s) of one small all-reduce over NVLink; tensor parallelism needs two per layer. The bandwidth is not
modelled, so modelled tensor parallelism over PCIe is too fast."""


class StepTime:
    """The step time of one deployment, with all terms that do not depend on the batch precomputed."""

    def __init__(self, deployment: Deployment) -> None:
        model, accelerator, devices = deployment.model, deployment.accelerator, deployment.tensor_parallel
        bandwidth = accelerator.bandwidth_bytes_per_s * accelerator.memory_efficiency * devices
        flops = accelerator.dense_bf16_flops * accelerator.compute_efficiency * devices
        all_reduces = 2 * model.layers if devices > 1 else 0
        self._fixed_s = STEP_OVERHEAD_S + all_reduces * ALL_REDUCE_S
        self._weights_s = (model.layer_parameters + model.output_parameters) * BYTES_PER_VALUE / bandwidth
        self._token_s = 2 * model.layer_parameters / flops
        self._sample_s = 2 * model.output_parameters / flops
        self._kv_token_s = model.kv_bytes_per_token / bandwidth
        self._attention_pair_s = 4 * model.layers * model.hidden_size / flops

    def seconds(self, tokens: int, samples: int, context_tokens: int, attention_pairs: float) -> float:
        """Time (s) of one pass.

        Args:
            tokens: new tokens that pass through the layers, prefill and decode together.
            samples: number of sequences that sample a token.
            context_tokens: tokens of KV cache read, summed over sequences.
            attention_pairs: pairs of a new token and a token it attends to, summed over sequences.
        """
        products_s = max(self._weights_s, tokens * self._token_s + samples * self._sample_s)
        attention_s = max(context_tokens * self._kv_token_s, attention_pairs * self._attention_pair_s)
        return self._fixed_s + products_s + attention_s

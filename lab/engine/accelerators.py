"""Published specifications of accelerators, which determine the timing of a fake engine."""

from __future__ import annotations

import msgspec


class Accelerator(msgspec.Struct, frozen=True):
    """One accelerator type, per device."""

    name: str
    memory_bytes: float
    """Capacity of the HBM or GDDR."""
    bandwidth_bytes_per_s: float
    """Peak memory bandwidth."""
    dense_bf16_flops: float
    """Peak bf16 matrix throughput (FLOP/s) without structured sparsity; data sheets often print twice this."""
    compute_efficiency: float = 0.5
    """Share of peak throughput (0-1] that prefill reaches, norms and launches included. Chosen so that 500 tokens of
    Llama-3.1-8B on an A100 take 46 ms; the published time to first token is 48.3 ms, HTTP and tokenizing included
    (NVIDIA, "Llama 3.1 Nemotron Safety Guard 8B NIM performance": A100 80 GB SXM, bf16, concurrency 1)."""
    memory_efficiency: float = 0.8
    """Share of the peak bandwidth (0-1] that decode reaches. Chosen so that a single stream of Llama-3.1-8B takes
    6.5 ms per token on an H100; the published time is 6.48 ms (vLLM 0.21, fp16: InferenceBench, "Recipe: concurrency
    sweep")."""


_GB = 1e9
_TB = 1e12
_TFLOPS = 1e12

ACCELERATORS: dict[str, Accelerator] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator("h100", 80 * _GB, 3.35 * _TB, 989.5 * _TFLOPS),
        Accelerator("a100", 80 * _GB, 2.039 * _TB, 312 * _TFLOPS),
        Accelerator("l40s", 48 * _GB, 0.864 * _TB, 362 * _TFLOPS),
        Accelerator("l4", 24 * _GB, 0.3 * _TB, 121 * _TFLOPS),
        Accelerator("b200", 180 * _GB, 8.0 * _TB, 2250 * _TFLOPS),
        Accelerator("mi300x", 192 * _GB, 5.3 * _TB, 1307.4 * _TFLOPS, compute_efficiency=0.33),
    )
}
"""Accelerators by name. Sources:

- h100: NVIDIA H100 Tensor Core GPU data sheet, SXM: 80 GB HBM3, 3.35 TB/s, bf16 1,979 TFLOPS with sparsity.
- a100: NVIDIA A100 Tensor Core GPU data sheet (us-nvidia-1758950-r4), 80 GB SXM: 2,039 GB/s, bf16 312 TFLOPS dense.
- l40s: NVIDIA L40S data sheet: 48 GB GDDR6, 864 GB/s, bf16 362.05 TFLOPS dense.
- l4: NVIDIA L4 data sheet: 24 GB GDDR6, 300 GB/s, bf16 242 TFLOPS with sparsity.
- b200: NVIDIA HGX and DGX B200 data sheets, per GPU: 180 GB HBM3e, 8 TB/s, bf16 4.5 PFLOPS with sparsity.
- mi300x: AMD Instinct MI300X data sheet: 192 GB HBM3, 5.3 TB/s, bf16 1,307.4 TFLOPS dense. Its compute efficiency is
  two thirds of the default because the measured matrix throughput is about 45 % of the peak while the memory reaches
  81 % of the peak bandwidth (Ambati et al., "AMD MI300X GPU Performance Analysis", October 2025).
"""

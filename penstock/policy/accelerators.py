"""Speed of accelerators relative to the reference accelerator, by published data: a prior.

Prefill is bound by arithmetic, so its prior follows peak bf16 throughput without sparsity; decode is bound by memory,
so its prior follows peak bandwidth (Pope et al., "Efficiently Scaling Transformer Inference", 2022).
"""

from __future__ import annotations

import re

import msgspec

REFERENCE_TFLOPS = 989.5
REFERENCE_TB_PER_S = 3.35
"""NVIDIA H100 SXM: dense bf16 throughput and memory bandwidth."""


class RelativeSpeed(msgspec.Struct, frozen=True):
    """Time on an accelerator, relative to the reference accelerator."""

    prefill: float
    decode: float


def _relative_speed(bf16_tflops: float, tb_per_s: float) -> RelativeSpeed:
    return RelativeSpeed(REFERENCE_TFLOPS / bf16_tflops, REFERENCE_TB_PER_S / tb_per_s)


RELATIVE_SPEEDS: dict[str, RelativeSpeed] = {
    "h100": _relative_speed(989.5, 3.35),
    "h200": _relative_speed(989.5, 4.8),
    "b200": _relative_speed(2250, 8.0),
    "a100": _relative_speed(312, 2.039),
    "l40s": _relative_speed(362, 0.864),
    "l4": _relative_speed(121, 0.3),
    "a10": _relative_speed(125, 0.6),
    "a10g": _relative_speed(70, 0.6),
    "v100": _relative_speed(125, 0.9),
    "t4": _relative_speed(65, 0.32),
    "mi300x": _relative_speed(860, 5.3),
}
"""Relative speeds by the name of the accelerator in the endpoints file. From NVIDIA's data sheets: H100 SXM; H200 SXM
(the same arithmetic, 4.8 TB/s); HGX B200, a GPU's share; A100 80 GB SXM; L40S; L4; A10; A10G, the variant of AWS's G5
instances; V100 SXM2; T4. V100 and T4 lack bf16: theirs is the throughput of fp16 on tensor cores. AMD Instinct MI300X:
5.3 TB/s, and 860 of the 1,307 TFLOPS of its data sheet, since its measured matrix throughput falls that far short
(Ambati et al., "AMD MI300X GPU Performance Analysis", October 2025)."""

_PARTS = re.compile(r"[a-z0-9]+")


def relative_speed_of(accelerator: str) -> RelativeSpeed | None:
    """Return the relative speed of an accelerator by a word of its name, such as `NVIDIA-A100-SXM4-80GB` of a node's
    label; None if no word is in the table."""
    for part in _PARTS.findall(accelerator.lower()):
        found = RELATIVE_SPEEDS.get(part)
        if found is not None:
            return found
    return None

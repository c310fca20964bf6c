"""Reads any page as that of a DCGM exporter or of Triton.

Property: the result is InvalidSignals, or a state whose values are within their limits.
"""

from __future__ import annotations

from penstock.health.engines.engine_signals import InvalidSignals
from penstock.health.engines.gpu_metrics import read_gpus

WORDS = (
    b"\nDCGM_FI_DEV_GPU_UTIL",
    b"\nDCGM_FI_DEV_FB_USED",
    b"\nDCGM_FI_DEV_FB_FREE",
    b"\nDCGM_FI_DEV_GPU_TEMP",
    b"\nDCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    b"\nnv_gpu_utilization",
    b"\nnv_gpu_memory_used_bytes",
    b"\nnv_gpu_memory_total_bytes",
    b'{gpu="0",UUID="GPU-a"} ',
    b'{gpu_uuid="GPU-a"} ',
    b"NaN",
    b"+Inf",
)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    try:
        state = read_gpus(data)
    except InvalidSignals:
        return
    assert state.is_possible

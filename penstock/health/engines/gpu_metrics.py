"""Reads the state of an endpoint's GPUs on the page of a DCGM exporter, or of Triton (`nv_gpu_*`).

Source: https://github.com/NVIDIA/dcgm-exporter and Triton's docs/user_guide/metrics.md. The values are for people and
alerts; routing uses the learned speed of an endpoint, in which a throttled GPU shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Final

import msgspec

from penstock.health.engines.engine_signals import InvalidSignals, Samples, read_samples

MAX_GPUS: Final = 64
"""Maximum number of GPUs of one endpoint."""

MAX_TEMPERATURE_C: Final = 150.0
"""Largest valid temperature; a GPU shuts down far below."""

THROTTLED_BITS: Final = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's clocks event reasons for heat, power brakes and other slowdowns by hardware; without the power cap, at which
GPUs under load run."""

_DCGM_UTILISATION: Final = "DCGM_FI_DEV_GPU_UTIL"
_DCGM_USED: Final = "DCGM_FI_DEV_FB_USED"
_DCGM_FREE: Final = "DCGM_FI_DEV_FB_FREE"
_TEMPERATURE: Final = "DCGM_FI_DEV_GPU_TEMP"
_REASONS: Final = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
_TRITON_UTILISATION: Final = "nv_gpu_utilization"
_TRITON_USED: Final = "nv_gpu_memory_used_bytes"
_TRITON_TOTAL: Final = "nv_gpu_memory_total_bytes"

_NAMES: Final = (
    _DCGM_UTILISATION,
    _DCGM_USED,
    _DCGM_FREE,
    _TEMPERATURE,
    *_REASONS,
    _TRITON_UTILISATION,
    _TRITON_USED,
    _TRITON_TOTAL,
)

_IDENTITIES: Final = ("gpu", "UUID", "gpu_uuid")
"""Labels that identify a GPU: its index and its UUID (DCGM), its UUID (Triton). Series of one GPU are joined by the
last of these labels that each has, which is the UUID where both report."""

_ANY_LIMIT: Final = 1e18


class GpuState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The GPUs of one endpoint. Encoded as an array: append new fields at the end."""

    gpus: int
    """Number of GPUs with a value."""
    utilisation: float | None = None
    """Mean share (0-1) of the time in which a kernel ran."""
    memory_used: float | None = None
    """Share (0-1) of the memory in use, of the GPU with the largest."""
    temperature_c: float | None = None
    """Highest temperature (degrees Celsius)."""
    is_throttled: bool | None = None
    """Whether heat, power brakes or hardware slow a GPU down."""

    @property
    def is_possible(self) -> bool:
        """Whether all values are within their limits."""
        shares = [share for share in (self.utilisation, self.memory_used) if share is not None]
        return (
            1 <= self.gpus <= MAX_GPUS
            and all(0.0 <= share <= 1.0 for share in shares)
            and (self.temperature_c is None or 0.0 <= self.temperature_c <= MAX_TEMPERATURE_C)
        )


def read_gpus(page: bytes, gpus: Sequence[str] = ()) -> GpuState:
    """Return the state of an endpoint's GPUs.

    Args:
        page: content of the metrics page; the caller bounds its size.
        gpus: indexes or UUIDs of the endpoint's GPUs; empty for all of the page.

    Raises:
        InvalidSignals: the page has none of these GPUs, too many, or an invalid value.
    """
    found = read_samples(page, _NAMES)
    percent = _of(found, _DCGM_UTILISATION, gpus, 100.0)
    utilisation = {gpu: value / 100.0 for gpu, value in percent.items()} or _of(found, _TRITON_UTILISATION, gpus, 1.0)
    # DCGM counts MiB, and Triton bytes.
    used, free = (_of(found, name, gpus, _ANY_LIMIT) for name in (_DCGM_USED, _DCGM_FREE))
    sizes = {gpu: used[gpu] + free[gpu] for gpu in used if gpu in free}
    if not used:
        used, sizes = (_of(found, name, gpus, _ANY_LIMIT) for name in (_TRITON_USED, _TRITON_TOTAL))
    temperatures = _of(found, _TEMPERATURE, gpus, MAX_TEMPERATURE_C)
    reasons = next((bits for name in _REASONS if (bits := _of(found, name, gpus, _ANY_LIMIT))), {})
    shares = [min(1.0, used[gpu] / size) for gpu, size in sizes.items() if size > 0.0 and gpu in used]
    known = {*utilisation, *used, *temperatures, *reasons}
    if not known:
        raise InvalidSignals("no GPU of the endpoint is on the page")
    if len(known) > MAX_GPUS:
        raise InvalidSignals(f"{len(known)} GPUs, at most {MAX_GPUS} are valid; name those of the endpoint in `gpus`")
    return GpuState(
        len(known),
        min(1.0, sum(utilisation.values()) / len(utilisation)) if utilisation else None,
        max(shares, default=None),
        max(temperatures.values(), default=None),
        any(int(bits) & THROTTLED_BITS for bits in reasons.values()) if reasons else None,
    )


def _of(found: Samples, name: str, gpus: Sequence[str], limit: float) -> dict[str, float]:
    """The values of one gauge by GPU; of several series of one GPU (its MIG instances), the largest."""
    values: dict[str, float] = {}
    for labels, value in found.get(name, ()):
        identities = [labels[label] for label in _IDENTITIES if label in labels]
        if isnan(value) or not identities or (gpus and not set(identities) & set(gpus)):
            continue
        if not 0.0 <= value <= limit:
            raise InvalidSignals(f"{name} of {value!r} is not from 0 to {limit:g}")
        values[identities[-1]] = max(value, values.get(identities[-1], 0.0))
    return values

"""The GPUs of an endpoint, on the pages of a DCGM exporter and of Triton; whatever a page says, values are possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.health.engines.engine_signals import InvalidSignals
from penstock.health.engines.gpu_metrics import GpuState, read_gpus

DCGM = b"""# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-00000000-aa",pci_bus_id="00000000:04:00.0",device="nvidia0",modelName="H100"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-00000000-bb",device="nvidia1"} 50
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-00000000-cc",device="nvidia2"} 0
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-00000000-aa"} 60000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-00000000-aa"} 20000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-00000000-bb"} 20000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-00000000-bb"} 60000
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-00000000-aa"} 91
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-00000000-bb"} 60
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0",UUID="GPU-00000000-aa"} 64
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="1",UUID="GPU-00000000-bb"} 4
"""
TRITON = b"""nv_gpu_utilization{gpu_uuid="GPU-00000000-aa"} 0.4
nv_gpu_memory_total_bytes{gpu_uuid="GPU-00000000-aa"} 8e10
nv_gpu_memory_used_bytes{gpu_uuid="GPU-00000000-aa"} 2e10
"""


@pytest.mark.parametrize(
    ("page", "gpus", "state"),
    [
        (DCGM, ("0", "1"), GpuState(2, 0.7, 0.75, 91.0, True)),
        (DCGM, ("GPU-00000000-bb",), GpuState(1, 0.5, 0.25, 60.0, False)),
        (DCGM, ("2",), GpuState(1, 0.0, None, None, None)),
        (DCGM, (), GpuState(3, pytest.approx(1.4 / 3), 0.75, 91.0, True)),
        (TRITON, (), GpuState(1, 0.4, 0.25)),
        (DCGM + TRITON, ("GPU-00000000-aa",), GpuState(1, 0.9, 0.75, 91.0, True)),
        (
            TRITON + b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-00000000-aa"} 70\n',
            (),
            GpuState(1, 0.4, 0.25, 70.0),
        ),
        (TRITON + b'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-00000000-aa"} 60000\n', (), GpuState(1, 0.4)),
        (b'DCGM_FI_DEV_FB_USED{gpu="0"} 60000\n', (), GpuState(1)),
        (DCGM.replace(b"CLOCK_THROTTLE", b"CLOCKS_EVENT"), ("0",), GpuState(1, 0.9, 0.75, 91.0, True)),
        (DCGM.replace(b" 60\n", b" NaN\n"), ("1",), GpuState(1, 0.5, 0.25, None, False)),
    ],
)
def test_the_gpus_of_an_endpoint_are_read(page: bytes, gpus: tuple[str, ...], state: GpuState) -> None:
    assert read_gpus(page, gpus) == state


@pytest.mark.parametrize(
    ("reasons", "is_throttled"),
    [(0x8, True), (0x20, True), (0x40, True), (0x80, True), (0x1 | 0x2 | 0x4 | 0x10 | 0x100, False), (0x41, True)],
)
def test_heat_and_brakes_throttle_a_gpu_and_a_power_cap_does_not(reasons: int, is_throttled: bool) -> None:
    page = b'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0"} %d\n' % reasons
    assert read_gpus(page).is_throttled is is_throttled


@pytest.mark.parametrize(
    ("page", "gpus", "problem"),
    [
        (DCGM, ("7",), "no GPU of the endpoint is on the page"),
        (b"", (), "no GPU"),
        (DCGM.replace(b" 91\n", b" -300\n"), ("0",), "DCGM_FI_DEV_GPU_TEMP of -300.0 is not from 0 to 150"),
        (DCGM.replace(b" 90\n", b" 101\n"), (), "DCGM_FI_DEV_GPU_UTIL of 101.0 is not from 0 to 100"),
        (DCGM.replace(b" 90\n", b" +Inf\n"), (), "is not from"),
        (TRITON.replace(b" 0.4\n", b" 1.1\n"), (), "nv_gpu_utilization of 1.1 is not from 0 to 1"),
        (DCGM.replace(b" 90\n", b" hot\n"), (), "is no number"),
        (b"".join(b'DCGM_FI_DEV_GPU_TEMP{gpu="%d"} 50\n' % gpu for gpu in range(65)), (), "65 GPUs, at most 64"),
    ],
)
def test_an_impossible_page_is_refused_with_its_gauge(page: bytes, gpus: tuple[str, ...], problem: str) -> None:
    with pytest.raises(InvalidSignals, match=problem.replace("+", r"\+")):
        read_gpus(page, gpus)


LINES = st.sampled_from((DCGM + TRITON).splitlines())


@given(st.lists(st.tuples(LINES, st.floats().map(lambda value: repr(value).encode())), max_size=12))
def test_every_state_that_is_read_is_possible(samples: list[tuple[bytes, bytes]]) -> None:
    page = b"\n".join(line.rpartition(b" ")[0] + b" " + value for line, value in samples)
    try:
        state = read_gpus(page)
    except InvalidSignals:
        return
    assert state.is_possible

import pytest

from penstock.health.engines.engine_signals import InvalidSignals, Signal
from penstock.health.engines.orca import (
    read_orca,
)

MAX_BYTES = 4_096
"""As documented, and not imported: a test fails if a tuned constant changes."""


@pytest.mark.parametrize(
    ("header", "reported"),
    [
        (
            b"TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0",
            {Signal.KV_USED: 0.4, Signal.QUEUED: 3.0},
        ),
        (b"TEXT application_utilization:0.8,cpu_utilization:0.7", {Signal.UTILISATION: 0.8}),
        (b'JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "other": 1}}', {Signal.KV_USED: 0.4}),
        (b'JSON {"application_utilization": 1.5, "eps": 2}', {Signal.UTILISATION: 1.5}),
        (b'JSON {"cpu_utilization": 0.5}', {}),
    ],
)
def test_reads_both_forms(header: bytes, reported: dict[Signal, float]) -> None:
    assert read_orca(header) == reported


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"BIN CgA=",
        b"TEXT",
        b"TEXT =",
        b"TEXT application_utilization=full",
        b"TEXT application_utilization=nan",
        b"TEXT named_metrics.num_requests_waiting=-3",
        b"JSON",
        b"JSON [1]",
        b'JSON {"application_utilization": "x"}',
        b'JSON {"named_metrics": {"kv_cache_usage_perc": 7}}',
        b"JSON " + b"[" * 3000,
        b"TEXT " + b"a=1," * MAX_BYTES,
    ],
)
def test_refuses_what_is_neither_or_cannot_be(header: bytes) -> None:
    with pytest.raises(InvalidSignals, match=r"."):
        read_orca(header)

"""For any response of an engine or of an unknown server, reading ends, and the signals are within bounds."""

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.health.engines.engine_kinds import EngineKind
from penstock.health.engines.engine_signals import (
    MAX_VALUE,
    InvalidSignals,
    Signal,
    pressure,
    read_metrics,
    updated_readings,
)
from penstock.health.engines.orca import read_orca

NAMES = [b"vllm:num_requests_waiting", b"sglang:token_usage", b"nv_trt_llm_request_metrics", b"tgi_queue_size"]
pieces = st.one_of(
    st.sampled_from([*NAMES, b"{", b"}", b'"', b"\\", b",", b"=", b" ", b"\n", b'a="b"', b"1", b"NaN", b"1e9", b"#"]),
    st.binary(max_size=5),
)


@given(st.lists(pieces, max_size=40).map(b"".join), st.sampled_from(EngineKind))
@example(b"vllm:num_requests_waiting{" + b'a="' * 20_000, EngineKind.AUTO)
def test_a_metrics_page_yields_bounded_signals_or_a_reason(page: bytes, kind: EngineKind) -> None:
    try:
        _, reported = read_metrics(page, kind)
    except InvalidSignals:
        return
    assert reported
    assert all(0.0 <= value <= MAX_VALUE[signal] for signal, value in reported.items())


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda tail: b"TEXT " + tail), st.just(b"JSON {}")))
def test_a_load_header_yields_bounded_signals_or_a_reason(header: bytes) -> None:
    try:
        reported = read_orca(header)
    except InvalidSignals:
        return
    assert all(0.0 <= value <= MAX_VALUE[signal] for signal, value in reported.items())


@given(st.dictionaries(st.sampled_from(Signal), st.floats(0.0, 1.0)), st.integers(1, 1000), st.floats(0.0, 1e6))
def test_pressure_is_bounded_and_only_falls_with_age(reported: dict[Signal, float], slots: int, age_s: float) -> None:
    readings = updated_readings({}, reported, 0.0)
    assert 0.0 <= pressure(readings, slots, age_s) <= pressure(readings, slots, 0.0) <= 1.0

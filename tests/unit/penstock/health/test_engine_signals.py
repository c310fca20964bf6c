import pytest

from penstock.health.engines.engine_kinds import EngineKind
from penstock.health.engines.engine_signals import (
    InvalidSignals,
    Reading,
    Signal,
    pressure,
    read_metrics,
    read_samples,
    signal_weight,
    updated_readings,
)

FADED_S, FRESH_S = 10.0, 2.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

QUEUED, RUNNING, KV_USED, UTILISATION, PREFIX_HITS, PREFIX_QUERIES = Signal

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a/b"} 7.0
vllm:num_requests_running{engine="1",model_name="a/b"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a\\"}b"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="a/b"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a/b"} 0.5
vllm:num_requests_waiting_by_reason{reason="x"} 99
"""
VLLM_PREFIX = b"""\
vllm:num_requests_waiting 0
vllm:prefix_cache_queries_total{engine="0"} 3200.0
vllm:prefix_cache_hits_total{engine="0"} 1600.0
vllm:prefix_cache_hits_created{engine="0"} 1.7e+09
"""
SGLANG_PREFIX = b"""\
sglang:num_queue_reqs 0
sglang:prompt_tokens_total{model_name="m"} 900
sglang:cached_tokens_total{cache_source="device"} 300
sglang:cached_tokens_total{cache_source="host"} 30
"""
OLD_VLLM = b"vllm:gpu_cache_usage_perc 0.125\n"
SGLANG = b"""\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 162.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 2826.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.28
"""
TRITON = b"""\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.4
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 9
"""
PLAIN_TRITON = b'nv_inference_pending_request_count{model="resnet",version="1"} 9\n'
TRTLLM = b"trtllm_num_requests_running 3\ntrtllm_num_requests_waiting 1\ntrtllm_kv_cache_utilization 0.75\n"
TGI = b"tgi_queue_size 5\ntgi_batch_current_size 12\n"


@pytest.mark.parametrize(
    ("page", "kind", "reported"),
    [
        (VLLM, EngineKind.VLLM, {QUEUED: 3.0, RUNNING: 9.0, KV_USED: 0.5}),
        (OLD_VLLM, EngineKind.VLLM, {KV_USED: 0.125}),
        (VLLM_PREFIX, EngineKind.VLLM, {QUEUED: 0.0, PREFIX_HITS: 1600.0, PREFIX_QUERIES: 3200.0}),
        (SGLANG_PREFIX, EngineKind.SGLANG, {QUEUED: 0.0, PREFIX_HITS: 330.0, PREFIX_QUERIES: 900.0}),
        (SGLANG, EngineKind.SGLANG, {QUEUED: 2826.0, RUNNING: 162.0, KV_USED: 0.28}),
        (TRITON, EngineKind.TRITON, {QUEUED: 4.0, RUNNING: 5.0, KV_USED: 0.4}),
        (PLAIN_TRITON, EngineKind.TRITON, {QUEUED: 9.0}),
        (TRTLLM, EngineKind.TRTLLM, {QUEUED: 1.0, RUNNING: 3.0, KV_USED: 0.75}),
        (TGI, EngineKind.TGI, {QUEUED: 5.0, RUNNING: 12.0}),
    ],
)
def test_each_engine_is_identified_by_its_metric_names_and_read(
    page: bytes, kind: EngineKind, reported: dict[Signal, float]
) -> None:
    assert read_metrics(page, EngineKind.AUTO) == (kind, reported)
    assert read_metrics(page.replace(b"\n", b"\r\n"), kind) == (kind, reported)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>it works</html>",
        b"\xff\x00" * 500,
        b"vllm:num_requests_waiting",
        b"vllm:num_requests_waiting lots\n",
        b"vllm:num_requests_waiting -1\n",
        b"vllm:num_requests_waiting +Inf\n",
        b"vllm:num_requests_waiting 1e300\n",
        b"vllm:kv_cache_usage_perc 55\n",
        b"vllm:num_requests_waiting NaN\n",
        b"http_requests_total 5\n",
    ],
)
def test_garbage_is_refused_with_a_reason(page: bytes) -> None:
    with pytest.raises(InvalidSignals, match=r"."):
        read_metrics(page, EngineKind.AUTO)


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_waiting{" + b"a" * 2_000_000 + b"} 1\n",
        b"vllm:num_requests_waiting{" + b"a" * 4_000 + b"} x\n",
        b"vllm:num_requests_waiting{" + b'"a",' * 500_000 + b" 1\n",
        b"vllm:num_requests_waiting{" + b'a="\\"' * 400_000 + b" 1\n",
        b'vllm:num_requests_waiting{model_name="m"} 1\n' * 45_000,
        (b"vllm:num_requests_waiting{" + b'a="b",' * 600 + b"} 1\n") * 500,
        b"vllm:num_requests_waiting_no_more\n" * 60_000 + b"vllm:num_requests_waiting 1\n",
    ],
)
def test_a_page_made_to_be_slow_is_given_up_soon(line: bytes) -> None:
    with pytest.raises(InvalidSignals):
        read_metrics(line, EngineKind.AUTO)


def test_a_gauge_at_the_end_of_a_long_page_is_read_with_labels_that_are_no_text() -> None:
    others = b'vllm:another{model_name="m"} 1\n' * 40_000
    page = others + b'vllm:num_requests_waiting{model_name="\xff",rank="0"} 2\n'
    assert read_metrics(page, EngineKind.AUTO)[1] == {QUEUED: 2.0}
    assert read_samples(page, ["vllm:num_requests_waiting"]) == {
        "vllm:num_requests_waiting": [({"model_name": "\ufffd", "rank": "0"}, 2.0)]
    }
    with pytest.raises(InvalidSignals, match=r"^vllm:num_requests_waiting is no number$"):
        read_metrics(b"vllm:num_requests_waiting lots\n", EngineKind.AUTO)


def test_a_gauge_without_a_number_yet_is_passed_over() -> None:
    page = b"vllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc NaN\n"
    assert read_metrics(page, EngineKind.AUTO)[1] == {QUEUED: 2.0}


def test_metric_names_of_other_kinds_are_ignored_where_the_kind_is_set() -> None:
    with pytest.raises(InvalidSignals, match="sglang"):
        read_metrics(VLLM, EngineKind.SGLANG)


def test_signals_count_in_full_while_fresh_and_fade_to_nothing() -> None:
    assert signal_weight(0.0) == signal_weight(FRESH_S) == 1.0
    assert signal_weight((FRESH_S + FADED_S) / 2) == 0.5
    assert signal_weight(FADED_S) == signal_weight(1e9) == 0.0


@pytest.mark.parametrize(
    ("reported", "presses"),
    [
        ({}, 0.0),
        ({RUNNING: 1000.0}, 0.0),
        ({RUNNING: 1000.0, QUEUED: 2.0}, 0.25),
        ({QUEUED: 2.0}, 0.25),
        ({QUEUED: 80.0}, 1.0),
        ({KV_USED: 0.9}, 0.0),
        ({KV_USED: 0.95}, 0.5),
        ({UTILISATION: 3.0}, 1.0),
        ({QUEUED: 2.0, KV_USED: 0.95}, 0.5),
        ({PREFIX_HITS: 1e9, PREFIX_QUERIES: 2e9}, 0.0),
    ],
)
def test_the_strongest_signal_presses(reported: dict[Signal, float], presses: float) -> None:
    assert pressure(updated_readings({}, reported, 100.0), 8, 100.0) == pytest.approx(presses)


def test_each_signal_fades_by_its_own_age() -> None:
    readings = {QUEUED: Reading(8.0, 0.0), KV_USED: Reading(0.95, 10.0)}
    assert pressure(readings, 8, 10.0) == pytest.approx(0.5)
    assert pressure(readings, 8, 1000.0) == 0.0
    assert updated_readings(readings, {QUEUED: 0.0}, 20.0)[QUEUED] == Reading(0.0, 20.0)

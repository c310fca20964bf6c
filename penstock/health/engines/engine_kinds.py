"""The kinds of engine, and the paths and metrics by which each reports its health, its loaded models and its load.

Metric names from each engine's own source: vLLM vllm/v1/metrics/loggers.py (`gpu_cache_usage_perc` until 0.9), SGLang
python/sglang/srt/metrics/collector.py, TensorRT-LLM's Triton backend custom_metrics_reporter.cc, Triton's
docs/user_guide/metrics.md, TGI docs/source/reference/metrics.md; the first four as compared in llm-d's and the Gateway
API inference extension's model server protocol. Health paths: vLLM, SGLang, TGI and trtllm-serve serve /health; Triton
the KServe v2 paths (docs/protocol/README.md of triton-inference-server/server). trtllm-serve responds at /metrics with
JSON about its last iterations; its metrics in Prometheus format have another path (examples/serve/prometheus_metrics.py
of TensorRT-LLM). Cog serves /health-check (docs/http.md of replicate/cog).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from penstock.health.health_check import ANSWERS_WHILE_BUSY, HealthCheck

DEFAULT_TAG: Final = ":latest"
"""The tag that Ollama gives a name without one, in its lists and in requests."""


class EngineKind(StrEnum):
    """The engine at an address."""

    AUTO = "auto"
    """Detected by the names of its metrics; before detection, and without metrics, its own entry in ENGINES applies. A
    server without its health path is probed at its list of models."""
    VLLM = "vllm"
    SGLANG = "sglang"
    TRITON = "triton"
    """Triton, with the TensorRT-LLM backend or another."""
    TRTLLM = "trtllm"
    """trtllm-serve."""
    TGI = "tgi"
    OLLAMA = "ollama"
    COG = "cog"
    """Replicate's Cog, which runs one request at a time."""
    HTTP = "http"
    """Any HTTP server: healthy if its health path responds 200, and assumed to serve the configured models."""


class ModelDiscovery(StrEnum):
    """How an engine reports its loaded models."""

    LISTED = "listed"
    """GET /v1/models lists them (OpenAI's API); an engine without that page is assumed to serve the configured
    models."""
    EACH = "each"
    """GET /v2/models/<name>/ready for each model (KServe v2)."""
    NEVER = "never"
    """The engine does not report models: it is assumed to serve the configured models."""


class FactsPage(StrEnum):
    """Paths at which engines report what they are and what they serve."""

    VERSION = "/version"
    VLLM_METRICS = "/metrics"
    """The size of the KV cache is in the labels of a metric."""
    SGLANG_SERVER = "/get_server_info"
    TGI_INFO = "/info"
    OLLAMA_TAGS = "/api/tags"
    OLLAMA_VERSION = "/api/version"


class EngineMetric(NamedTuple):
    """A metric, or its series with one label value."""

    name: str
    label: str = ""
    value: str = ""


class Engine(msgspec.Struct, frozen=True):
    """The paths and metrics of one kind of engine."""

    health: HealthCheck = ANSWERS_WHILE_BUSY
    """How it is probed."""
    models: ModelDiscovery = ModelDiscovery.LISTED
    facts: tuple[FactsPage, ...] = ()
    """Pages about the engine and its models, besides the list of models."""
    metrics_path: str = "/metrics"
    metrics_port: int | None = None
    """Port of the metrics page; None for the port of requests."""
    queued: tuple[EngineMetric, ...] = ()
    """Metrics of waiting requests. Of several metrics the first that exists is used, here and in the fields below."""
    running: tuple[EngineMetric, ...] = ()
    """Metrics of running requests."""
    kv_used: tuple[EngineMetric, ...] = ()
    """Metrics of the share (0-1) of the KV cache that is in use."""
    prefix_hits: tuple[EngineMetric, ...] = ()
    """Counters of the prompt tokens found in the prefix cache since the engine's start."""
    prefix_queries: tuple[EngineMetric, ...] = ()
    """Counters of the prompt tokens looked up in the prefix cache since the engine's start."""
    extends_text: bool = False
    """Whether a chat completion can extend the last message (`continue_final_message`)."""


ENGINES: dict[EngineKind, Engine] = {
    EngineKind.AUTO: Engine(health=HealthCheck()),
    EngineKind.VLLM: Engine(
        facts=(FactsPage.VERSION, FactsPage.VLLM_METRICS),
        queued=(EngineMetric("vllm:num_requests_waiting"),),
        running=(EngineMetric("vllm:num_requests_running"),),
        kv_used=(EngineMetric("vllm:kv_cache_usage_perc"), EngineMetric("vllm:gpu_cache_usage_perc")),
        prefix_hits=(EngineMetric("vllm:prefix_cache_hits_total"), EngineMetric("vllm:gpu_prefix_cache_hits_total")),
        prefix_queries=(
            EngineMetric("vllm:prefix_cache_queries_total"),
            EngineMetric("vllm:gpu_prefix_cache_queries_total"),
        ),
        extends_text=True,
    ),
    EngineKind.SGLANG: Engine(
        facts=(FactsPage.SGLANG_SERVER,),
        queued=(EngineMetric("sglang:num_queue_reqs"),),
        running=(EngineMetric("sglang:num_running_reqs"),),
        kv_used=(EngineMetric("sglang:token_usage"),),
        prefix_hits=(EngineMetric("sglang:cached_tokens_total"),),
        prefix_queries=(EngineMetric("sglang:prompt_tokens_total"),),
        extends_text=True,
    ),
    EngineKind.TRITON: Engine(
        health=HealthCheck(path="/v2/health/ready", busy_s=0.0),
        models=ModelDiscovery.EACH,
        metrics_port=8002,
        queued=(
            EngineMetric("nv_trt_llm_request_metrics", "request_type", "waiting"),
            EngineMetric("nv_inference_pending_request_count"),
        ),
        running=(
            EngineMetric("nv_trt_llm_request_metrics", "request_type", "scheduled"),
            EngineMetric("nv_trt_llm_request_metrics", "request_type", "active"),
        ),
        kv_used=(EngineMetric("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction"),),
    ),
    EngineKind.TRTLLM: Engine(
        metrics_path="/prometheus/metrics",
        queued=(EngineMetric("trtllm_num_requests_waiting"),),
        running=(EngineMetric("trtllm_num_requests_running"),),
        kv_used=(EngineMetric("trtllm_kv_cache_utilization"),),
        prefix_hits=(EngineMetric("trtllm_prompt_cached_tokens_total"),),
        prefix_queries=(EngineMetric("trtllm_prompt_tokens_total"),),
    ),
    EngineKind.TGI: Engine(
        models=ModelDiscovery.NEVER,
        facts=(FactsPage.TGI_INFO,),
        queued=(EngineMetric("tgi_queue_size"),),
        running=(EngineMetric("tgi_batch_current_size"),),
    ),
    EngineKind.OLLAMA: Engine(
        health=HealthCheck(path="/api/version"), facts=(FactsPage.OLLAMA_TAGS, FactsPage.OLLAMA_VERSION)
    ),
    EngineKind.COG: Engine(health=HealthCheck(path="/health-check"), models=ModelDiscovery.NEVER),
    EngineKind.HTTP: Engine(health=HealthCheck(), models=ModelDiscovery.NEVER),
}

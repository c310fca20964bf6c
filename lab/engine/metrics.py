"""The /metrics page of an engine: names, labels and buckets of vLLM 0.32, in Prometheus text format.

Encoded without a client library because a step observes a whole batch at once, and hundreds of engines share a process.
"""

from __future__ import annotations

from bisect import bisect_left

from lab.engine.batching import BatchingModel

TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN_BUCKETS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts by upper bound; the last count is of values above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` as `times` observations."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class EngineMetrics:
    """The counters and histograms of one engine; gauges are read from the batching model by `render`. Times are
    wall-clock seconds."""

    def __init__(self, model_name: str) -> None:
        self._labels = f'engine="0",model_name="{model_name}"'
        self.busy_s = 0.0
        """Total duration of all passes (s of the modelled hardware)."""
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.time_to_first_token_s = Histogram(TTFT_BUCKETS_S)
        self.inter_token_latency_s = Histogram(INTER_TOKEN_BUCKETS_S)
        self.e2e_request_latency_s = Histogram(REQUEST_BUCKETS_S)
        self.request_queue_time_s = Histogram(REQUEST_BUCKETS_S)

    def render(self, model: BatchingModel, block_tokens: int) -> bytes:
        """Return all metrics as text.

        Args:
            model: the engine's scheduler.
            block_tokens: size of a KV block (tokens).
        """
        lines: list[str] = []
        self._one(lines, "num_requests_running", "gauge", len(model.running))
        self._one(lines, "num_requests_waiting", "gauge", len(model.waiting))
        self._one(lines, "kv_cache_usage_perc", "gauge", model.kv.usage)
        lines.append("# TYPE vllm:cache_config_info gauge")
        blocks = f'block_size="{block_tokens}",num_gpu_blocks="{model.kv.total_blocks}"'
        lines.append(f'vllm:cache_config_info{{{blocks},engine="0"}} 1')
        self._one(lines, "num_preemptions_total", "counter", model.preemptions)
        self._one(lines, "prefix_cache_queries_total", "counter", model.prefix_queried_tokens)
        self._one(lines, "prefix_cache_hits_total", "counter", model.prefix_hit_tokens)
        self._one(lines, "prompt_tokens_total", "counter", self.prompt_tokens)
        self._one(lines, "generation_tokens_total", "counter", self.generation_tokens)
        lines += ["# TYPE lab:busy_seconds_total counter", f"lab:busy_seconds_total{{{self._labels}}} {self.busy_s}"]
        lines.append("# TYPE vllm:request_success_total counter")
        lines += [
            f'vllm:request_success_total{{{self._labels},finished_reason="{reason}"}} {count}'
            for reason, count in self.finished.items()
        ]
        self._histogram(lines, "time_to_first_token_seconds", self.time_to_first_token_s)
        self._histogram(lines, "inter_token_latency_seconds", self.inter_token_latency_s)
        self._histogram(lines, "e2e_request_latency_seconds", self.e2e_request_latency_s)
        self._histogram(lines, "request_queue_time_seconds", self.request_queue_time_s)
        return ("\n".join(lines) + "\n").encode()

    def _one(self, lines: list[str], name: str, kind: str, value: float) -> None:
        lines.append(f"# TYPE vllm:{name} {kind}")
        lines.append(f"vllm:{name}{{{self._labels}}} {value}")

    def _histogram(self, lines: list[str], name: str, histogram: Histogram) -> None:
        lines.append(f"# TYPE vllm:{name} histogram")
        below = 0
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            below += count
            lines.append(f'vllm:{name}_bucket{{{self._labels},le="{bound}"}} {below}')
        lines.append(f"vllm:{name}_sum{{{self._labels}}} {histogram.total}")
        lines.append(f"vllm:{name}_count{{{self._labels}}} {below}")

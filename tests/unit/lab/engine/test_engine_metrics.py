"""An engine's metrics page, parsed by the client of Prometheus, equals the observed values."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from lab.engine.accelerators import ACCELERATORS
from lab.engine.batching import BatchingModel, Sequence
from lab.engine.deployment import Deployment
from lab.engine.metrics import EngineMetrics, Histogram
from lab.engine.models import MODELS
from lab.engine.step_time import StepTime

STEP_TIME = StepTime(Deployment(MODELS["llama-3.1-8b"], ACCELERATORS["h100"], 1))


def test_the_page_is_valid_and_has_the_counts() -> None:
    model = BatchingModel(STEP_TIME, 1000, 1, 2048)
    for _ in range(2):
        model.add(Sequence(1600, 5))
    model.begin(0)
    metrics = EngineMetrics("llama-3.1-8b")
    metrics.prompt_tokens, metrics.generation_tokens = 3200, 7
    metrics.finished["stop"] += 1
    metrics.time_to_first_token_s.observe(0.03)
    metrics.time_to_first_token_s.observe(3.0)
    families = {family.name: family for family in text_string_to_metric_families(metrics.render(model, 16).decode())}
    samples = {
        (sample.name, sample.labels.get("finished_reason") or sample.labels.get("le")): sample
        for family in families.values()
        for sample in family.samples
    }
    assert samples["vllm:num_requests_running", None].value == 1
    assert samples["vllm:num_requests_waiting", None].value == 1
    assert samples["vllm:kv_cache_usage_perc", None].value == 0.1
    assert samples["vllm:prompt_tokens_total", None].value == 3200
    assert samples["vllm:generation_tokens_total", None].value == 7
    assert samples["vllm:request_success_total", "stop"].value == 1
    assert samples["vllm:time_to_first_token_seconds_bucket", "0.02"].value == 0
    assert samples["vllm:time_to_first_token_seconds_bucket", "0.04"].value == 1
    assert samples["vllm:time_to_first_token_seconds_bucket", "+Inf"].value == 2
    assert samples["vllm:time_to_first_token_seconds_count", None].value == 2
    assert samples["vllm:time_to_first_token_seconds_sum", None].value == 3.03
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    assert families["vllm:generation_tokens"].type == "counter"
    assert samples["vllm:num_requests_running", None].labels == {"engine": "0", "model_name": "llama-3.1-8b"}


def test_a_value_on_a_bound_is_in_the_lower_bucket() -> None:
    histogram = Histogram((0.1, 0.2))
    histogram.observe(0.1, times=3)
    histogram.observe(0.2)
    histogram.observe(0.3)
    assert histogram.counts == [3, 1, 1]

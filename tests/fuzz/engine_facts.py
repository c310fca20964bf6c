"""Reads any answer of an engine about itself.

The first byte selects the page. Property: the result has possible values for the configured models alone, and printable
texts.
"""

from __future__ import annotations

from penstock.health.engines.engine_facts import MAX_FACT_CHARS, read_facts
from penstock.health.engines.engine_kinds import FactsPage

WORDS = (
    *(b'{"version":"', b'"model_path":"', b'"weight_version":"', b'"max_total_num_tokens":', b'"mem_fraction_static":'),
    *(b'"model_id":"', b'"model_sha":"', b'"max_total_tokens":', b'{"models":[{"name":"llama3:latest","digest":"'),
    *(b"vllm:cache_config_info{", b'kv_cache_size_tokens="', b'num_gpu_blocks="', b'gpu_memory_utilization="'),
    *(b"1" + b"0" * 320, b"-1", b"1e308", b"NaN", b"null", b"\xff", b"\\ud800"),
)

PAGES = tuple(FactsPage)
MODELS = {"chat": "llama3", "other": "llama3"}


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    page = PAGES[(data[0] if data else 0) % len(PAGES)]
    facts = read_facts(page, data[1:], MODELS)
    assert {model.model for model in facts.served} <= MODELS.keys()
    assert all(model.is_possible for model in facts.served)
    for text in (facts.version, *(model.revision for model in facts.served)):
        assert len(text) <= MAX_FACT_CHARS
        assert not text or text.isprintable()

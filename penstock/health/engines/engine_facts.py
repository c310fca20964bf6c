"""What an engine reports about itself: its version, and the revision and room of each model that it serves.

Sources: vLLM vllm/entrypoints/openai (`/v1/models` with `root` and `max_model_len`, `/version`) and
vllm/config/cache.py (labels of `vllm:cache_config_info`), SGLang python/sglang/srt/entrypoints/http_server.py
(`/get_server_info`), TGI docs/openapi.json (`/info`), Ollama docs/api.md (`/api/tags`, `/api/version`). Answers of
engines are input: texts are cut and made printable, numbers are bounded, and what is invalid is a problem that
operators see, not a fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from penstock.health.engines.engine_kinds import DEFAULT_TAG, FactsPage
from penstock.health.engines.engine_signals import InvalidSignals, read_samples

MAX_FACT_CHARS = 200
"""Maximum length of a version or a revision, in characters; the rest is cut."""

MAX_CONTEXT_TOKENS = 1_000_000_000
"""Maximum context length or KV capacity that is believed possible."""

MIN_CONTEXT_TOKENS = 16
"""No model has a shorter context: a smaller length is wrong, and would refuse all prompts of the endpoint."""

UNKNOWN = 0
"""The context length or KV capacity of a model whose engine reports none."""

_CACHE_INFO = "vllm:cache_config_info"


class ServedModel(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One model as an engine reports it."""

    model: str
    """Name of the model in policy."""
    revision: str = ""
    """Root, revision or digest of what the engine serves under the name; empty if it reports none."""
    context_tokens: int = UNKNOWN
    """Maximum tokens of prompt and answer together: the context length, or the KV capacity if that is less."""
    kv_tokens: int = UNKNOWN
    """Tokens that the engine's KV cache holds, of all running requests."""
    memory_share: float = 0.0
    """Part (0-1] of its GPUs' memory that the engine may use; 0 if it reports none."""

    def merged(self, other: ServedModel) -> ServedModel:
        """Return this model with what only `other` reports, and the shorter of two context lengths."""
        contexts = filter(None, (self.context_tokens, other.context_tokens))
        return ServedModel(
            self.model,
            self.revision or other.revision,
            min(contexts, default=UNKNOWN),
            self.kv_tokens or other.kv_tokens,
            self.memory_share or other.memory_share,
        )

    @property
    def is_possible(self) -> bool:
        """Whether all numbers are within their limits."""
        tokens = (self.context_tokens, self.kv_tokens)
        return all(0 <= each <= MAX_CONTEXT_TOKENS for each in tokens) and 0.0 <= self.memory_share <= 1.0

    @property
    def room(self) -> str:
        """What fits, for operators; empty if the engine does not report it."""
        parts = (
            f"context {self.context_tokens}" if self.context_tokens else "",
            f"KV cache {self.kv_tokens} tokens" if self.kv_tokens else "",
            f"{self.memory_share:.0%} of GPU memory" if self.memory_share else "",
        )
        return ", ".join(filter(None, parts))


def room_text(served: Iterable[ServedModel]) -> str:
    """What fits into an endpoint, for operators; empty if its engine does not report it."""
    return "; ".join(dict.fromkeys(model.room for model in served if model.room))


class EngineFacts(msgspec.Struct, frozen=True):
    """What one answer of an engine reports."""

    version: str = ""
    served: tuple[ServedModel, ...] = ()
    problems: tuple[str, ...] = ()
    """What was invalid in the answer."""


def listed_model(model: str, root: Any, max_model_len: Any) -> EngineFacts:
    """Return the facts of one entry of `/v1/models`.

    Args:
        model: its name in policy.
        root: value of `root`; None if absent.
        max_model_len: value of `max_model_len`; None if absent.
    """
    problems: list[str] = []
    revision = _text(root, f"root of {model}", problems)
    tokens = _tokens(max_model_len, f"max_model_len of {model}", problems, MIN_CONTEXT_TOKENS)
    return EngineFacts("", (ServedModel(model, revision, tokens),), tuple(problems))


def read_facts(page: FactsPage, body: bytes, names: Mapping[str, str]) -> EngineFacts:
    """Return the facts on a page.

    Args:
        body: the answer to a GET of the page.
        names: the engine's name of each of the endpoint's models, by name in policy.
    """
    if page is FactsPage.VLLM_METRICS:
        return _cache_facts(body, names)
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return EngineFacts(problems=(f"{page.value} is not JSON",))
    if not isinstance(content, dict):
        return EngineFacts(problems=(f"{page.value} is not an object",))
    problems: list[str] = []
    version = _text(content.get("version"), f"version on {page.value}", problems)
    if page in (FactsPage.VERSION, FactsPage.OLLAMA_VERSION):
        return EngineFacts(version, (), tuple(problems))
    if page is FactsPage.OLLAMA_TAGS:
        return EngineFacts("", _tagged(content.get("models"), names, problems), tuple(problems))
    if page is FactsPage.TGI_INFO:
        revision = _with_revision(content.get("model_id"), content.get("model_sha"), problems)
        tokens = _tokens(content.get("max_total_tokens"), "max_total_tokens", problems, MIN_CONTEXT_TOKENS)
        served = tuple(ServedModel(model, revision, tokens) for model in names)
    else:
        revision = _with_revision(content.get("model_path"), content.get("weight_version"), problems)
        tokens = _tokens(content.get("max_total_num_tokens"), "max_total_num_tokens", problems)
        share = _share(content.get("mem_fraction_static"), "mem_fraction_static", problems)
        served = tuple(ServedModel(model, revision, tokens, tokens, share) for model in names)
    return EngineFacts(version, served, tuple(problems))


def combined(parts: tuple[EngineFacts, ...]) -> EngineFacts:
    """Return the facts of several answers as one; of two values for one fact, the earlier, or the shorter context."""
    served: dict[str, ServedModel] = {}
    for part in parts:
        for model in part.served:
            known = served.get(model.model)
            served[model.model] = model if known is None else known.merged(model)
    version = next((part.version for part in parts if part.version), "")
    return EngineFacts(version, tuple(served.values()), tuple(problem for part in parts for problem in part.problems))


def _cache_facts(page: bytes, names: Mapping[str, str]) -> EngineFacts:
    """The KV cache on vLLM's metrics page; of several ranks, the smallest.

    A prompt has to fit into `kv_cache_size_tokens`. Before vLLM reported it, the number of blocks was no limit: vLLM
    starts only if its context length fits, and a hybrid model needs fewer blocks than tokens by their size.
    """
    try:
        series = [labels for labels, _ in read_samples(page, (_CACHE_INFO,)).get(_CACHE_INFO, ())]
    except InvalidSignals as error:
        return EngineFacts(problems=(str(error),))
    problems: list[str] = []

    def number(labels: Mapping[str, str], label: str) -> int:
        text = labels.get(label, "None")
        value: Any = int(text) if text.isdecimal() and len(text) < 20 else text
        return UNKNOWN if text in ("None", "0") else _tokens(value, f"{label} of {_CACHE_INFO}", problems)

    limits = [number(labels, "kv_cache_size_tokens") for labels in series]
    blocks = [number(labels, "num_gpu_blocks") * number(labels, "block_size") for labels in series]
    limit = min(filter(None, limits), default=UNKNOWN)
    tokens = limit or min(MAX_CONTEXT_TOKENS, min(filter(None, blocks), default=UNKNOWN))
    shares = [labels["gpu_memory_utilization"] for labels in series if "gpu_memory_utilization" in labels]
    share = _share(shares[0], "gpu_memory_utilization", problems) if shares else 0.0
    served = tuple(ServedModel(model, "", limit, tokens, share) for model in names if tokens or share)
    return EngineFacts("", served, tuple(dict.fromkeys(problems)))


def _tagged(models: Any, names: Mapping[str, str], problems: list[str]) -> tuple[ServedModel, ...]:
    """The digests of Ollama's models; a name without a tag has the tag `latest`."""
    digests = {}
    for each in models if isinstance(models, list) else ():
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            digests[each["name"]] = _text(each.get("digest"), "digest", problems)
    found = []
    for model, name in names.items():
        digest = digests.get(name) or digests.get(name + DEFAULT_TAG)
        if digest:
            found.append(ServedModel(model, digest))
    return tuple(found)


def _with_revision(path: Any, revision: Any, problems: list[str]) -> str:
    name, at = _text(path, "the model's path", problems), _text(revision, "the model's revision", problems)
    return f"{name}@{at}"[:MAX_FACT_CHARS] if name and at and at != "default" else name


def _text(value: Any, what: str, problems: list[str]) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        problems.append(f"{what} is not a text")
        return ""
    return "".join(char if char.isprintable() else "?" for char in value[:MAX_FACT_CHARS])


def _tokens(value: Any, what: str, problems: list[str], least: int = 1) -> int:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_CONTEXT_TOKENS:
        problems.append(f"{what} is not a number from {least} to {MAX_CONTEXT_TOKENS}")
        return UNKNOWN
    return value


def _share(value: Any, what: str, problems: list[str]) -> float:
    if value is None:
        return 0.0
    try:
        share = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        share = 0.0
    if not 0.0 < share <= 1.0:
        problems.append(f"{what} is not a number above 0 and up to 1")
        return 0.0
    return share

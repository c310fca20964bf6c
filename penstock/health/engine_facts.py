"""What an engine reports about itself: its version, and the revision and context length of each model that it serves.

Sources: vLLM vllm/entrypoints/openai (`/v1/models` with `root` and `max_model_len`, `/version`), SGLang
python/sglang/srt/entrypoints/http_server.py (`/get_model_info`), TGI docs/openapi.json (`/info`), Ollama docs/api.md
(`/api/tags`, `/api/version`). Answers of engines are input: texts are cut and made printable, numbers are bounded, and
what is invalid is a problem that operators see, not a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.health.engine_kinds import FactsPage

MAX_FACT_CHARS = 200
"""Maximum length of a version or a revision, in characters; the rest is cut."""

MAX_CONTEXT_TOKENS = 1_000_000_000
"""Maximum context length that is believed possible."""

UNKNOWN = 0
"""The context length of a model whose engine reports none."""


class ServedModel(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One model as an engine reports it."""

    model: str
    """Name of the model in policy."""
    revision: str = ""
    """Root, revision or digest of what the engine serves under the name; empty if it reports none."""
    context_tokens: int = UNKNOWN
    """Maximum tokens of prompt and answer together."""

    def merged(self, other: ServedModel) -> ServedModel:
        """Return this model with what only `other` reports."""
        return ServedModel(self.model, self.revision or other.revision, self.context_tokens or other.context_tokens)


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
    tokens = _tokens(max_model_len, f"max_model_len of {model}", problems)
    return EngineFacts("", (ServedModel(model, revision, tokens),), tuple(problems))


def read_facts(page: FactsPage, body: bytes, names: Mapping[str, str]) -> EngineFacts:
    """Return the facts on a page.

    Args:
        body: the answer to a GET of the page.
        names: the engine's name of each of the endpoint's models, by name in policy.
    """
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return EngineFacts(problems=(f"{page.value} is not JSON",))
    if not isinstance(content, dict):
        return EngineFacts(problems=(f"{page.value} is not an object",))
    problems: list[str] = []
    if page in (FactsPage.VERSION, FactsPage.OLLAMA_VERSION):
        version = _text(content.get("version"), f"version on {page.value}", problems)
        return EngineFacts(version, (), tuple(problems))
    if page is FactsPage.OLLAMA_TAGS:
        return EngineFacts("", _tagged(content.get("models"), names, problems), tuple(problems))
    if page is FactsPage.TGI_INFO:
        revision = _with_revision(content.get("model_id"), content.get("model_sha"), problems)
        tokens = _tokens(content.get("max_total_tokens"), "max_total_tokens", problems)
        version = _text(content.get("version"), f"version on {page.value}", problems)
    else:
        revision = _with_revision(content.get("model_path"), content.get("weight_version"), problems)
        tokens, version = UNKNOWN, ""
    served = tuple(ServedModel(model, revision, tokens) for model in names)
    return EngineFacts(version, served, tuple(problems))


def combined(parts: tuple[EngineFacts, ...]) -> EngineFacts:
    """Return the facts of several answers as one; of two values for one fact, the earlier."""
    served: dict[str, ServedModel] = {}
    for part in parts:
        for model in part.served:
            known = served.get(model.model)
            served[model.model] = model if known is None else known.merged(model)
    version = next((part.version for part in parts if part.version), "")
    return EngineFacts(version, tuple(served.values()), tuple(problem for part in parts for problem in part.problems))


def _tagged(models: Any, names: Mapping[str, str], problems: list[str]) -> tuple[ServedModel, ...]:
    """The digests of Ollama's models; a name without a tag has the tag `latest`."""
    digests = {}
    for each in models if isinstance(models, list) else ():
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            digests[each["name"]] = _text(each.get("digest"), "digest", problems)
    found = []
    for model, name in names.items():
        digest = digests.get(name) or digests.get(f"{name}:latest")
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


def _tokens(value: Any, what: str, problems: list[str]) -> int:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_CONTEXT_TOKENS:
        problems.append(f"{what} is not a number from 1 to {MAX_CONTEXT_TOKENS}")
        return UNKNOWN
    return value

"""Whether the body of a response with status 404 or 400 states that the engine lacks the model.

For 404, the members decide in which engines state the kind of an error, and never its message: the message may contain
what a client sent, such as the identifier of an object or the name of a tool. For 400, which mostly is the client's
mistake, a code does, or a message that consists of an engine's text for the requested model and of nothing else.
Sources: as in `answer_errors`, and openai/openai.go and server/routes.go of Ollama, tools/server/server-http.cpp and
server-models.cpp of llama.cpp, src/http_server.cc of Triton, lmdeploy/serve/openai/api_server.py of LMDeploy,
https://github.com/assafelovic/gpt-researcher/issues/1556 and lmstudio-ai/lmstudio-bug-tracker/issues/1730 (LM Studio),
litellm/proxy/route_llm_request.py, python/sglang/srt/lora/lora_registry.py.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.answers.usage_reader import Fields, members_of
from penstock.answers.values import MAX_TEXT_BYTES, text_of
from penstock.routes.route import ErrorFormat

_CODES: Final = frozenset({"model_not_found", "model_not_available", "ModelNotFound", "DeploymentNotFound"})
"""Members `code` of OpenAI, LM Studio, SGLang's gateway and Azure."""

_TYPES: Final = frozenset({"NotFoundError", "not_found_error"})
"""Members `type` of vLLM, SGLang and TensorRT-LLM, and of Anthropic, Ollama and llama.cpp."""

_ANY_PARAM: Final = frozenset({"", "None", "model"})
_NOT_FOUND: Final = b"404"
_OBJECT: Final = b'"error"'

STATUSES: Final = frozenset({404, 400})
"""Statuses with which engines respond that lack the model."""

_TEXTS: Final = re.compile(
    r"(?:The )?model [`'\"]?(.+?)[`'\"]? (?:does not exist|not found)(?: or you do not have access to it)?\.?"
    r"|model is not loaded"  # llama.cpp that routes, with the model on its list
    r"|Invalid model identifier \"(.+?)\"\. Please specify a valid downloaded model.*"  # LM Studio
    r"|No models loaded\. Please load a model in the developer page or use the 'lms load' command\."
    r"|(?:\{'error': ['\"])?(?:[\w./]+: )?Invalid model name passed in model=(.+?)"  # LiteLLM
    r"(?:\. Call `/v1/models` to view available models for your key\.)?(?:['\"]\})?"
    r"|The following requested LoRA adapters are not loaded: (?:\{')?(.+?)(?:'\})?\nLoaded adapters: .*"  # SGLang
    r"|(.+) is not a valid model ID|Invalid model: (.+)|Model Not Exist",  # OpenRouter, Mistral, DeepSeek
    re.DOTALL,
)
"""Whole messages, with status 400, of engines that lack a model, which their errors distinguish in no other way."""

_OF_PATHS: Final = frozenset({"not found", "file not found", "404 page not found"})
"""Whole messages of engines that lack a path, which their errors distinguish in no other way."""


def lacks_model(body: bytes, errors: ErrorFormat, status: int, name: str) -> bool:
    """Whether a body states that the model is missing, and not a path or an object, or a mistake of the client.

    Args:
        errors: the format of errors of the route.
        status: of the response; one of STATUSES.
        name: the model, by its name at the engine.
    """
    fields = members_of(body)
    if fields is None:
        return False
    if status == 400:
        return _names_missing(fields, name)
    raw = fields.get("error")
    error = members_of(raw) if raw is not None else None
    if error is not None:
        return _states_missing(error)
    if raw is not None:
        # Ollama, Triton, KServe and MLServer state nothing but a text, and no other 404 of a path that they have.
        text = text_of(raw, MAX_TEXT_BYTES)
        return errors is ErrorFormat.KSERVE and text != "" and text.lower() not in _OF_PATHS
    about = fields.get("object")
    if about is None or bytes(about) != _OBJECT:
        return False
    # Earlier releases of vLLM and SGLang; LMDeploy states no type of its own.
    code = fields.get("code")
    return _states_missing(fields) or (
        _text(fields, "type") == "invalid_request_error" and code is not None and bytes(code) == _NOT_FOUND
    )


def _names_missing(fields: Fields, name: str) -> bool:
    raw = fields.get("error", fields.get("detail"))
    error = fields if raw is None else members_of(raw)
    if error is None:
        text = "" if raw is None else text_of(raw, MAX_TEXT_BYTES)
    elif _text(error, "param") not in _ANY_PARAM:
        return False
    elif _text(error, "code") in _CODES:
        return True
    else:
        text = _text(error, "message")
    found = _TEXTS.fullmatch(text)
    return found is not None and (found.lastindex is None or found[found.lastindex] == name)


def _states_missing(error: Fields) -> bool:
    if _text(error, "code") in _CODES:
        return True
    is_missing = _text(error, "type") in _TYPES and _text(error, "param") in _ANY_PARAM
    return is_missing and _text(error, "message").lower() not in _OF_PATHS


def _text(fields: Fields, name: str) -> str:
    raw = fields.get(name)
    return "" if raw is None else text_of(raw, MAX_TEXT_BYTES)

"""Whether the body of a response with status 404 states that the engine lacks the model.

The members decide in which engines state the kind of an error, and never its message: the message may contain what a
client sent, such as the identifier of an object or the name of a tool. Sources: as in `answer_errors`, and
openai/openai.go and server/routes.go of Ollama, tools/server/server-http.cpp of llama.cpp, src/http_server.cc of
Triton, lmdeploy/serve/openai/api_server.py of LMDeploy.
"""

from __future__ import annotations

from typing import Final

from penstock.answers.usage_reader import Fields, members_of
from penstock.answers.values import MAX_TEXT_BYTES, text_of
from penstock.routes.route import ErrorFormat

_CODES: Final = frozenset({"model_not_found", "model_not_available", "ModelNotFound", "DeploymentNotFound"})
"""Members `code` of OpenAI, LM Studio, SGLang's gateway and Azure."""

_TYPES: Final = frozenset({"NotFoundError", "not_found_error"})
"""Members `type` of vLLM, SGLang and TensorRT-LLM, and of Anthropic, Ollama and llama.cpp."""

_ANY_PARAM: Final = frozenset({"", "model"})
_NOT_FOUND: Final = b"404"
_OBJECT: Final = b'"error"'

_OF_PATHS: Final = frozenset({"not found", "file not found", "404 page not found"})
"""Whole messages of engines that lack a path, which their errors distinguish in no other way."""


def lacks_model(body: bytes, errors: ErrorFormat) -> bool:
    """Whether a body, of a response with status 404, states that the model is missing, and not a path or an object.

    Args:
        errors: the format of errors of the route.
    """
    fields = members_of(body)
    if fields is None:
        return False
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


def _states_missing(error: Fields) -> bool:
    if _text(error, "code") in _CODES:
        return True
    is_missing = _text(error, "type") in _TYPES and _text(error, "param") in _ANY_PARAM
    return is_missing and _text(error, "message").lower() not in _OF_PATHS


def _text(fields: Fields, name: str) -> str:
    raw = fields.get(name)
    return "" if raw is None else text_of(raw, MAX_TEXT_BYTES)

"""Engines state by the members of an error that they lack a model; a message, which clients may write, does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.answers.missing_model import lacks_model
from penstock.routes.route import ErrorFormat

OPENAI, ANTHROPIC, KSERVE = ErrorFormat.OPENAI, ErrorFormat.ANTHROPIC, ErrorFormat.KSERVE
TEXT = "The model `llama` does not exist."
VLLM = {"message": TEXT, "type": "NotFoundError", "param": None, "code": 404}


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({"object": "error", **VLLM}, OPENAI),
        ({"error": VLLM}, OPENAI),
        ({"error": {**VLLM, "param": "model"}}, OPENAI),
        ({"type": "error", "error": {"type": "NotFoundError", "message": TEXT}}, ANTHROPIC),
        ({"type": "error", "error": {"type": "not_found_error", "message": "model: llama"}}, ANTHROPIC),
        (
            {"error": {"message": TEXT, "type": "invalid_request_error", "param": None, "code": "model_not_found"}},
            OPENAI,
        ),
        ({"error": {"type": "Not Found", "code": "model_not_found", "message": "x"}}, OPENAI),
        ({"error": {"code": "DeploymentNotFound", "message": "x"}}, OPENAI),
        ({"error": {"message": "model 'x' not found", "type": "not_found_error", "param": None, "code": None}}, OPENAI),
        ({"object": "error", "message": TEXT, "type": "invalid_request_error", "param": None, "code": 404}, OPENAI),
        ({"error": "model 'llama' not found"}, KSERVE),
        ({"error": "Request for unknown model: 'llama' is not found"}, KSERVE),
    ],
)
def test_the_forms_of_engines_that_lack_a_model(body: dict[str, Any], errors: ErrorFormat) -> None:
    assert lacks_model(json.dumps(body).encode(), errors, 404, "llama")


ECHOED = "No response found with id 'model_not_found: the model NotFoundError'"


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({"detail": "Not Found"}, OPENAI),
        ({"detail": ECHOED}, OPENAI),
        ({"error": ECHOED}, OPENAI),
        ({"error": {"message": ECHOED, "type": "invalid_request_error", "param": "response_id", "code": 404}}, OPENAI),
        ({"error": {**VLLM, "message": ECHOED, "param": "previous_response_id"}}, OPENAI),
        ({"error": {"message": ECHOED, "type": "invalid_request_error", "param": None, "code": "not_found"}}, OPENAI),
        ({"error": {"message": "Not Found", "type": "Not Found", "param": None, "code": 404}}, OPENAI),
        ({"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}, OPENAI),
        ({"error": "Not Found"}, KSERVE),
        ({"error": ""}, KSERVE),
        ({"object": "error", "message": ECHOED, "type": "x", "code": 404}, OPENAI),
        ({"code": "model_not_found"}, OPENAI),
        ({"message": "model_not_found", "error": {}}, OPENAI),
        ([VLLM], OPENAI),
        ("model_not_found", OPENAI),
    ],
)
def test_what_is_no_missing_model(body: Any, errors: ErrorFormat) -> None:
    assert not lacks_model(json.dumps(body).encode(), errors, 404, "llama")


@pytest.mark.parametrize(
    "body", [b"", b"404 page not found", b"model not found", b'{"error": {"code": "model_not_f', b"\xff{"]
)
def test_a_text_states_nothing(body: bytes) -> None:
    for status in (400, 404):
        assert not lacks_model(body, OPENAI, status, "llama")
        assert not lacks_model(body, KSERVE, status, "llama")


LITELLM = "Invalid model name passed in model=llama"
SEE = ". Call `/v1/models` to view available models for your key."
LM_STUDIO = 'Invalid model identifier "llama". Please specify a valid downloaded model (e.g., qwen, gemma).'
NO_ADAPTER = "The following requested LoRA adapters are not loaded: llama\nLoaded adapters: dict_keys(['other'])."


def error(message: str, kind: str = "invalid_request_error", **members: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, **members}}


@pytest.mark.parametrize(
    "body",
    [
        error(LM_STUDIO, param="model", code="model_not_found"),
        error(LM_STUDIO, param="model", code=None),
        error("No models loaded. Please load a model in the developer page or use the 'lms load' command."),
        error("any text", param=None, code="model_not_found"),
        error("model 'llama' not found", code=400),
        error("model is not loaded", code=400),
        error(f"/chat/completions: {LITELLM}{SEE}", "None", param="None", code="400"),
        error(f"{{'error': '/chat/completions: {LITELLM}{SEE}'}}", "None", param="None", code="400"),
        {"detail": f"completion: {LITELLM}"},
        {"object": "error", **error(TEXT, "NotFoundError", param=None, code=400)["error"]},
        error("The model `llama` does not exist or you do not have access to it."),
        error(NO_ADAPTER, "BadRequestError", param=None, code=400),
        {"object": "error", "message": NO_ADAPTER, "type": "BadRequestError", "param": None, "code": 400},
        {"object": "error", "message": "Invalid model: llama", "type": "invalid_model", "param": None, "code": "1500"},
        error("llama is not a valid model ID", code=400),
        error("Model Not Exist", param=None, code="invalid_request_error"),
    ],
)
def test_a_400_of_an_engine_that_lacks_the_model(body: dict[str, Any]) -> None:
    assert lacks_model(json.dumps(body).encode(), OPENAI, 400, "llama")


@pytest.mark.parametrize(
    "body",
    [
        error("model 'other' not found", code=400),
        error(f"tools: {LITELLM}{SEE} No."),
        error("Invalid model name passed in model=other", param="None", code="400"),
        error("This model's maximum context length is 4096 tokens."),
        error("Input: model 'llama' not found"),
        error("The model `llama` does not exist, said the client."),
        error("model 'llama' not found", param="tools[0].model", code=400),
        error("x", param="response_format", code="model_not_found"),
        error("model 'llama' does not support chat", code=400),
        error("x", "NotFoundError", param=None, code=404),
        {"error": "model_not_found"},
        {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": TEXT}]},
        {"model": "model 'llama' not found"},
        {},
    ],
)
def test_a_400_for_a_mistake_of_the_client(body: dict[str, Any]) -> None:
    assert not lacks_model(json.dumps(body).encode(), OPENAI, 400, "llama")

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
    assert lacks_model(json.dumps(body).encode(), errors)


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
    assert not lacks_model(json.dumps(body).encode(), errors)


@pytest.mark.parametrize(
    "body", [b"", b"404 page not found", b"model not found", b'{"error": {"code": "model_not_f', b"\xff{"]
)
def test_a_text_states_nothing(body: bytes) -> None:
    assert not lacks_model(body, OPENAI)
    assert not lacks_model(body, KSERVE)

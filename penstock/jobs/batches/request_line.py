"""One line of a batch's input file: a request in OpenAI's format, and the check of a line.

Source: https://platform.openai.com/docs/api-reference/batch/request-input
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

MAX_CUSTOM_ID: Final = 512
"""Maximum length (characters) of a `custom_id`."""


class RequestLine(msgspec.Struct, frozen=True):
    """A request of a batch."""

    custom_id: str
    """Identifies the request in the results; unique in the file."""
    url: str
    """Path of a route, such as `/v1/embeddings`."""
    body: msgspec.Raw
    method: str = "POST"


class LineProblem(msgspec.Struct, frozen=True):
    """Why a line cannot be run, as in `errors` of OpenAI's batches."""

    code: str
    message: str
    line: int | None = None
    """Number of the line in the file, from 1; None if the problem concerns no single line."""
    param: str | None = None
    """The invalid field."""


class LineChecks(NamedTuple):
    """The checks that depend on policy and sender. Each returns the problem, or an empty string."""

    url: Callable[[str], str]
    model: Callable[[str], str]


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None


_lines: Final = msgspec.json.Decoder(RequestLine)
_bodies: Final = msgspec.json.Decoder(_Body)


def decode_line(text: bytes) -> RequestLine:
    """Decode a line; raises msgspec.DecodeError or msgspec.ValidationError."""
    return _lines.decode(text)


def check_line(number: int, text: bytes, checks: LineChecks) -> RequestLine | LineProblem:
    """Return the request of a line, or its first problem; `number` is that of the line."""
    try:
        line = _lines.decode(text)
    except msgspec.ValidationError as error:
        return LineProblem("invalid_request", f"line {number}: {error}", number)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return LineProblem("invalid_json_line", f"line {number} is not valid JSON: {error}", number)
    problem = _problem_of(line, checks)
    if problem is None:
        return line
    return LineProblem(problem[0], f"line {number}: {problem[1]}", number, problem[2])


def _problem_of(line: RequestLine, checks: LineChecks) -> tuple[str, str, str] | None:
    """Code, message and field of the first problem of a decoded line."""
    if not 1 <= len(line.custom_id) <= MAX_CUSTOM_ID:
        return "invalid_custom_id", f"`custom_id` has not 1 to {MAX_CUSTOM_ID} characters", "custom_id"
    if line.method != "POST":
        return "invalid_method", "`method` is not POST", "method"
    if problem := checks.url(line.url):
        return "invalid_url", problem, "url"
    try:
        body = _bodies.decode(line.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "invalid_body", "`body` is not a JSON object", "body"
    if not isinstance(body.model, str):
        return "missing_model", "`body` has no `model`", "body.model"
    if body.stream:
        return "invalid_body", "`stream` is not possible in a batch; remove it", "body.stream"
    if problem := checks.model(body.model):
        return "model_not_found", problem, "body.model"
    return None

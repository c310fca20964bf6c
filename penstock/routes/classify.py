"""Reads the routing fields of a JSON body without decoding the other fields."""

from __future__ import annotations

import re
from typing import Final

from penstock.routes.body_fields import BodyFields
from penstock.routes.body_values import check_numbers, first_value, flag_at, text_value
from penstock.routes.duplicate_keys import FieldError
from penstock.routes.raw_values import ABSENT, Raw
from penstock.routes.route import TOOLS
from penstock.routing.reasons import Reason, Refusal

MAX_MODEL: Final = 256
"""Maximum length (characters) of a model name."""

_NO_VALUES: Final[dict[str, Raw]] = {}


class RequestFields:
    """The fields of a request that routing uses."""

    def __init__(
        self, model: str, stream: bool = False, values: dict[str, Raw] = _NO_VALUES, session: Raw = ABSENT
    ) -> None:
        self.model = model
        self.stream = stream
        self.values = values
        """The undecoded value at each JSON pointer that was read."""
        self.session = session
        """Undecoded name of the conversation; ABSENT without one."""


OPENAI_NUMBERS: Final = (
    "/max_tokens",
    "/max_completion_tokens",
    "/max_output_tokens",
    "/n",
    "/steps",
    "/num_inference_steps",
)

_MODEL: Final = "/model"
_STREAM: Final = "/stream"
_SESSIONS: Final = ("/prompt_cache_key", "/user")
_ONCE: Final = ("/input", "/messages", "/previous_response_id", "/prompt", "/size", "/stream_options", TOOLS)
"""Further fields that the agent reads or replaces."""

_fields: Final = BodyFields((_MODEL, _STREAM, *OPENAI_NUMBERS, *_SESSIONS, *_ONCE))

_UTF_8: Final = frozenset({b"utf-8", b"utf8", b"us-ascii", b"ascii"})
_JSON_TYPES: Final = frozenset(
    b"application/json" + charset for charset in (b"", b"; charset=utf-8", b"; charset=UTF-8", b";charset=UTF-8")
)
"""The usual values of Content-Type for a body of JSON in UTF-8."""

_CHARSET: Final = re.compile(rb"charset\*?\d*\*?[ \t]*=[ \t]*[\"']?([^\"';, \t]*)")
_FORM_FIELD: Final = re.compile(rb"[&;][^&;=]{1,64}=")


def json_problem(content_type: bytes | None, body: bytes | bytearray, is_whole: bool) -> Refusal | None:
    """The refusal of a body of JSON that is incomplete, or that its Content-Type lets engines read differently.

    Engines decode by the charset of Content-Type, and read a form where it declares one.
    """
    if not is_whole:
        return Refusal(Reason.BODY_TOO_LARGE, "the body is larger than agents read")
    if content_type is None or content_type in _JSON_TYPES:
        return None
    lower = content_type.lower()
    for charset in _CHARSET.findall(lower):
        if charset not in _UTF_8:
            return Refusal(Reason.BAD_REQUEST, "Content-Type declares another charset than UTF-8; JSON is UTF-8")
    if lower.startswith(b"application/x-www-form-urlencoded") and _FORM_FIELD.search(body):
        detail = "Content-Type declares a form, and the body is JSON; send `Content-Type: application/json`"
        return Refusal(Reason.BAD_REQUEST, detail)
    return None


def classify(body: bytes | bytearray) -> RequestFields | Refusal:
    """Read the routing fields of an OpenAI-style JSON body, or refuse it.

    A body is refused if another parser could read another value in it, and if a flag or a number has another type:
    engines convert texts.
    """
    values = _fields.read(body)
    if isinstance(values, str):
        return Refusal(Reason.BAD_REQUEST, str(values))
    model = text_value(values.get(_MODEL))
    if model is None:
        missing = "missing" if _MODEL not in values else "not a string"
        return Refusal(Reason.BAD_REQUEST, f"the field `model` of the JSON body is {missing}")
    if len(model) > MAX_MODEL:
        return Refusal(Reason.BAD_REQUEST, f"the name of the model is longer than {MAX_MODEL} characters")
    try:
        stream = flag_at(_STREAM, values) is True
        check_numbers(OPENAI_NUMBERS, values)
    except FieldError as error:
        return Refusal(Reason.BAD_REQUEST, f"the request body is invalid: {error}")
    return RequestFields(model, stream, values, first_value(_SESSIONS, values))

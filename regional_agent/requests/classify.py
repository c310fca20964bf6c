"""Step 2 of the request path: reads the routing fields of a body without decoding the other fields."""

from __future__ import annotations

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

"""Step 2 of the request path: reads the routing fields of a body without decoding the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.routing.reasons import Reason, Refusal

INFERENCE_PATHS = frozenset(
    {
        b"/v1/audio/speech",
        b"/v1/audio/transcriptions",
        b"/v1/audio/translations",
        b"/v1/chat/completions",
        b"/v1/completions",
        b"/v1/embeddings",
        b"/v1/images/edits",
        b"/v1/images/generations",
        b"/v1/images/variations",
        b"/v1/responses",
    }
)
"""What is routed to engines when posted; anything else is answered here or not found."""

UPLOAD_PATHS = frozenset(
    {b"/v1/audio/transcriptions", b"/v1/audio/translations", b"/v1/images/edits", b"/v1/images/variations"}
)
"""Those of them whose bodies are forms, or the sound itself."""

TUNNEL_PATHS = frozenset({b"/v1/realtime"})
"""Where a WebSocket may be opened, through to an engine."""


if TYPE_CHECKING:
    Raw = Any
    """Its stubs say that it is bytes; it is not, and compiled code would insist."""
else:
    Raw = msgspec.Raw

NOT_SAID = msgspec.Raw(b"")

MAX_MODEL = 256
"""Characters of a model's name; a longer name cannot be configured, and no response repeats it."""


class RequestFields(msgspec.Struct):
    """The fields of an OpenAI-style body that routing needs; msgspec skips the others unparsed.

    Raw ones only help to guess a cost: what engines make of them is their business, so no type of them is refused.
    """

    model: str
    stream: bool | None = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: Raw = NOT_SAID
    size: Raw = NOT_SAID
    steps: Raw = NOT_SAID
    num_inference_steps: Raw = NOT_SAID
    input: Raw = NOT_SAID
    prompt_cache_key: Raw = NOT_SAID
    user: Raw = NOT_SAID


class _Name(str):
    """A model's name as a body says it: of a type of our own, so that msgspec calls `_note` for each."""

    __slots__ = ()


class _Body(RequestFields):
    model: _Name


_NOTED = _Name()
_names: list[str] = []
"""In the body at hand."""


def _note(wanted: type, value: Any) -> _Name:
    if not isinstance(value, str):
        raise TypeError("Expected `str`")
    if len(value) > MAX_MODEL:
        raise ValueError(f"Expected `str` of length <= {MAX_MODEL}")
    if _names:
        raise ValueError("it is there twice, and engines differ in which they take; name one model")
    _names.append(value)
    return _NOTED


_decoder = msgspec.json.Decoder(_Body, dec_hook=_note)


def classify(body: bytes | bytearray) -> RequestFields | Refusal:
    """Read the body's routing fields, or say which one is wrong."""
    _names.clear()
    try:
        asked: RequestFields = _decoder.decode(body)
    except msgspec.ValidationError as error:
        return Refusal(Reason.BAD_REQUEST, f"the request body is not as expected: {error}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Refusal(Reason.BAD_REQUEST, f"the request body is not JSON: {error}")
    asked.model = _names[0]
    return asked

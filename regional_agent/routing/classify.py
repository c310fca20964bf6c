"""Step 2 of the request path: reads the routing fields of a body without decoding the other fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.routing.reasons import Reason, Refusal

if TYPE_CHECKING:
    Raw = Any
    """msgspec's stubs declare `Raw` as a subclass of bytes, which it is not; compiled code would check for bytes."""
else:
    Raw = msgspec.Raw

ABSENT = msgspec.Raw(b"")

MAX_MODEL = 256
"""Maximum length (characters) of a model name."""


class RequestFields(msgspec.Struct):
    """The fields of an OpenAI-style body that routing uses; msgspec skips the others.

    Raw fields only improve a cost estimate, and a value of any type is accepted: engines validate them.
    """

    model: str
    stream: bool | None = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: Raw = ABSENT
    size: Raw = ABSENT
    steps: Raw = ABSENT
    num_inference_steps: Raw = ABSENT
    input: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    user: Raw = ABSENT


class RouteFields(RequestFields):
    """The fields of a body that is not OpenAI-style, read at the JSON pointers of its route."""

    values: dict[str, Any] = {}
    """The undecoded value at each pointer that the body contains."""


class _Name(str):
    """The type of a model name in a body: a custom type, for which msgspec calls `_on_name`."""

    __slots__ = ()


class _Body(RequestFields):
    model: _Name


_PLACEHOLDER = _Name()
_names: list[str] = []
"""The model names in the body that is being decoded."""


def _on_name(wanted: type, value: Any) -> _Name:
    if not isinstance(value, str):
        raise TypeError("Expected `str`")
    if len(value) > MAX_MODEL:
        raise ValueError(f"Expected `str` of length <= {MAX_MODEL}")
    if _names:
        raise ValueError("the field is repeated; send it once")
    _names.append(value)
    return _PLACEHOLDER


_decoder = msgspec.json.Decoder(_Body, dec_hook=_on_name)


def classify(body: bytes | bytearray) -> RequestFields | Refusal:
    """Read the routing fields of a JSON body, or refuse it. A repeated `model` is refused: engines differ in which
    value they use."""
    _names.clear()
    try:
        fields: RequestFields = _decoder.decode(body)
    except msgspec.ValidationError as error:
        return Refusal(Reason.BAD_REQUEST, f"the request body is invalid: {error}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Refusal(Reason.BAD_REQUEST, f"the request body is not valid JSON: {error}")
    fields.model = _names[0]
    return fields

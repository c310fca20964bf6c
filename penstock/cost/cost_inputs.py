"""The quantities that determine the cost of a request, from the values at the JSON pointers of its route.

Clients choose these numbers, so each number is bounded: an estimate must not exceed the work that an engine would run.
"""

from __future__ import annotations

from math import prod
from typing import Final

import msgspec

from penstock.answers.token_counts import MAX_TOKENS
from penstock.cost.request_properties import CostInputs
from penstock.policy.kinds.models import CostUnit
from penstock.routes.body_fields import BodyFields
from penstock.routes.body_values import first_value, number_value, text_value
from penstock.routes.json_pointer import MAX_ARRAY_INDEX
from penstock.routes.raw_values import ABSENT, Raw
from penstock.routes.route import TOOLS, CostFields

MAX_AT_ONCE: Final = 128
"""Upper bound for the number of results. Here and below, a larger value is replaced by the bound."""

MAX_STEPS: Final = 1000
"""Upper bound for the steps of a diffusion model."""

MAX_SIDE: Final = 1 << 16
"""Upper bound for the width and height (pixels) of an image, where they are fields of their own."""

MAX_PIXELS: Final = 1 << 28
"""Upper bound for the pixels of one image."""

MAX_AUDIO_S: Final = 4 * 3600.0
"""Upper bound for the duration (s) of audio."""

MAX_ELEMENTS: Final = 1 << 32
"""Upper bound for the elements of all tensors of a request."""

MAX_SHAPE_BYTES: Final = 256
"""Maximum length (bytes) of a shape in JSON; a longer shape is ignored."""

_SHAPES: Final = BodyFields([f"/{index}/shape" for index in range(MAX_ARRAY_INDEX + 1)])
_TOOLS: Final = (TOOLS,)
_TOKEN: Final = CostUnit.TOKEN
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

_shape: Final = msgspec.json.Decoder(list[int])


def cost_inputs(cost: CostFields, values: dict[str, Raw], unit: CostUnit, body_bytes: int) -> CostInputs:
    """The cost inputs of a request.

    Args:
        cost: cost fields of the route.
        values: undecoded values of the body, by JSON pointer.
        unit: cost unit of the model.
        body_bytes: size of the body (bytes).
    """
    count = 1
    if cost.count:
        count = _whole(cost.count, values, MAX_AT_ONCE) or 1
    if cost.batches:
        count = min(MAX_AT_ONCE, count * (_whole(cost.batches, values, MAX_AT_ONCE) or 1))
    if unit is _TOKEN:
        max_tokens = _whole(cost.max_tokens, values, MAX_TOKENS)
        offers_tools = first_value(_TOOLS, values) is not ABSENT
        return CostInputs(body_bytes, cost.generates, cost.uses_tokens, max_tokens, count, offers_tools)
    if unit is CostUnit.MEGAPIXEL_STEP:
        return CostInputs(
            body_bytes, count=count, pixels=_pixels(cost, values), steps=_whole(cost.steps, values, MAX_STEPS)
        )
    if unit is CostUnit.AUDIO_SECOND:
        seconds = _number(cost.seconds, values)
        speech = first_value(cost.speech, values)
        return CostInputs(
            body_bytes,
            text_bytes=len(memoryview(speech)) or None,
            audio_s=min(seconds, MAX_AUDIO_S) if seconds is not None and seconds > 0 else None,
        )
    if unit is CostUnit.TENSOR_ELEMENT:
        return CostInputs(body_bytes, elements=_elements(first_value(cost.tensors, values)))
    return CostInputs(body_bytes, count=count)


def _pixels(cost: CostFields, values: dict[str, Raw]) -> int | None:
    """The pixels of an image, from its width and height or from a size such as "1024x768"; None if not stated."""
    width, height = _whole(cost.width, values, MAX_SIDE), _whole(cost.height, values, MAX_SIDE)
    if width is None or height is None:
        left, by, right = (text_value(first_value(cost.size, values)) or "").partition("x")
        if not (by and left.isdecimal() and right.isdecimal() and len(left) < 6 and len(right) < 6):
            return None
        width, height = int(left), int(right)
    return min(width * height, MAX_PIXELS) or None


def _elements(tensors: Raw) -> int | None:
    """The elements of the first MAX_ARRAY_INDEX + 1 tensors, by their shapes; None if no shape is stated."""
    shapes = _SHAPES.read(tensors) if tensors else {}
    if isinstance(shapes, str):
        return None
    elements = 0
    for raw in shapes.values():
        if len(memoryview(raw)) > MAX_SHAPE_BYTES:
            continue
        try:
            sides = _shape.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if all(side > 0 for side in sides):
            elements = min(MAX_ELEMENTS, elements + prod(sides))
    return elements or None


def _whole(pointers: tuple[str, ...], values: dict[str, Raw], limit: int) -> int | None:
    """The positive integer at the first pointer at which the body has a number, at most `limit`; None for any other
    value."""
    number = _number(pointers, values)
    return int(min(number, limit)) if number is not None and number >= 1 else None


def _number(pointers: tuple[str, ...], values: dict[str, Raw]) -> float | None:
    for pointer in pointers:
        value = values.get(pointer)
        if value is not None:
            number = number_value(value)
            if number is not None:
                return number
    return None

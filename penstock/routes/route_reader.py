"""Reads the values that routing needs from JSON bodies: the model's name, the stream flag, and quantities of cost."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.routes.body_fields import BodyFields
from penstock.routes.body_values import flag_at, text_value
from penstock.routes.json_pointer import parse_pointer
from penstock.routes.raw_values import Raw
from penstock.routes.route import TOOLS, BodyKind, CostFields, ModelLocation, ModelSource, Route, StreamKind

_OPENAI_LOCATIONS: Final = frozenset(
    {
        ModelLocation(ModelSource.JSON, "/model"),
        ModelLocation(ModelSource.FORM, "model"),
        ModelLocation(ModelSource.HEADER, "x-model"),
        ModelLocation(ModelSource.QUERY, "model"),
    }
)
_OPENAI_JSON: Final = (ModelLocation(ModelSource.JSON, "/model"),)
_OPENAI_SESSION: Final = frozenset({"/prompt_cache_key", "/user"})
_NUMBERS: Final = ("max_tokens", "count", "batches", "width", "height", "steps", "seconds")
"""The fields of CostFields that are numbers."""
_OPENAI_COST: Final = {
    "max_tokens": frozenset({"/max_tokens", "/max_completion_tokens", "/max_output_tokens"}),
    "count": frozenset({"/n"}),
    "size": frozenset({"/size"}),
    "steps": frozenset({"/steps", "/num_inference_steps"}),
    "speech": frozenset({"/input"}),
}


class RouteReader:
    """Reads the requests of one route: the locations of the model's name, and the values in JSON bodies."""

    def __init__(self, route: Route) -> None:
        """Prepare to read the requests of `route`.

        Raises:
            ValueError: a JSON pointer of the route is malformed.
        """
        self.route = route
        self.by_source = {
            source: tuple(place.name for place in route.model if place.source is source) for source in ModelSource
        }
        self.model_pointers = self.by_source[ModelSource.JSON]
        places = (route.client_object, route.previous_object, *route.foreign_objects)
        objects = tuple(place for place in places if place.startswith("/"))
        chosen = route.chosen_by_engine
        self.reads_body = bool(self.model_pointers or route.stream_field or objects or chosen)
        """Whether the body decides more than cost and session, so that it must be JSON that agents can read."""
        self.fixed = self.by_source[ModelSource.FIXED]
        self.object_parameter = route.object_parameter
        """The route's `object_parameter`: the model of the object that it identifies is the model of the request."""
        self.number_pointers = tuple(pointer for name in _NUMBERS for pointer in getattr(route.cost, name))
        """JSON pointers to the numbers that determine the cost."""
        flags = (route.stream_field,) if route.stream_field else ()
        tools = (TOOLS,) if route.cost.max_tokens else ()
        pointers = (*flags, *tools, *pointers_of(route.cost), *route.session, *objects, *chosen)
        self._fields = BodyFields([*self.model_pointers, *pointers])

    def read(self, body: bytes | bytearray) -> dict[str, Raw] | str:
        """The undecoded value at each pointer of the route that the body contains, or a description of its problem."""
        return self._fields.read(body)

    def is_streaming(self, values: dict[str, Raw]) -> bool:
        """Whether the response to a request is streamed.

        Args:
            values: undecoded values of the body, from `read`.

        Raises:
            FieldError: the value at the pointer of the flag is no flag.
        """
        route = self.route
        if route.stream is StreamKind.NONE:
            return False
        if not route.stream_field:
            return True
        flag = flag_at(route.stream_field, values)
        return route.streams_by_default if flag is None else flag

    def models_in(self, values: dict[str, Raw]) -> set[str] | str:
        """The names of models in a body, or a description of an invalid name.

        Args:
            values: undecoded values of the body, from `read`.
        """
        names = set()
        for pointer in self.model_pointers:
            if pointer in values:
                name = text_value(values[pointer])
                if name is None:
                    return f"the model at {pointer} is not a string"
                names.add(name)
        return names

    def replace_in_body(self, body: bytes | bytearray, model: str) -> bytes | None:
        """The body with another model at each model pointer that it contains; None if the model cannot be replaced."""
        replaced = bytes(body)
        for pointer in self.model_pointers:
            found = _replaced(msgspec.Raw(replaced), parse_pointer(pointer), msgspec.json.encode(model))
            if found is None:
                return None
            replaced = bytes(found)
        return replaced

    def what_to_send(self) -> str:
        """The locations at which a request can name its model, as text for people."""
        return " or ".join(_PLACE[place.source] % place.name for place in self.route.model)


_PLACE: Final = {
    ModelSource.PATH: "in the path as {%s}",
    ModelSource.JSON: "in the JSON body at %s",
    ModelSource.FORM: "in the form field `%s`",
    ModelSource.HEADER: "in the header `%s`",
    ModelSource.QUERY: "in the query parameter `%s`",
    ModelSource.FIXED: "as %s",
}


def has_openai_fields(route: Route) -> bool:
    """Whether a request of the route names model, stream flag, session and quantities where OpenAI's requests do.

    The agent reads such requests with its decoder for OpenAI's requests, which is faster.
    """
    if route.object_parameter:
        return False
    if not _OPENAI_LOCATIONS.issuperset(route.model) or not _OPENAI_SESSION.issuperset(route.session):
        return False
    if route.body not in _OPENAI_BODIES and route.stream is not StreamKind.WEBSOCKET:
        return False
    if route.body is BodyKind.JSON and route.model != _OPENAI_JSON:
        return False
    if route.stream_field not in ("", "/stream") or route.streams_by_default:
        return False
    if not route.stream_field and route.stream not in (StreamKind.NONE, StreamKind.WEBSOCKET):
        return False
    return all(
        frozenset(getattr(route.cost, name)) <= _OPENAI_COST.get(name, frozenset())
        for name in CostFields.__struct_fields__
        if name not in ("generates", "uses_tokens", "prompt")
    )


_OPENAI_BODIES: Final = frozenset({BodyKind.JSON, BodyKind.UPLOAD})


def pointers_of(cost: CostFields) -> list[str]:
    """The JSON pointers to the quantities of a cost, except the prompt, whose size is that of the body."""
    return [
        pointer
        for name in CostFields.__struct_fields__
        if name not in ("generates", "uses_tokens", "prompt")
        for pointer in getattr(cost, name)
    ]


def _replaced(value: Any, tokens: tuple[str, ...], text: bytes) -> Any | None:
    """`value` with `text` at a path of object keys; unchanged if a key is absent, None if the path leads to no
    object."""
    try:
        fields = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    key, rest = tokens[0], tokens[1:]
    if key not in fields:
        return value
    inner = _replaced(fields[key], rest, text) if rest else msgspec.Raw(text)
    if inner is None:
        return None
    fields[key] = inner
    return msgspec.Raw(msgspec.json.encode(fields))

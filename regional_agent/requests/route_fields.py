"""Reads the routing fields of a request whose route names its model in other places than OpenAI's API.

All places of a request that name a model must name the same model: the engine could otherwise use another name than the
agent.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from penstock.routes.body_fields import BodyFields
from penstock.routes.body_values import check_numbers, first_value, is_null, text_value
from penstock.routes.classify import MAX_MODEL, RequestFields, json_problem
from penstock.routes.duplicate_keys import FieldError
from penstock.routes.path_template import PathTemplate
from penstock.routes.raw_values import NotJson, Raw
from penstock.routes.route import BodyKind, ModelSource
from penstock.routes.route_reader import RouteReader
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.body_checks import content_codings, scan_form, uncompressed
from regional_agent.requests.query_values import query_values

_JSON, _UPLOAD = BodyKind.JSON, BodyKind.UPLOAD
_PATH, _FORM, _HEADER, _QUERY = ModelSource.PATH, ModelSource.FORM, ModelSource.HEADER, ModelSource.QUERY
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""

_JSON_LENGTH: Final = b"inference-header-content-length"
"""Header with the size (bytes) of the JSON before the binary tensors of a request (Open Inference Protocol, extension
for binary data)."""


class _Item(msgspec.Struct):
    """The fields of an input item that tell whether it only names an item of an earlier response."""

    id: Any = None
    type: Any = None
    role: Any = None

    @property
    def is_reference(self) -> bool:
        """Whether the item is a reference: by its type, or, as OpenAI's API permits, by having an identifier alone."""
        return self.type == "item_reference" or (self.id is not None and self.type is None and self.role is None)


MAX_ITEMS: Final = 128
"""Maximum number of items of earlier responses that a request may name."""

MAX_SOUGHT: Final = 16
"""Maximum number of them that other agents are asked for, one after the other."""

_items: Final = msgspec.json.Decoder(list[_Item | list[Any] | str | float | bool | None])

_NOT_JSON: Final = (b"multipart/", b"audio/", b"video/", b"image/", b"application/octet-stream")


def route_fields(request: Request, reader: RouteReader) -> RequestFields | Refusal:
    """The routing fields of a request, from the part that has arrived, or its refusal."""
    codings = [] if request.plain else content_codings(request)
    if codings and (reader.reads_body or _is_form(request)):
        return _bad("the body is compressed, and the route reads it; send it without Content-Encoding")
    names = _names_beside_body(request, reader)
    if isinstance(names, Refusal):
        return names
    values: dict[str, Raw] = {}
    if has_json(request, reader) and not request.upgrade:
        content_type = request.header(b"content-type")
        read = json_problem(content_type, request.body, request.whole) or _read_json(request, reader, codings)
        if isinstance(read, Refusal):
            return read
        values = read
        for pointer in reader.route.chosen_by_engine:
            if pointer in values:
                return _bad(f"{pointer}: the engine chooses this member; send the request without it")
        in_body = reader.models_in(values)
        if isinstance(in_body, str):
            return _bad(in_body)
        names |= in_body
    elif reader.by_source[_FORM] and _is_form(request):
        form = _name_in_form(request, reader, names)
        if isinstance(form, Refusal):
            return form
        names |= form
    if len(names) != 1:
        return _ambiguous(reader, names)
    return _fields(reader, names.pop(), values)


def object_in(request: Request, place: str) -> str | None:
    """The identifier of an object at a place of a request; None unless the place has exactly one.

    Args:
        place: a JSON pointer, `?name` for a query parameter, or the name of a path parameter.
    """
    if place.startswith("?"):
        values = query_values(request.target, place[1:])
        return values[0] if isinstance(values, list) and values else None
    if not place.startswith("/"):
        return request.path_parameters.get(place)
    return text_value(_value_in_body(request, place))


def is_no_identifier(request: Request, place: str) -> bool:
    """Whether the body has a value other than a string and null at a JSON pointer, which an engine could convert."""
    value = _value_in_body(request, place) if place.startswith("/") else None
    return value is not None and not is_null(value) and text_value(value) is None


def has_value(request: Request, pointer: str) -> bool:
    """Whether a complete body has a value other than null at a JSON pointer."""
    value = _value_in_body(request, pointer)
    return value is not None and not is_null(value)


def items_in(request: Request, pointer: str) -> tuple[str, ...] | None:
    """The identifiers of items of earlier responses that elements of a list in a complete body only name.

    None if an element may name an item that only an engine can read, or if there are more than MAX_ITEMS.
    """
    body = request.body
    value = _value_in_body(request, pointer) if b'"id"' in body or b"\\u" in body else None
    if value is None or bytes(memoryview(value)[:1]) != b"[":
        return ()
    try:
        items = _items.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    named = [item.id for item in items if isinstance(item, _Item) and item.is_reference]
    is_clear = len(named) <= MAX_ITEMS and all(isinstance(item_id, str) for item_id in named)
    return tuple(dict.fromkeys(named)) if is_clear else None


def _value_in_body(request: Request, pointer: str) -> Raw | None:
    body = request.body
    if not request.whole or (pointer.rpartition("/")[2].encode() not in body and b"\\u" not in body):
        return None
    values = _object_fields(pointer).read(body)
    return None if isinstance(values, str) else values.get(pointer)


def objects_of(request: Request) -> list[str]:
    """The identifiers of objects that a complete request contains."""
    route = request.route
    if route is None or not request.whole:
        return []
    places = (route.object_parameter, route.previous_object, route.client_object)
    found = [object_id for place in places if place and (object_id := object_in(request, place))]
    for pointer in route.cost.prompt if route.continues_objects else ():
        found += (items_in(request, pointer) or ())[:MAX_SOUGHT]
    return found


@lru_cache(maxsize=64)
def _object_fields(pointer: str) -> BodyFields:
    return BodyFields([pointer])


def can_replace_route_model(request: Request, reader: RouteReader) -> bool:
    """Whether the model name can be replaced: in the path, and in a JSON body that is complete and kept."""
    if any(reader.by_source[source] for source in (_FORM, _HEADER, _QUERY)) or reader.fixed or request.upgrade:
        return False
    return not reader.model_pointers or (request.whole and not request.body_dropped)


def replace_route_model(request: Request, reader: RouteReader, model: str) -> RequestFields | None:
    """Replace the model name in path and body; returns the new fields.

    Returns None, and changes nothing, if the name cannot be replaced.
    """
    if not can_replace_route_model(request, reader):
        return None
    body, path = request.body, request.path
    parameters = dict(request.path_parameters)
    if reader.model_pointers:
        replaced = reader.replace_in_body(body, model)
        if replaced is None:
            return None
        body = replaced
    for name in reader.by_source[_PATH]:
        path = PathTemplate(reader.route.path).replace(path, name, model)
        parameters[name] = model
    changed = Request(request)
    changed.body, changed.whole, changed.path_parameters = body, request.whole, parameters
    fields = route_fields(changed, reader)
    if isinstance(fields, Refusal) or fields.model != model:
        return None
    if reader.model_pointers:
        request.body, request.length = body, len(body)
    if path is not request.path:
        request.target = path + request.target[len(request.path) :]
        request.path, request.path_parameters = path, parameters
    return fields


def _names_beside_body(request: Request, reader: RouteReader) -> set[str] | Refusal:
    """The names in the path, in headers and in the query, and the fixed name."""
    by_source = reader.by_source
    names = set(reader.fixed)
    for name in by_source[_PATH]:
        if name in request.path_parameters:
            names.add(request.path_parameters[name])
    for name in by_source[_HEADER]:
        names.update(value.decode("utf-8", "replace") for value in request.every(name.lower().encode()))
    for name in by_source[_QUERY]:
        values = query_values(request.target, name)
        if isinstance(values, str):
            return _bad(values)
        names.update(values)
    return names


def has_json(request: Request, reader: RouteReader) -> bool:
    """Whether the body is read as JSON."""
    if reader.route.body is _JSON:
        return True
    if reader.route.body is not _UPLOAD or not reader.model_pointers:
        return False
    return not (request.header(b"content-type") or b"").lower().startswith(_NOT_JSON)


def _is_form(request: Request) -> bool:
    return (request.header(b"content-type") or b"").lower().startswith(b"multipart/")


def _read_json(request: Request, reader: RouteReader, codings: list[bytes]) -> dict[str, Raw] | Refusal:
    """The values in a complete body. A body that decides nothing beyond cost and session may be anything: engines
    validate it."""
    body: bytes | bytearray | None = request.body
    anything = not reader.reads_body
    if codings:
        body = uncompressed(request.body) if codings == [b"gzip"] else None
    if body is None:
        return {}
    length = request.header(_JSON_LENGTH) if anything else None
    if length is not None:
        if not length.isdigit() or len(length) > 9 or int(length) > len(body):
            return _bad(f"{_JSON_LENGTH.decode()} is not the size of the JSON in the body")
        body = body[: int(length)]
    values = reader.read(body)
    if isinstance(values, str):
        return {} if anything and isinstance(values, NotJson) else _bad(str(values))
    return values


def _name_in_form(request: Request, reader: RouteReader, names: set[str]) -> set[str] | Refusal:
    form = scan_form(request, reader.by_source[_FORM][0])
    if isinstance(form, Refusal):
        return form
    model = form.scanner.model
    form.expected = next(iter(names)) if model is None and len(names) == 1 else None
    return set() if model is None else {model}


def _ambiguous(reader: RouteReader, names: set[str]) -> Refusal:
    if not names:
        return _bad(f"the request names no model; send its name {reader.what_to_send()}")
    return _bad(f"the request names different models; send one name {reader.what_to_send()}")


def _fields(reader: RouteReader, model: str, values: dict[str, Raw]) -> RequestFields | Refusal:
    if not 0 < len(model) <= MAX_MODEL:
        return _bad(f"the name of the model is empty, or longer than {MAX_MODEL} characters")
    try:
        check_numbers(reader.number_pointers, values)
        stream = reader.is_streaming(values)
    except FieldError as error:
        return _bad(f"the request body is invalid: {error}")
    return RequestFields(model, stream, values, first_value(reader.route.session, values))


def _bad(detail: str) -> Refusal:
    return Refusal(Reason.BAD_REQUEST, detail)

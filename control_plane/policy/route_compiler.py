"""Compiles the routes of a bundle, and refuses routes that could not work or that shadow each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from adapters.configuration.strict_yaml import Path
from adapters.error_text import suggest
from control_plane.policy.catalogue import Catalogue
from control_plane.policy.documents import Document
from control_plane.policy.references import References
from penstock.routes.json_pointer import parse_pointer
from penstock.routes.path_template import PathTemplate, TemplateError
from penstock.routes.presets.preset_registry import PRESETS, preset_routes
from penstock.routes.route import API_KEY_HEADERS, CostFields, Route, RoutePresets, UsageFields
from penstock.routes.route_table import methods_of
from penstock.wire import identity, peer_probe

RESERVED_PATHS: Final = ("/livez", "/readyz", "/v1/models", "/v1/models/{model}", peer_probe.PATH, identity.PATH)
"""Paths at which agents answer GET themselves."""

_RESERVED: Final = [PathTemplate(path) for path in RESERVED_PATHS]
_OTHER_HEADERS: Final = API_KEY_HEADERS | {
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "proxy-authorization",
    "transfer-encoding",
    "upgrade",
    "via",
}
"""Headers that cannot name a model: credentials, which would be logged as a model name, and headers of HTTP itself."""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Name of a header (RFC 9110, section 5.6.2)."""


def compile_routes(catalogue: Catalogue, references: References) -> tuple[Route, ...]:
    """Return the routes of a bundle: custom routes by name, then routes of presets; unoffered routes come last.

    Every problem is added to `references.errors`.
    """
    own: list[tuple[Document, Route]] = []
    for document, route in sorted(catalogue.of(Route), key=lambda entry: entry[1].name):
        known = len(references.errors)
        _check_places(document, route, references)
        _check_shape(document, route, references)
        if len(references.errors) == known:
            own.append((document, replace(route, source=document.source)))
    presets = _presets(catalogue, references)
    _check_overlaps(own, presets, references)
    routes = [route for _, route in own] + presets
    return tuple(sorted(routes, key=lambda route: not route.offered))


def _presets(catalogue: Catalogue, references: References) -> list[Route]:
    """Return the routes of the presets that a bundle includes."""
    documents = catalogue.of(RoutePresets)
    if not documents:
        return [route for name in catalogue.single(RoutePresets).presets for route in preset_routes(name)]
    document, shape = documents[0]
    errors, routes = references.errors, list[Route]()
    for name in shape.models:
        if name not in shape.presets:
            remedy = suggest(name, shape.presets, "add it to `presets`, or remove it")
            errors.append(document.error(("models", name), f"the preset {name} is not included", remedy))
    for index, name in enumerate(shape.presets):
        if name not in PRESETS:
            remedy = suggest(name, PRESETS, f"use one of {', '.join(PRESETS)}")
            errors.append(document.error(("presets", index), f"there is no preset {name}", remedy))
            continue
        model = shape.models.get(name)
        if model is not None and not PRESETS[name].takes_model:
            remedy = "remove it: requests of this API name their model"
            errors.append(document.error(("models", name), f"the preset {name} takes no fixed model", remedy))
            continue
        if model is not None:
            _check_model(document, ("models", name), model, references)
        added = preset_routes(name, model)
        clash = _first_overlap(added, routes)
        if clash is not None:
            problem = f"the preset {name} has the path of another preset: {clash[0].path} ({clash[1].name})"
            errors.append(document.error(("presets", index), problem, "keep one of the two presets"))
            continue
        routes += added
    return routes


def _check_model(document: Document, path: Path, model: str, references: References) -> None:
    if not references.has("ModelVersions", model):
        references.check(document, path, "Model", model)


def _check_places(document: Document, route: Route, references: References) -> None:
    """Check the path, and the places where requests name the model."""
    errors = references.errors
    try:
        template = PathTemplate(route.path)
    except TemplateError as error:
        errors.append(document.error(("path",), f"{error}", "write it as /segment/{parameter}/segment"))
        return
    for reserved in _RESERVED:
        if "GET" in route.methods and template.overlaps(reserved):
            problem = f"matches {reserved.text}, which agents answer themselves"
            errors.append(document.error(("path",), problem, "choose another path"))
    for_object = route.object_id != "" and not route.object_id.startswith("/")
    if not route.model and route.offered and not for_object:
        remedy = "write `model`, such as [{source: json, name: /model}], or `offered: false`"
        errors.append(document.error((), "does not state where requests name the model", remedy))
    headers = set[str]()
    counts = {source: sum(place.source == source for place in route.model) for source in ("path", "form", "fixed")}
    for index, place in enumerate(route.model):
        at = ("model", index, "name")
        if counts.get(place.source, 0) > 1:
            problem = f"two places of source {place.source} name the model"
            errors.append(document.error(("model", index), problem, "keep one of them"))
        match place.source:
            case "path" if place.name not in template.parameters:
                known = ", ".join(template.parameters) or "none"
                problem, remedy = f"the path has no parameter {place.name}", f"its parameters: {known}"
                errors.append(document.error(at, problem, remedy))
            case "json":
                _check_pointer(document, at, place.name, route, references)
            case "form" if route.body != "upload":
                problem = f"a body of kind {route.body} has no form"
                errors.append(document.error(at, problem, "write `body: upload`"))
            case "form":
                _check_body(document, at, route, references)
            case "header" if _TOKEN.fullmatch(place.name) is None:
                errors.append(document.error(at, "is not the name of a header", "write a name such as x-model"))
            case "header" if place.name.lower() in _OTHER_HEADERS:
                errors.append(document.error(at, "is a header with another meaning", "write a name such as x-model"))
            case "header" if place.name.lower() in headers:
                errors.append(
                    document.error(at, f"the header {place.name.lower()} is listed twice", "keep one of them")
                )
            case "header":
                headers.add(place.name.lower())
            case "fixed":
                _check_model(document, at, place.name, references)


def _check_shape(document: Document, route: Route, references: References) -> None:
    """Check pointers, streaming, methods and the object's identifier."""
    errors = references.errors
    for index, pointer in enumerate(route.session):
        _check_pointer(document, ("session", index), pointer, route, references)
    for field, pointers in _pointers(route.usage):
        for index, pointer in enumerate(pointers):
            if pointer or field != "objects":
                _check_syntax(document, ("usage", field, index), pointer, references)
    if route.usage.request:
        _check_pointer(document, ("usage", "request"), route.usage.request, route, references)
    for field, pointers in _pointers(route.cost):
        for index, pointer in enumerate(pointers):
            _check_pointer(document, ("cost", field, index), pointer, route, references)
    for index, pointer in enumerate(route.chosen_by_engine):
        _check_pointer(document, ("chosen_by_engine", index), pointer, route, references)
    if route.stream_field:
        _check_pointer(document, ("stream_field",), route.stream_field, route, references)
        if route.stream in ("none", "websocket"):
            problem = f"is set, and responses of kind {route.stream} have no flag"
            errors.append(document.error(("stream_field",), problem, "write `stream: sse`, or another format"))
    elif route.streams_by_default:
        problem = "is set without a stream_field"
        errors.append(document.error(("streams_by_default",), problem, "write stream_field, or remove it"))
    if route.stream == "websocket" and route.methods != {"GET"}:
        errors.append(document.error(("methods",), "a WebSocket is opened with GET", "write `methods: [GET]`"))
    if route.object_id.startswith("/"):
        _check_syntax(document, ("object_id",), route.object_id, references)
    elif route.object_id.startswith("?"):
        _check_query_parameter(document, ("object_id",), route.object_id, references)
    elif route.object_id and f"{{{route.object_id}}}" not in route.path.split("/"):
        problem = f"the path has no parameter {route.object_id}"
        remedy = "name a path parameter, a query parameter as ?name, or write a JSON pointer"
        errors.append(document.error(("object_id",), problem, remedy))
    elif route.object_id and not route.object_id.startswith("?") and route.model:
        problem = "is set, and the model of a request for an object is that of the object"
        errors.append(document.error(("model",), problem, "remove it, or write object_id as a JSON pointer"))
    if route.client_object.startswith("?"):
        _check_query_parameter(document, ("client_object",), route.client_object, references)
    elif route.client_object:
        _check_pointer(document, ("client_object",), route.client_object, route, references)
    if route.client_object and (route.previous_object or (route.object_id and not route.object_id.startswith("/"))):
        problem = "is set, and the route has another identifier that determines the endpoint"
        errors.append(document.error(("client_object",), problem, "keep one of them"))
    if not route.occupies_slot and route.stream != "websocket":
        problem = "is false, and the route is no WebSocket"
        errors.append(document.error(("occupies_slot",), problem, "write `stream: websocket`, or remove it"))
    for index, pointer in enumerate(route.message_model):
        _check_syntax(document, ("message_model", index), pointer, references)
    if route.message_model and route.stream != "websocket":
        problem = "is set, and the route is no WebSocket"
        errors.append(document.error(("message_model",), problem, "write `stream: websocket`, or remove it"))
    for index, pointer in enumerate(route.foreign_objects):
        _check_pointer(document, ("foreign_objects", index), pointer, route, references)
    if route.previous_object:
        _check_pointer(document, ("previous_object",), route.previous_object, route, references)
        if not route.object_id.startswith("/"):
            problem = "is set, and the route creates no object"
            errors.append(document.error(("previous_object",), problem, "write `object_id`, or remove it"))


def _pointers(fields: CostFields | UsageFields) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield name and pointers of each field that lists pointers."""
    for name in fields.__struct_fields__:
        value = getattr(fields, name)
        if isinstance(value, tuple):
            yield name, value


def _check_pointer(document: Document, path: Path, pointer: str, route: Route, references: References) -> None:
    """Check a JSON pointer into the body of requests."""
    if route.body not in ("json", "upload"):
        problem = f"cannot match: a body of kind {route.body} is not read"
        references.errors.append(document.error(path, problem, "write `body: json`, or remove it"))
    else:
        _check_body(document, path, route, references)
    _check_syntax(document, path, pointer, references)


def _check_body(document: Document, path: Path, route: Route, references: References) -> None:
    """Refuse a place in the body if the requests have no body."""
    if route.methods == {"GET"}:
        remedy = "name another place, such as a query parameter, or write `methods: [POST]`"
        references.errors.append(document.error(path, "cannot match: GET requests have no body", remedy))


def _check_query_parameter(document: Document, path: Path, place: str, references: References) -> None:
    if re.fullmatch(r"\?[^?&=#%+\s]+", place) is None:
        remedy = "write ? and the name of a query parameter, such as ?clientId"
        references.errors.append(document.error(path, f"{place!r} is no query parameter", remedy))


def _check_syntax(document: Document, path: Path, pointer: str, references: References) -> None:
    try:
        if not parse_pointer(pointer):
            raise ValueError("the pointer denotes the whole body")
    except ValueError as error:
        remedy = "write a JSON pointer (RFC 6901), such as /options/model"
        references.errors.append(document.error(path, str(error), remedy))


def _check_overlaps(own: list[tuple[Document, Route]], presets: list[Route], references: References) -> None:
    """Refuse routes that match the same request. A route may replace a route that a preset does not offer."""
    offered = [route for route in presets if route.offered]
    for index, (document, route) in enumerate(own):
        if any(route.name == other.name for other in presets):
            remedy = "choose another name"
            references.errors.append(document.error(("name",), f"a preset has the route {route.name} already", remedy))
        clash = _first_overlap([route], [other for _, other in own[:index]] + offered)
        if clash is not None:
            place = clash[1].source or "a preset"
            problem = f"matches requests of the route {clash[1].name} ({clash[1].path}, of {place})"
            references.errors.append(document.error(("path",), problem, "change one of the two paths, or the methods"))


def _first_overlap(routes: Iterable[Route], others: list[Route]) -> tuple[Route, Route] | None:
    """Return the first pair of routes that match the same request; two routes that are not offered may overlap."""
    for route in routes:
        template, methods = PathTemplate(route.path), set(methods_of(route))
        for other in others:
            related = (route.offered or other.offered) and not methods.isdisjoint(methods_of(other))
            if related and template.overlaps(PathTemplate(other.path)):
                return route, other
    return None

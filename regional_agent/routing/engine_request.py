"""The request as one endpoint receives it: base path, header fields, and the engine's own name of the model.

Only what differs by endpoint is changed, in a copy: a retry at another endpoint starts from the client's request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote_plus

import msgspec

from penstock.routes.route_reader import RouteReader
from regional_agent.http.header_rules import Header
from regional_agent.http.messages import Request
from regional_agent.routing.body_checks import MODEL_STRING, FormCheck
from regional_agent.routing.model_name import MODEL_HEADER, is_json, model_span
from regional_agent.routing.route_fields import can_replace_route_model, names_no_model, replace_route_model

Span = tuple[int, int]

_NOWHERE: Final[Span] = (0, 0)
"""The body does not contain the name."""


class RequestRewrite:
    """How the requests to one endpoint differ from those of clients. Immutable."""

    __slots__ = ("_base_path", "_engine_names", "_set_names", "header_lines", "headers")

    def __init__(self, base_path: str, headers: Sequence[Header], engine_names: Mapping[str, str]) -> None:
        """Create a rewrite.

        Args:
            base_path: prefix of the path; empty for none.
            headers: set in every request, names in lower case; a secret may be among them.
            engine_names: name of each model in the engine, where it is not that of the policy.
        """
        self._base_path = base_path.encode()
        self._engine_names = engine_names
        self.headers = tuple(headers)
        self.header_lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        """The lines of `headers`."""
        self._set_names = frozenset(_canonical(name) for name, _ in headers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestRewrite) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._base_path)

    def _parts(self) -> tuple[bytes, tuple[Header, ...], Mapping[str, str]]:
        return self._base_path, self.headers, self._engine_names

    def target(self, path: str) -> str:
        """The request target of an own request of the agent, such as a health check."""
        return self._base_path.decode() + path

    def engine_name(self, model: str) -> str:
        """The engine's name of a model."""
        return self._engine_names.get(model, model)

    def apply(self, request: Request, model: str) -> Request:
        """The request as the endpoint receives it; its body may still be incomplete.

        Raises:
            ValueError: the name of the model cannot be replaced; `can_rename` is false.
        """
        changed = Request(request)
        changed.whole, changed.body = request.whole, request.body
        name = self._engine_names.get(model)
        if name is not None:
            _rename(changed, request, name)
        changed.target = self._base_path + changed.target
        if self._set_names:
            kept = [header for header in changed.headers if _canonical(header[0]) not in self._set_names]
            _set_headers(changed, kept)
        return changed


NO_REWRITE: Final = RequestRewrite("", (), {})
"""Changes nothing."""


def can_rename(request: Request) -> bool:
    """Whether the name of the model can be replaced: an endpoint with another name for it cannot be used if not."""
    reader = request.reader
    if reader is not None:
        return names_no_model(reader) or can_replace_route_model(request, reader)
    return _span(request) is not None


def _rename(changed: Request, request: Request, name: str) -> None:
    if request.reader is not None:
        _rename_in_route(changed, request, request.reader, name)
        return
    span = _span(request)
    if span is None:
        raise ValueError("the name of the model cannot be replaced")
    start, end = span
    if end:
        written = msgspec.json.encode(name)[1:-1] if is_json(request) else name.encode()
        changed.body = request.body[:start] + written + request.body[end:]
        if request.length is not None:
            changed.length = request.length + len(written) - (end - start)
    changed.target = _with_model(request.target, name)
    if request.header(MODEL_HEADER) is not None:
        named = [(key, name.encode() if key == MODEL_HEADER else value) for key, value in request.headers]
        _set_headers(changed, named)


def _rename_in_route(changed: Request, request: Request, reader: RouteReader, name: str) -> None:
    changed.path_parameters = request.path_parameters
    if not names_no_model(reader) and replace_route_model(changed, reader, name) is None:
        raise ValueError("the name of the model cannot be replaced")


def _span(request: Request) -> Span | None:
    """Start and end of the model's name in the body; None if it cannot be replaced.

    A body that is incomplete has been searched by admission, which refuses what its rest must not contain.
    """
    body = request.body
    if request.upgrade or (request.whole and not body):
        return _NOWHERE
    if is_json(request):
        span = model_span(body)
        if span is None and body and not request.whole and MODEL_STRING.search(body) is None:
            return _NOWHERE
        return span
    form = request.body_check
    if not isinstance(form, FormCheck):
        return _NOWHERE
    scanner = form.scanner
    if scanner.model is None:
        return _NOWHERE if request.whole else None
    return scanner.model_span


def _with_model(target: bytes, name: str) -> bytes:
    """The target with another value of the query parameter `model`, where it has one."""
    path, mark, query = target.partition(b"?")
    if b"model" not in query and b"%" not in query:
        return target
    fields = query.split(b"&")
    for index, field in enumerate(fields):
        key, equals, _ = field.partition(b"=")
        if equals and unquote_plus(key.decode("latin-1")) == "model":
            fields[index] = key + b"=" + quote(name, safe="").encode()
    return path + mark + b"&".join(fields)


def _set_headers(request: Request, headers: list[Header]) -> None:
    if len(headers) != len(request.headers) or headers != request.headers:
        request.headers = headers
        request.upstream_lines = b""


def _canonical(name: bytes) -> bytes:
    """CGI and WSGI servers do not distinguish `_` from `-`."""
    return name.replace(b"_", b"-")

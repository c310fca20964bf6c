"""The request as one endpoint receives it: base path, header fields, and the engine's own name of the model.

The changes for an endpoint are made in a copy, since a retry at another endpoint starts from the client's request.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote_plus

import msgspec

from penstock.http.header_rules import Header
from penstock.routes.path_template import PathTemplate
from penstock.routes.route import ModelSource
from regional_agent.http.messages import Request
from regional_agent.requests.body_checks import FormCheck
from regional_agent.requests.model_name import MODEL_HEADER, is_json, model_span
from regional_agent.requests.route_fields import has_json

Span = tuple[int, int]

_NOWHERE: Final[Span] = (0, 0)
"""The body does not contain the name."""


_OPENAI_HEADERS: Final = frozenset({MODEL_HEADER})
_OPENAI_PARAMETERS: Final = frozenset({"model"})
"""Headers and query parameters in which requests with OpenAI's fields name their model, beside the body."""


class RequestRewrite:
    """The changes that one endpoint requires to the requests of clients. Immutable."""

    __slots__ = ("_engine_names", "_set_names", "base_path", "header_lines", "headers")

    def __init__(self, base_path: str, headers: Sequence[Header], engine_names: Mapping[str, str]) -> None:
        """Create a rewrite.

        Args:
            base_path: prefix of the path; empty for none.
            headers: headers set in every request, with names in lower case; they may contain a secret.
            engine_names: the engine's name of each model that has another name in the policy.
        """
        self.base_path = base_path.encode()
        """Prefix of all paths of the endpoint; empty for none."""
        self._engine_names = engine_names
        self.headers = tuple(headers)
        self.header_lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        """The lines of `headers`."""
        self._set_names = frozenset(_canonical(name) for name, _ in headers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestRewrite) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self.base_path)

    def _parts(self) -> tuple[bytes, tuple[Header, ...], Mapping[str, str]]:
        return self.base_path, self.headers, self._engine_names

    def target(self, path: str) -> str:
        """The request target of a request that the agent itself creates, such as a health check."""
        return self.base_path.decode() + path

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
        changed.target = self.base_path + changed.target
        if self._set_names:
            kept = [header for header in changed.headers if _canonical(header[0]) not in self._set_names]
            _set_headers(changed, kept)
        return changed


NO_REWRITE: Final = RequestRewrite("", (), {})
"""The rewrite without changes."""


def can_rename(request: Request) -> bool:
    """Whether the model name can be replaced; if not, endpoints with another name for the model cannot be used."""
    if request.reader is None:
        return _span(request) is not None
    return _rename_in_body(Request(request), request, "m")


def _rename(changed: Request, request: Request, name: str) -> None:
    """Replace the name in every place where a request of the route can name its model."""
    if not _rename_in_body(changed, request, name):
        raise ValueError("the name of the model cannot be replaced")
    headers, parameters = _OPENAI_HEADERS, _OPENAI_PARAMETERS
    reader = request.reader
    if reader is not None:
        headers = frozenset(header.lower().encode() for header in reader.by_source[ModelSource.HEADER])
        parameters = frozenset(reader.by_source[ModelSource.QUERY])
        path = request.path
        for parameter in reader.by_source[ModelSource.PATH]:
            path = PathTemplate(reader.route.path).replace(path, parameter, name)
        changed.target = path + changed.target[len(request.path) :]
    changed.target = _with_model(changed.target, parameters, name)
    if not headers.isdisjoint(request.by_name or request.index()):
        named = [(key, name.encode() if key in headers else value) for key, value in request.headers]
        _set_headers(changed, named)


def _rename_in_body(changed: Request, request: Request, name: str) -> bool:
    """Replace the name in the body; False if it cannot be replaced."""
    reader = request.reader
    if reader is not None and has_json(request, reader):
        if request.upgrade or not reader.model_pointers:
            return True
        body = reader.replace_in_body(request.body, name) if request.whole else None
        if body is None:
            return False
        changed.body, changed.length = body, len(body)
        return True
    span = _span(request) if reader is None else _form_span(request)
    if span is None:
        return False
    start, end = span
    if end:
        written = msgspec.json.encode(name)[1:-1] if reader is None and is_json(request) else name.encode()
        changed.body = request.body[:start] + written + request.body[end:]
        if request.length is not None:
            changed.length = request.length + len(written) - (end - start)
    return True


def _span(request: Request) -> Span | None:
    """Start and end of the model's name in the body; None if it cannot be replaced.

    The check of a form refuses a further name.
    """
    if request.upgrade or (request.whole and not request.body):
        return _NOWHERE
    return model_span(request.body) if is_json(request) else _form_span(request)


def _form_span(request: Request) -> Span | None:
    """Start and end of the model's name in a form; None if it cannot be replaced."""
    form = request.body_check
    if request.upgrade or not isinstance(form, FormCheck):
        return _NOWHERE
    scanner = form.scanner
    if scanner.model is None:
        return _NOWHERE if request.whole else None
    return scanner.model_span


def _with_model(target: bytes, parameters: Container[str], name: str) -> bytes:
    """The request target with `name` as the value of the query parameters that name the model, if it has any."""
    path, mark, query = target.partition(b"?")
    if not mark:
        return target
    fields = query.split(b"&")
    for index, field in enumerate(fields):
        key, equals, _ = field.partition(b"=")
        if equals and unquote_plus(key.decode("latin-1")) in parameters:
            fields[index] = key + b"=" + quote(name, safe="").encode()
    return path + mark + b"&".join(fields)


def _set_headers(request: Request, headers: list[Header]) -> None:
    if len(headers) != len(request.headers) or headers != request.headers:
        request.headers = headers
        request.upstream_lines = b""


def _canonical(name: bytes) -> bytes:
    """The header name with `-` for `_`, since CGI and WSGI servers do not distinguish them."""
    return name.replace(b"_", b"-")

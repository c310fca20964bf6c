"""The paths of the job APIs, and the operations that requests at them ask for."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request

FILES: Final = b"/v1/files"
MESSAGE_BATCHES: Final = b"/v1/messages/batches"
_PREFIXES: Final = (FILES, b"/v1/uploads", b"/v1/batches", b"/v1/jobs", b"/v1/webhooks", MESSAGE_BATCHES)
_PATH: Final = re.compile(
    rb"/v1/(files|uploads|batches|jobs|webhooks|messages/batches)"
    rb"(?:/([^/]{1,128})(?:/(content|cancel|result|results|events|urls|parts|complete))?)?"
)
_PART: Final = re.compile(rb"/v1/uploads/[^/]{1,128}/parts")
_COMPLETION: Final = re.compile(rb"/v1/uploads/[^/]{1,128}/complete")
_METHODS: Final[dict[tuple[bytes, bool, bytes], dict[bytes, str]]] = {
    (b"files", False, b""): {b"POST": "upload", b"GET": "files"},
    (b"files", True, b""): {b"GET": "file", b"DELETE": "delete"},
    (b"files", True, b"content"): {b"GET": "content", b"HEAD": "content"},
    (b"files", True, b"urls"): {b"GET": "urls"},
    (b"uploads", False, b""): {b"POST": "create upload"},
    (b"uploads", True, b""): {b"GET": "show upload"},
    (b"uploads", True, b"parts"): {b"POST": "upload part"},
    (b"uploads", True, b"urls"): {b"POST": "upload urls"},
    (b"uploads", True, b"complete"): {b"POST": "complete upload"},
    (b"uploads", True, b"cancel"): {b"POST": "cancel upload"},
    (b"batches", False, b""): {b"POST": "create", b"GET": "batches"},
    (b"batches", True, b""): {b"GET": "batch"},
    (b"batches", True, b"cancel"): {b"POST": "cancel"},
    (b"jobs", False, b""): {b"GET": "jobs"},
    (b"jobs", True, b""): {b"GET": "job", b"DELETE": "delete job"},
    (b"jobs", True, b"result"): {b"GET": "result", b"HEAD": "result"},
    (b"jobs", True, b"urls"): {b"GET": "result urls"},
    (b"jobs", True, b"cancel"): {b"POST": "cancel job"},
    (b"jobs", True, b"events"): {b"GET": "events"},
    (b"webhooks", True, b""): {b"GET": "webhook secret"},
    (b"messages/batches", False, b""): {b"POST": "create messages", b"GET": "message batches"},
    (b"messages/batches", True, b""): {b"GET": "message batch", b"DELETE": "delete messages"},
    (b"messages/batches", True, b"cancel"): {b"POST": "cancel messages"},
    (b"messages/batches", True, b"results"): {b"GET": "message results", b"HEAD": "message results"},
}
"""Operations by collection, whether an item is named, action and method."""


def _names(collection: bytes) -> frozenset[str]:
    return frozenset(name for key, methods in _METHODS.items() if key[0] == collection for name in methods.values())


OF_ANTHROPIC: Final = _names(b"messages/batches")
OF_UPLOADS: Final = _names(b"uploads")


class Operation(NamedTuple):
    """What a request asks for."""

    name: str
    item: str
    """Identifier of the file, upload or job; empty for the collection."""


def is_path(path: bytes) -> bool:
    """Whether a path is one of the job APIs."""
    return path.startswith(_PREFIXES) and _PATH.fullmatch(path) is not None


def is_form(request: Request) -> bool:
    """Whether a request has a form whose file is received as it arrives."""
    return request.method == b"POST" and (request.path == FILES or _PART.fullmatch(request.path) is not None)


def is_large_json(request: Request) -> bool:
    """Whether a request has a JSON body that may be large."""
    path = request.path
    return request.method == b"POST" and (path == MESSAGE_BATCHES or _COMPLETION.fullmatch(path) is not None)


def operation_of(request: Request) -> Operation | Refusal:
    """Return what a request at a path of the job APIs asks for."""
    found = _PATH.fullmatch(request.path)
    assert found is not None
    methods = _METHODS.get((found[1], found[2] is not None, found[3] or b""))
    if methods is None:
        return Refusal(Reason.NOT_FOUND, f"nothing is served at {request.path.decode('latin-1')}")
    name = methods.get(request.method)
    if name is None:
        allow = tuple(sorted(method.decode() for method in methods))
        return Refusal(Reason.METHOD_NOT_ALLOWED, "the path has no such method", allow=allow)
    return Operation(name, unquote((found[2] or b"").decode("latin-1")))

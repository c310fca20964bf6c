"""JSON bodies of requests: a dependency that reads, checks and validates a body after the caller was authorised.

FastAPI's own body parameters are not used: FastAPI reads and parses the body before any dependency, parses and
validates on the event loop, and reports every error of the body.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel

from control_plane.api.body_decoding import MAX_SHOWN_CHARS, BadBody, decode_body
from control_plane.api.responses import JSON, Problem
from control_plane.api.serving.api_threads import in_api_thread

MAX_BODY_BYTES = 16 * 1024
"""Maximum size (bytes) of a body, unless the route permits more."""

MAX_BODY = "x-max-body-bytes"
"""Extension of an operation of the OpenAPI description: the maximum size (bytes) of the body."""

INLINE_BYTES = 4 * 1024
"""Bodies up to this size (bytes) are decoded on the event loop, which takes less than a millisecond."""

M = TypeVar("M", bound=BaseModel)


class JsonBody(Generic[M]):
    """The JSON body of a route: `body: Annotated[Model, Depends(JsonBody(Model).read)]`.

    Args:
        model: the model of the body.
        max_bytes: maximum size of the body, in bytes.
    """

    def __init__(self, model: type[M], max_bytes: int = MAX_BODY_BYTES) -> None:
        self.model = model
        self.max_bytes = max_bytes

    async def read(self, request: Request) -> M:
        """Return the validated body of a request.

        Raises:
            Problem: 415, the content type is not JSON; 400 and 422, the body is malformed.
        """
        body = await request.body()
        require_json(request, body)
        decode = partial(decode_body, body, self.model)
        try:
            return decode() if len(body) <= INLINE_BYTES else await in_api_thread(decode)
        except BadBody as bad:
            raise Problem(bad.status, str(bad), errors=bad.errors) from None


def require_json(request: Request, body: bytes) -> None:
    """Raise 415 for a body whose content type is not JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and not (kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))):
        sent = f"the content type is {kind[:MAX_SHOWN_CHARS]}" if kind else "the request has no content type"
        raise Problem(415, f"{sent}: send JSON, with `content-type: {JSON}`")


def json_body_of(dependant: Dependant) -> JsonBody[Any] | None:
    """Return the JSON body that a route reads, if any."""
    for dependency in dependant.dependencies:
        owner = getattr(dependency.call, "__self__", None)
        if isinstance(owner, JsonBody):
            return owner
    return None

"""Requests whose responses depend on the request alone, so that identical ones in flight may share one engine run."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.routes.route import BodyKind, Route, StreamKind

MAX_BODY_BYTES: Final = 64 * 1024
"""Maximum size (bytes) of a body that is compared."""


def canonical_body(route: Route, body: bytes | bytearray) -> bytes | None:
    """The body of a deterministic request, equal for equal requests; None for another request.

    A request is deterministic if nothing is generated (embeddings, scores), if its temperature is 0, or if it names a
    seed. Streams are not shared.
    """
    if route.body is not BodyKind.JSON or route.stream is StreamKind.WEBSOCKET or len(body) > MAX_BODY_BYTES:
        return None
    if route.object_id or route.previous_object or route.client_object:
        return None
    try:
        fields: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("stream"):
        return None
    temperature = fields.get("temperature")
    is_zero = isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0
    if route.cost.generates and not is_zero and not isinstance(fields.get("seed"), int):
        return None
    return msgspec.json.encode(fields, order="sorted")

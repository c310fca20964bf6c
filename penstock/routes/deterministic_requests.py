"""Requests whose responses depend on the request alone, so that identical ones may share one engine run or response."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from penstock.routes.duplicate_keys import folded
from penstock.routes.route import BodyKind, Route, StreamKind

MAX_BODY_BYTES: Final = 64 * 1024
"""Maximum size (bytes) of a body that is compared."""

_RANDOM_SEED: Final = 0xFFFF_FFFF
"""llama.cpp draws a seed for this number; it, vLLM and AUTOMATIC1111 do for -1."""


class DeterministicRequest(NamedTuple):
    """A request whose response depends on the request alone."""

    body: bytes
    """The body, equal for equal requests: its fields in any order, what is in them in the order of the client."""
    is_stream: bool
    """Whether the body asks for a stream."""


def deterministic_request(route: Route, body: bytes | bytearray) -> DeterministicRequest | None:
    """Return a request with `body` if it is deterministic.

    A request is deterministic if nothing is generated (embeddings, scores), if its temperature is 0, or if it names a
    seed. A body in which two parsers could read different values of a field equals no other.
    """
    if route.body is not BodyKind.JSON or route.stream is StreamKind.WEBSOCKET or len(body) > MAX_BODY_BYTES:
        return None
    if route.object_id or route.previous_object or route.client_object:
        return None
    try:
        fields: Any = json.loads(body, object_pairs_hook=_object, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    temperature = fields.get("temperature")
    is_zero = isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0
    seed = fields.get("seed")
    has_seed = type(seed) is int and seed >= 0 and seed != _RANDOM_SEED
    if route.cost.generates and not is_zero and not has_seed:
        return None
    # Within a field the order counts: engines write tools and schemas into the prompt, and grammars follow their order.
    canonical = json.dumps({name: fields[name] for name in sorted(fields)}, separators=(",", ":")).encode()
    return DeterministicRequest(canonical, bool(fields.get("stream")))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({folded(name) for name, _ in pairs}) != len(pairs):
        raise ValueError("a key is repeated")
    return dict(pairs)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")

"""API keys of clients in a request's head: where they may be sent, and their removal from everywhere else.

Engines receive the target and most headers as clients send them. A client that repeats its key there, or sends one in
the query as some APIs permit, would give it to an engine and to the engine's logs.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from penstock.http.header_rules import (
    CREDENTIAL_HEADERS,
    DECIDING_PREFIXES,
    HOP_BY_HOP,
    NOT_FOR_ENGINES,
    SINGLE_HEADERS,
)
from regional_agent.http.messages import Request

SUBPROTOCOL_PREFIX: Final = b"openai-insecure-api-key."
"""Start of the subprotocol in which a WebSocket offers its key."""

SUBPROTOCOL_HEADER: Final = b"sec-websocket-protocol"

QUERY_PARAMETERS: Final = frozenset({b"access-token", *(CREDENTIAL_HEADERS - {b"authorization"})})
"""Query parameters with a key, whatever its value: `access_token` (RFC 6750, section 2.3), and the names of headers.
In lower case, with `-` for `_`."""

KEPT_HEADERS: Final = NOT_FOR_ENGINES.union(HOP_BY_HOP, SINGLE_HEADERS)
"""Headers that stay whatever they contain, as do those with a prefix of DECIDING_PREFIXES: engines do not receive
them, or decisions depend on them. Otherwise a client could remove its address or Content-Length by a key of that text.
"""

MIN_KEY_BYTES: Final = 8
"""Minimum length of a key that is searched for: a shorter one could occur by chance."""

_SEPARATOR: Final = re.compile(b"([&;])")


def offered_subprotocols(request: Request) -> list[bytes]:
    """Return the subprotocols that a request offers, keys included."""
    if request.header(SUBPROTOCOL_HEADER) is None:
        return []
    return [each for value in request.every(SUBPROTOCOL_HEADER) for part in value.split(b",") if (each := part.strip())]


def is_key(subprotocol: bytes) -> bool:
    """Whether a subprotocol is a key."""
    return subprotocol[: len(SUBPROTOCOL_PREFIX)].lower() == SUBPROTOCOL_PREFIX


def offered_keys(request: Request) -> list[bytes]:
    """Return the API keys among the subprotocols that a request offers."""
    return [each[len(SUBPROTOCOL_PREFIX) :] for each in offered_subprotocols(request) if is_key(each)]


def remove_repeated_keys(request: Request, location_header: bytes) -> None:
    """Remove keys from the query, and the headers that repeat a key of the headers that are for keys.

    Call when the headers are indexed, before the path is set.

    Args:
        location_header: name of the header with a client's location, which stays; empty if none is configured.
    """
    by_name = request.by_name
    keys = [value.rpartition(b" ")[2] for name in CREDENTIAL_HEADERS if (value := by_name.get(name)) is not None]
    if SUBPROTOCOL_HEADER in by_name:
        keys += offered_keys(request)
    keys = [key for key in keys if len(key) >= MIN_KEY_BYTES]
    if request.target.find(b"?") >= 0:
        request.target = _without_keys(request.target, keys)
    for key in keys:
        if len([value for _, value in request.headers if value.find(key) >= 0]) > 1:
            headers = [
                each
                for each in request.headers
                if each[1].find(key) < 0 or each[0] == location_header or _stays(each[0].replace(b"_", b"-"))
            ]
            if len(headers) != len(request.headers):
                request.headers = headers
                request.index()


def _without_keys(target: bytes, keys: list[bytes]) -> bytes:
    path, _, query = target.partition(b"?")
    parts = _SEPARATOR.split(query)
    kept = [at for at in range(0, len(parts), 2) if not _is_key_parameter(parts[at], keys)]
    if 2 * len(kept) > len(parts):
        return target
    # Each separator belongs to the parameter after it.
    rest = b"".join([(parts[at - 1] if place else b"") + parts[at] for place, at in enumerate(kept)])
    return path + b"?" + rest if rest else path


def _is_key_parameter(parameter: bytes, keys: list[bytes]) -> bool:
    decoded = unquote_to_bytes(parameter)
    name = decoded.partition(b"=")[0].lower().replace(b"_", b"-")
    return name in QUERY_PARAMETERS or any(decoded.find(key) >= 0 for key in keys)


def _stays(name: bytes) -> bool:
    return name in KEPT_HEADERS or name.startswith(DECIDING_PREFIXES)

"""Cross-origin requests of browsers (https://fetch.spec.whatwg.org/#http-cors-protocol), by the policy's origins.

The policy decides, and not the engine: engines' own headers of the protocol do not pass, and engines do not receive the
origin of a permitted request. Responses permit no credentials, since clients send keys in headers of their own.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from regional_agent.http.messages import PERMITTED_LINE, Request

ANY_ORIGIN: Final = "*"

MAX_HEADERS_BYTES: Final = 4096
"""Maximum size (bytes) of the list of headers that a preflight request asks for."""

PREFLIGHT_AGE_S: Final = 600
"""Time (s) for which a browser may reuse the response to a preflight request; a changed policy takes effect later."""

_VARIES: Final = b"vary: origin\r\n"
_ORIGIN: Final = b"origin"
_WANTED_METHOD: Final = b"access-control-request-method"
_WANTED_HEADERS: Final = b"access-control-request-headers"
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_METHOD: Final = re.compile(_TOKEN)
_NAMES: Final = re.compile(_TOKEN + rb"(?:[ \t]*,[ \t]*" + _TOKEN + rb")*")


def cors_lines(request: Request, origins: Container[str]) -> bytes:
    """Return the header lines by which a page of the request's origin may read a response.

    A page of another origin may not, and caches may not give it the response to a permitted one, nor the reverse.

    Args:
        origins: the origins that the policy permits; `*` permits every origin.
    """
    sent = request.every(_ORIGIN)
    varies = b"" if not sent or ANY_ORIGIN in origins else _VARIES
    if len(sent) != 1 or (varies and sent[0].decode("latin-1") not in origins):
        return varies
    permitted = sent[0] if varies else b"*"
    return b"%b%b\r\n%baccess-control-expose-headers: *\r\n" % (PERMITTED_LINE, permitted, varies)


def preflight_lines(request: Request) -> list[bytes] | None:
    """Return the header lines of the response to a preflight request, without `cors_lines`; None for other requests.

    Every method and header is permitted: the request itself is refused if the fleet does not offer it, and the page can
    then read the reason.
    """
    method = request.header(_WANTED_METHOD) or b""
    if request.method != b"OPTIONS" or not _METHOD.fullmatch(method):
        return None
    lines = [b"access-control-allow-methods: %b\r\n" % method, b"access-control-max-age: %d\r\n" % PREFLIGHT_AGE_S]
    names = b", ".join(request.every(_WANTED_HEADERS))
    if len(names) <= MAX_HEADERS_BYTES and _NAMES.fullmatch(names):
        lines.append(b"access-control-allow-headers: %b\r\n" % names)
    return lines

"""The WebSocket handshake of a client: its subprotocols, one of which may be an API key.

Browsers cannot set the Authorization header of a WebSocket. The clients of OpenAI's Realtime API send the key among the
subprotocols instead: `realtime, openai-insecure-api-key.KEY`. The server has to select one of the subprotocols that the
client offered, or browsers close the connection (https://websockets.spec.whatwg.org/, RFC 6455, section 4.1).
"""

from __future__ import annotations

from typing import Final

from regional_agent.http.headers.header_rules import Header
from regional_agent.http.messages import Request

KEY_PREFIX: Final = b"openai-insecure-api-key."

_PROTOCOL: Final = b"sec-websocket-protocol"
_EXTENSIONS: Final = b"sec-websocket-extensions"


def offered_keys(request: Request) -> list[bytes]:
    """Return the API keys among the subprotocols that a request offers."""
    return [each[len(KEY_PREFIX) :] for each in _offered(request) if _is_key(each)]


def handshake_lines(request: Request) -> bytes:
    """Return the header lines of a handshake for an engine or a peer: the subprotocols without keys, and extensions.

    No extension is offered on a route whose messages the agent reads: it does not decompress them.
    """
    lines = b""
    protocols = [each for each in _offered(request) if not _is_key(each)]
    if protocols:
        lines = b"%b: %b\r\n" % (_PROTOCOL, b", ".join(protocols))
    if request.route is None or not request.route.message_model:
        lines += b"".join([b"%b: %b\r\n" % (_EXTENSIONS, each) for each in request.every(_EXTENSIONS)])
    return lines


def selected_line(request: Request, headers: list[Header]) -> bytes:
    """Return the header line that selects a subprotocol in place of a server that selected none; empty if not needed.

    Engines that know no subprotocols select none, and a browser that sent a key has offered some.
    """
    if any(name == _PROTOCOL for name, _ in headers) or not offered_keys(request):
        return b""
    protocols = [each for each in _offered(request) if not _is_key(each)]
    return b"%b: %b\r\n" % (_PROTOCOL, protocols[0]) if protocols else b""


def _offered(request: Request) -> list[bytes]:
    if request.header(_PROTOCOL) is None:
        return []
    return [each for value in request.every(_PROTOCOL) for part in value.split(b",") if (each := part.strip())]


def _is_key(protocol: bytes) -> bool:
    return protocol[: len(KEY_PREFIX)].lower() == KEY_PREFIX

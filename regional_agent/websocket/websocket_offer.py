"""The WebSocket handshake of a client: its subprotocols, one of which may be an API key.

Browsers cannot set the Authorization header of a WebSocket. The clients of OpenAI's Realtime API send the key among the
subprotocols instead: `realtime, openai-insecure-api-key.KEY`. The server has to select one of the subprotocols that the
client offered, or browsers close the connection (https://websockets.spec.whatwg.org/, RFC 6455, section 4.1).
"""

from __future__ import annotations

from typing import Final

from penstock.http.header_rules import Header
from regional_agent.http.headers.client_keys import SUBPROTOCOL_HEADER, is_key, offered_keys, offered_subprotocols
from regional_agent.http.messages import Request

_EXTENSIONS: Final = b"sec-websocket-extensions"


def handshake_lines(request: Request) -> bytes:
    """Return the header lines of a handshake for an engine or a peer: the subprotocols without keys, and extensions.

    No extension is offered on a route whose messages the agent reads: it does not decompress them.
    """
    lines = b""
    protocols = [each for each in offered_subprotocols(request) if not is_key(each)]
    if protocols:
        lines = b"%b: %b\r\n" % (SUBPROTOCOL_HEADER, b", ".join(protocols))
    if request.route is None or not request.route.message_model:
        lines += b"".join([b"%b: %b\r\n" % (_EXTENSIONS, each) for each in request.every(_EXTENSIONS)])
    return lines


def selected_line(request: Request, headers: list[Header]) -> bytes:
    """Return the header line that selects a subprotocol in place of a server that selected none; empty if not needed.

    Engines that know no subprotocols select none, and a browser that sent a key has offered some.
    """
    if any(name == SUBPROTOCOL_HEADER for name, _ in headers) or not offered_keys(request):
        return b""
    protocols = [each for each in offered_subprotocols(request) if not is_key(each)]
    return b"%b: %b\r\n" % (SUBPROTOCOL_HEADER, protocols[0]) if protocols else b""

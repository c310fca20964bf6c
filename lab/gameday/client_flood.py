"""Hostile clients: slow connections that never complete a request, and requests that are refused immediately."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from lab.demo.findings import Measured
from lab.gameday.workers import Workers

SLOW_CONNECTIONS = 300
"""Number of concurrent slow connections. A connection that the agent closes is replaced."""

BYTE_EVERY_S = 1.0

TIMEOUT_S = 2.0

_BODY = b'{"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "x"}]}'
_REFUSED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer unknown\r\ncontent-length: %d\r\n\r\n%s"
)


class ClientFlood:
    """Two threads of hostile clients: one for slow connections, one for refused requests.

    Args:
        host: address of the agent.
        port: port of the agent's traffic listener.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._most_slow = self._refused = 0
        self._workers = Workers(self._drip, self._send_refused)

    def stop(self) -> Measured:
        """Stop the threads and close every connection; return what the agent was exposed to."""
        self._workers.stop()
        says = f"up to {self._most_slow} slow connections at once, and {self._refused} requests that were refused"
        return Measured(min(self._most_slow, self._refused), says)

    def _drip(self, stopped: threading.Event) -> None:
        connections: list[socket.socket] = []
        try:
            while not stopped.is_set():
                connections = [connection for connection in connections if _sent(connection, b"x")]
                while len(connections) < SLOW_CONNECTIONS and not stopped.is_set():
                    connection = socket.create_connection(self._address, TIMEOUT_S)
                    connections.append(connection)
                    _sent(connection, b"POST /v1/chat/completions HTTP/1.1\r\nx-slow: ")
                self._most_slow = max(self._most_slow, len(connections))
                stopped.wait(BYTE_EVERY_S)
        except OSError:
            # The agent accepts no more connections; the open connections stay open until `stop`.
            stopped.wait()
        finally:
            for connection in connections:
                connection.close()

    def _send_refused(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            with suppress(OSError), socket.create_connection(self._address, TIMEOUT_S) as connection:
                while not stopped.is_set():
                    connection.sendall(_REFUSED % (len(_BODY), _BODY))
                    answer = connection.recv(65_536)
                    if not answer:
                        break
                    self._refused += answer.startswith(b"HTTP/1.1 4")


def _sent(connection: socket.socket, data: bytes) -> bool:
    try:
        connection.sendall(data)
    except OSError:
        connection.close()
        return False
    return True

"""The wake webhook of a game day: starts engines after a cold start, fails, or never answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from adapters.servers.free_ports import LOOPBACK

MAX_ORDER_BYTES = 64 * 1024


class Conduct(StrEnum):
    """What the webhook does with the orders of a region."""

    STARTS = "starts"
    """Accepts the order, and starts the endpoint after the cold start; answers 409 where the region has none."""
    FAILS = "fails"
    """Answers 500."""
    HANGS = "hangs"
    """Never answers."""


class Order(NamedTuple):
    """One order that the webhook received."""

    at: float
    """Time (s) of `time.monotonic`."""
    action: str
    region: str
    endpoint: str
    """Empty if the region has no endpoint of the model and asks for one."""


class WakeWebhook:
    """A webhook that listens from now until `close`."""

    def __init__(self, conducts: Mapping[str, Conduct], cold_start_s: float, start: Callable[[str], None]) -> None:
        """Begin to listen.

        Args:
            conducts: what happens to the orders of each region; those of all others start endpoints.
            cold_start_s: time (s) from the order until the endpoint serves.
            start: makes the endpoint of this name serve.
        """
        self._conducts, self._cold_start_s, self._start = conducts, cold_start_s, start
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._orders: list[Order] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("content-length", 0)), MAX_ORDER_BYTES)
                status = webhook._received(json.loads(self.rfile.read(length)))
                # The agent may have closed the connection after its timeout.
                with suppress(OSError):
                    self.send_response(status)
                    self.send_header("content-length", "0")
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: the report has the orders."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.daemon_threads, self._server.block_on_close = True, False
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """URL of the webhook."""
        return f"http://{LOOPBACK}:{self._server.server_address[1]}/wake"

    def orders(self) -> list[Order]:
        """The orders so far, in order of arrival."""
        with self._lock:
            return list(self._orders)

    def close(self) -> None:
        """Stop listening, and end the orders that hang."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def _received(self, order: Mapping[str, str | None]) -> int:
        """Record an order; return the status of the answer."""
        region, endpoint = order["region"] or "", order["endpoint"] or ""
        with self._lock:
            self._orders.append(Order(time.monotonic(), order["action"] or "", region, endpoint))
        conduct = self._conducts.get(region, Conduct.STARTS)
        if conduct is Conduct.HANGS:
            self._closing.wait()
        if conduct is not Conduct.STARTS:
            return 500
        if not endpoint:
            return 409
        timer = threading.Timer(self._cold_start_s, self._start, (endpoint,))
        timer.daemon = True
        timer.start()
        return 202

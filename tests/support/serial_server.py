"""A model server that runs one request at a time, as many image and video servers do: a real process.

Requests to `/` other than GET take until the test writes a line to the process. GET requests are answered at once, if
no such request runs. Under HTTP/1.1 the server reads a connection until it closes before it accepts the next one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from regional_agent.upstream.address import Address

_PROGRAM = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = sys.argv[1]

    def do_GET(self):
        self.answer(b"ok")

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        sys.stdin.readline()
        self.answer(b'{"choices": []}')

    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

class Server(http.server.HTTPServer):
    def handle_error(self, request, client_address):
        pass

server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class SerialServer:
    """A running server."""

    def __init__(self, popen: subprocess.Popen[str], address: Address) -> None:
        self.popen = popen
        self.address = address

    def finish_request(self) -> None:
        """End the running request, or the next one."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()


@contextmanager
def serial_server(protocol: str = "HTTP/1.0") -> Iterator[SerialServer]:
    """Run a server on a free port until the block ends. `protocol`: HTTP/1.0 closes each connection."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, protocol], stdin=pipe, stdout=pipe, text=True) as popen:
        try:
            assert popen.stdout is not None
            yield SerialServer(popen, Address("127.0.0.1", int(popen.stdout.readline())))
        finally:
            popen.kill()

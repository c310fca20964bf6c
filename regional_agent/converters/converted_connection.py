"""The connection of an exchange to a converter, which operates the engine, in place of one to the engine itself.
For a permitted file, the connection is one to the engine.

The exchange holds the slot of the endpoint until the workflow ends, applies its time limits, and closes the connection
when the client leaves, as for any other request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import parse_qs

import structlog

from penstock.converters.comfyui import ResultForm
from penstock.jobs.response_progress import interim_head
from regional_agent.converters.comfyui_engine import Engine
from regional_agent.converters.comfyui_file import refusal_of_file
from regional_agent.converters.comfyui_run import ComfyUiRun, ConvertedResponse
from regional_agent.http.messages import STATUS_LINES, Request
from regional_agent.routing.attempt import Attempt
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_pool import UpstreamPool

REMOVE_TIMEOUT_S: Final = 15.0
"""Maximum time (s) of the removal of a workflow whose client has left."""

PIECE_BYTES: Final = 256 * 1024
"""Bytes of a response that are sent at once."""

_NOT_PASSED: Final = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"origin",
        b"transfer-encoding",
    }
)
"""Header fields of the client's request that the converter's own requests do not have."""

log = structlog.get_logger()

_removals: set[asyncio.Task[None]] = set()
"""Removals in progress: the event loop itself holds no reference to tasks."""


def is_converted(request: Request, attempt: Attempt) -> bool:
    """Whether the agent operates the engine of an attempt for the client."""
    route = request.route
    return route is not None and route.converter != "" and not attempt.from_peer


async def open_converted(
    pool: UpstreamPool, attempt: Attempt, request: Request, connect_timeout_s: float | None
) -> UpstreamConnection:
    """Return a connection to the converter of an attempt's endpoint; its requests to the engine use `pool`.

    Raises:
        ConnectFailed: the endpoint of a permitted file is unreachable.
    """
    refusal: ConvertedResponse | None = None
    if request.route is not None and request.route.converter == "comfyui-file":
        engine = Engine(pool, attempt.address, attempt.base_path.decode("latin-1"), _fields(attempt.target_lines))
        refusal = await refusal_of_file(engine, request.target)
        if refusal is None:
            return pool.take(attempt.address) or await pool.connect(attempt.address, connect_timeout_s)
    connection = UpstreamConnection(_NoPool(), pool.batcher, attempt.address)
    connection.host_line = pool.host_line(attempt.address)
    connection.connection_made(_ConverterTransport(pool, attempt, connection, refusal))
    return connection


class _NoPool:
    """The owner of connections that are not used again."""

    def release(self, connection: UpstreamConnection) -> None:
        connection.abort()

    def discard(self, connection: UpstreamConnection) -> None: ...


class _ConverterTransport(asyncio.Transport):
    """The transport of an upstream connection whose server is a converter. One request."""

    def __init__(
        self, pool: UpstreamPool, attempt: Attempt, connection: UpstreamConnection, refusal: ConvertedResponse | None
    ) -> None:
        super().__init__()
        self._refusal = refusal
        self._pool = pool
        self._address = attempt.address
        self._base_path = attempt.base_path.decode("latin-1")
        self._connection = connection
        self._received = bytearray()
        self._run: ComfyUiRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = self._is_paused = False
        self._unsent = memoryview(b"")
        """The rest of the response: the slot is occupied, so that slow clients hold a bounded number of responses."""

    def write(self, data: Any) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if self._task is not None or end < 0:
            return
        first, _, lines = bytes(self._received[:end]).partition(b"\r\n")
        headers = _fields(lines)
        if len(self._received) - end - 4 < int(dict(headers).get(b"content-length", b"0")):
            return
        body = bytes(memoryview(self._received)[end + 4 :])
        if self._refusal is not None:
            self._respond(self._refusal, with_body=not first.startswith(b"HEAD "))
            return
        passed = tuple(header for header in headers if header[0] not in _NOT_PASSED)
        engine = Engine(self._pool, self._address, self._base_path, passed)
        self._run = ComfyUiRun(engine, body, _form_of(first), self._report)
        self._received.clear()
        self._task = asyncio.create_task(self._answer(self._run), name="workflow")

    async def _answer(self, run: ComfyUiRun) -> None:
        try:
            response = await run.run()
        except Exception:
            log.exception("a workflow failed", address=str(self._address))
            response = ConvertedResponse(500, b"application/json", b"{}")
        self._respond(response)

    def _report(self, progress: float) -> None:
        if not self._is_closed:
            self._connection.data_received(interim_head(progress))

    def _respond(self, response: ConvertedResponse, *, with_body: bool = True) -> None:
        if not self._is_closed:
            head = b"%bcontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (
                STATUS_LINES[response.status],
                response.content_type,
                len(response.body),
            )
            self._connection.data_received(head)
            self._unsent = memoryview(response.body if with_body else b"")
            self._send()

    def _send(self) -> None:
        """Send the response, as its client receives it."""
        while self._unsent and not (self._is_paused or self._is_closed):
            piece, self._unsent = self._unsent[:PIECE_BYTES], self._unsent[PIECE_BYTES:]
            self._connection.data_received(bytes(piece))

    def abort(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        task, run = self._task, self._run
        if task is not None and run is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            removal = asyncio.create_task(_remove(run), name="removal of a workflow")
            _removals.add(removal)
            removal.add_done_callback(_removals.discard)
        asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def close(self) -> None:
        self.abort()

    def is_closing(self) -> bool:
        return self._is_closed

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._send)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def _fields(lines: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header fields of lines, with names in lower case."""
    parts = (line.partition(b":") for line in lines.split(b"\r\n") if line)
    return tuple((name.lower(), value.strip()) for name, _, value in parts)


async def _remove(run: ComfyUiRun) -> None:
    try:
        async with asyncio.timeout(REMOVE_TIMEOUT_S):
            await run.remove()
    except TimeoutError:
        log.warning("a workflow whose client has left was not removed in time")


def _form_of(request_line: bytes) -> ResultForm:
    """Return the wanted form of the images by the query of the request; INLINE for an unknown one."""
    query = request_line.split(b" ")[1].partition(b"?")[2].decode("latin-1")
    wanted = parse_qs(query).get("images", [""])[-1]
    return ResultForm(wanted) if wanted in set(ResultForm) else ResultForm.INLINE

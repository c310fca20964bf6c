"""The gRPC server of the endpoint picker: one stream for each request of Envoy, and gRPC's health checks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import grpc
import structlog
from grpc import aio

from regional_agent.background_tasks import keep_running, sleep_until_tick
from regional_agent.picker import ext_proc_messages as messages
from regional_agent.picker.conversation import BadMode, Conversation, PickerParts
from regional_agent.picker.picker_tls import may_ask
from regional_agent.picker.request_stream import RequestStream
from regional_agent.picker.stream_state import InvalidTransition
from regional_agent.upstream.address import Address

SWEEP_S: Final = 0.5
"""Interval (s) of the checks of bodies that are arriving."""

CLOSE_S: Final = 5.0
"""Time (s) after the end of a request within which Envoy has to close its stream."""

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size (bytes) of one message, apart from the body of a mode that sends it in one message."""

WINDOW_BYTES: Final = 64 * 1024
"""Bytes of a stream that are read ahead of the picker: memory that no limit of bodies counts."""

log = structlog.get_logger()


class PickerServer:
    """Serves Envoy's External Processing API on one port. Drained like the listeners of the agent."""

    def __init__(
        self, parts: PickerParts, not_ready_reason: Callable[[], str | None], credentials: grpc.ServerCredentials | None
    ) -> None:
        """Create a server; `start` binds it.

        Args:
            parts: the parts of the agent that requests use.
            not_ready_reason: why the agent is not ready; None if it is.
            credentials: the certificate of the server, and the authorities of its clients; None serves without TLS.
        """
        self._parts = parts
        self._not_ready_reason = not_ready_reason
        self._credentials = credentials
        self._streams: set[RequestStream] = set()
        self._stopping = False
        self._drained = asyncio.Event()
        self._server: Any = None
        self._sweeper: asyncio.Task[None] | None = None
        self._mode_logged = False

    async def start(self, listen: Address) -> Address:
        """Start to listen; returns the address, with the port that was bound.

        Raises:
            OSError: the address cannot be bound.
        """
        limits = self._parts.limits
        server = self._server = aio.server(
            options=(
                ("grpc.max_receive_message_length", max(MAX_MESSAGE_BYTES, limits.json_bytes + MAX_MESSAGE_BYTES)),
                ("grpc.max_send_message_length", -1),
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
                ("grpc.max_concurrent_streams", limits.max_connections),
            ),
            maximum_concurrent_rpcs=limits.max_connections,
        )
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=messages.ProcessingRequest.FromString,
            response_serializer=messages.ProcessingResponse.SerializeToString,
        )
        check = grpc.unary_unary_rpc_method_handler(
            self._check_health,
            request_deserializer=messages.HealthCheckRequest.FromString,
            response_serializer=messages.HealthCheckResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(messages.SERVICE, {"Process": process}),
                grpc.method_handlers_generic_handler(messages.HEALTH_SERVICE, {"Check": check}),
            )
        )
        try:
            if self._credentials is None:
                port = server.add_insecure_port(str(listen))
            else:
                port = server.add_secure_port(str(listen), self._credentials)
        except RuntimeError as error:
            raise OSError(0, str(error)) from None
        await server.start()
        self._sweeper = keep_running("bodies of picked requests", self._sweep)
        return listen._replace(port=port)

    async def _process(self, _: Any, call: Any) -> None:
        """Serve one request: read Envoy's messages until the request has ended, or Envoy closes the stream."""
        transfer = _Transfer(call)
        talk = Conversation(transfer.send)
        stream = RequestStream(self._parts, talk, _ip_of(call.peer()))
        transfer.on_sent = stream.on_sent
        transfer.talk = talk
        if self._credentials is not None and not may_ask(call.auth_context()):
            await call.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate is of no agent and no server")
        if self._stopping:
            await call.abort(grpc.StatusCode.UNAVAILABLE, "the agent stops")
        self._streams.add(stream)
        try:
            await transfer.run(stream.receive)
        except InvalidTransition as error:
            await call.abort(grpc.StatusCode.INVALID_ARGUMENT, f"messages out of order: {error}")
        except BadMode as error:
            if not self._mode_logged:
                self._mode_logged = True
                log.error("Envoy's configuration does not fit the endpoint picker", remedy=str(error))
            await call.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        finally:
            transfer.close()
            stream.close()
            self._streams.discard(stream)
            if self._stopping and not self._streams:
                self._drained.set()

    async def _check_health(self, request: Any, call: Any) -> Any:
        """Answer a health check: of liveness, of readiness, or of the service (Proposal 004)."""
        ready = not self._stopping and self._not_ready_reason() is None
        status = messages.SERVING if ready else messages.NOT_SERVING
        if request.service == "liveness":
            status = messages.SERVING
        elif request.service not in ("", "readiness", messages.SERVICE):
            await call.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return messages.HealthCheckResponse(status=status)

    async def _sweep(self) -> None:
        while True:
            await sleep_until_tick(SWEEP_S)
            now = self._parts.proxy.clock()
            for stream in list(self._streams):
                stream.check_body(now)

    # the same as `Listener`

    def hand_over(self) -> None:
        """Report not ready, so that Envoy sends its next requests to another agent."""
        self._stopping = True

    def stop_accepting(self) -> None:
        """Refuse new streams; open ones continue."""
        self._stopping = True
        if not self._streams:
            self._drained.set()

    async def wait_drained(self, grace_s: float) -> bool:
        """Wait up to `grace_s` (s) until no stream is open; returns whether none is."""
        if self._streams:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), grace_s)
        return not self._streams

    def refuse_uploads(self) -> None:
        """Refuse the requests whose bodies are arriving."""
        for stream in list(self._streams):
            stream.shut_down()

    async def drain(self, grace_s: float) -> int:
        """Wait up to `grace_s` (s) until no stream is open, then abort open ones; returns how many."""
        await self.wait_drained(grace_s)
        aborted = len(self._streams)
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            await self._server.stop(None)
        return aborted


class _Transfer:
    """Moves the messages of one stream, which may arise while none of Envoy's is processed."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._out: deque[Any] = deque()
        self._writing = False
        self._reads = False
        """Whether a message of Envoy is being processed, after which `run` writes."""
        self._writer: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._is_closed = False
        self.talk: Conversation | None = None
        self.on_sent: Callable[[], None] = lambda: None

    def send(self, message: Any) -> None:
        """Write a message after the ones before it."""
        if self._is_closed:
            return
        self._out.append(message)
        if not self._reads and self._writer is None:
            self._writer = asyncio.create_task(self._write_late(), name="messages to Envoy")

    async def run(self, receive: Callable[[Any], None]) -> None:
        """Process Envoy's messages until the request has ended."""
        call = self._call
        self._reader = asyncio.current_task()
        try:
            while True:
                message = await call.read()
                if message is aio.EOF:
                    return
                self._reads = True
                try:
                    receive(message)
                finally:
                    self._reads = False
                if self._out and not self._writing:
                    await self._write()
                if self.talk is not None and self.talk.is_done and not self._out and not self._writing:
                    return
        except asyncio.CancelledError:
            # `_write_late` cancels the reading of a stream whose request has ended.
            task = asyncio.current_task()
            if self.talk is None or not self.talk.is_done or self._out or task is None:
                raise
            task.uncancel()

    async def _write(self) -> None:
        self._writing = True
        try:
            while self._out:
                await self._call.write(self._out[0])
                self._out.popleft()
        finally:
            self._writing = False
        self.on_sent()

    async def _write_late(self) -> None:
        """Write messages that no message of Envoy has caused."""
        try:
            while self._out and not self._writing:
                await self._write()
        except (aio.UsageError, grpc.RpcError, asyncio.InvalidStateError):
            return  # the stream was closed meanwhile
        finally:
            self._writer = None
        if self.talk is not None and self.talk.is_done:
            await asyncio.sleep(CLOSE_S)
            if self._reader is not None and not self._is_closed:
                self._reader.cancel()

    def close(self) -> None:
        """Stop writing: the stream has ended."""
        self._is_closed = True
        self._out.clear()
        if self._writer is not None:
            self._writer.cancel()


def _ip_of(peer: str) -> str:
    """Return the IP address in the name of a gRPC peer, such as `ipv4:10.0.0.1:4711` and `ipv6:%5B::1%5D:4711`."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    return rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")

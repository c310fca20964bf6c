"""The upload of a form: its file is received as it arrives, with back-pressure to the client."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

import structlog

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request
from regional_agent.jobs.api.api_responses import JSON, Answer, BadInput, Refuse, Response, answer_of
from regional_agent.jobs.uploads.upload_form import BadForm, UploadForm

QUEUED_BYTES: Final = 1024 * 1024
"""Received bytes from which reading from the client pauses until they are processed."""

log = structlog.get_logger()


class FileReceiver(Protocol):
    """Receives the file of a form."""

    tenant: str
    field: bytes
    """Name of the form's field with the file."""

    @property
    def is_refused(self) -> bool:
        """Whether the rest of the file need not be received."""

    async def begin(self) -> None:
        """Called before the first part of the file."""

    def feed(self, data: bytes) -> None:
        """Receive a part of the file."""

    async def flush(self) -> None:
        """Process what was received. All of these raise BadInput."""

    async def finish(self, form: UploadForm) -> Answer:
        """Return the response, once the form is complete or the rest is not needed."""

    def close(self) -> None:
        """Called at any end."""


class FormUpload:
    """The handler of an upload."""

    def __init__(self, request: Request, connection: ClientConnection, refuse: Refuse, receiver: FileReceiver) -> None:
        """Begin with the part of the body that has arrived.

        Raises:
            BadForm: the request's Content-Type is not that of a form.
        """
        self._form = UploadForm(request.header(b"content-type") or b"", receiver.field, receiver.feed)
        self._request = request
        self._connection = connection
        self._refuse = refuse
        self._receiver = receiver
        self.tenant = receiver.tenant
        self._chunks: deque[bytes] = deque()
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self._ended = request.whole
        received = bytes(request.body)
        connection.listener.bodies.drop(request)
        self._add(received)
        self._task = asyncio.create_task(self._run(), name="file upload")

    @property
    def is_active(self) -> bool:
        """Whether the upload has not ended."""
        return not self._task.done()

    # RequestHandler

    def on_client_gone(self) -> None:
        """Drop what was written."""
        self._task.cancel()

    def on_client_writable(self, writable: bool) -> None:
        """Do nothing: the response is short."""

    def on_request_body(self, chunk: bytes) -> None:
        """Queue a part of the body."""
        self._add(chunk)

    def on_request_end(self) -> None:
        """Process the end of the body."""
        self._ended = True
        self._arrived.set()

    def on_request_refused(self, refusal: Refusal) -> None:
        """Drop what was written, and refuse the request."""
        self._task.cancel()
        self._connection.respond(*self._refuse(refusal, self._request))

    def drop_body(self) -> bool:
        """Return True: the body is not kept."""
        return True

    def _add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._queued_bytes += len(chunk)
        if self._queued_bytes > QUEUED_BYTES and not self._ended:
            self._connection.pause_reading()
        self._arrived.set()

    async def _run(self) -> None:
        try:
            answer = await answer_of(self._answer())
            if isinstance(answer, Refusal):
                self._connection.respond(*self._refuse(answer, self._request))
            elif isinstance(answer, Response):
                self._connection.respond(answer.status, [JSON], answer.body)
        except Exception:
            log.exception("an upload failed")
            self._connection.abort()
        finally:
            self._receiver.close()

    async def _answer(self) -> Answer:
        receiver, form = self._receiver, self._form
        try:
            await receiver.begin()
            await self._receive()
            if not receiver.is_refused:
                form.finish()
            return await receiver.finish(form)
        except BadForm as error:
            raise BadInput(400, Reason.BAD_REQUEST.value, str(error)) from None

    async def _receive(self) -> None:
        """Receive the file until its end."""
        receiver = self._receiver
        while not (self._ended and not self._chunks):
            if not self._chunks:
                self._arrived.clear()
                self._connection.resume_reading()
                await self._arrived.wait()
                continue
            chunk = self._chunks.popleft()
            self._queued_bytes -= len(chunk)
            self._form.feed(chunk)
            await receiver.flush()
            if receiver.is_refused:
                break

"""One workflow at one ComfyUI: prompt, progress, history, files; and its removal when its client leaves.

The end is that of the history. The WebSocket shows when to ask for it, and the progress; without it, the history is
asked for more often, and there is no progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from uuid import uuid4

import msgspec

from penstock.converters.comfyui import (
    BadWorkflow,
    Finished,
    OutputFile,
    ResultForm,
    finished,
    place_in_queue,
    prompt_id_of,
    prompt_with_client,
)
from penstock.converters.comfyui_input_images import (
    MAX_ALL_BYTES,
    InputImage,
    input_images,
    kind_of,
    stored_as,
    upload_form,
    with_images,
)
from penstock.converters.comfyui_progress import WorkflowProgress
from penstock.converters.long_texts import BadText, base64_of, with_long_texts, without_long_texts
from regional_agent.converters.comfyui_engine import MAX_RESULT_BYTES, Engine, EngineSocket
from regional_agent.converters.image_fetch import ImageFetch
from regional_agent.upstream.http_fetch import Fetched
from regional_agent.upstream.upstream_sink import UpstreamError

SUBMIT_TIMEOUT_S: Final = 30.0
"""Timeout (s) of a prompt, and of an upload."""

MIN_POLL_S: Final = 0.05
MAX_POLL_S: Final = 1.0
POLL_GROWTH: Final = 1.5
"""Time (s) between two requests for the history: short at first, since small workflows end soon."""

MAX_WATCHED_POLL_S: Final = 5.0
"""The same with an open WebSocket, which may be one that nothing arrives on any more."""

REPORTS: Final = 100
"""Number of steps in which progress is reported."""

POLLS_PER_QUEUE: Final = 5
"""Number of requests for the history for each request for the queue, which shows that a prompt was lost."""

MAX_FAILED_POLLS: Final = 10
"""Consecutive failed requests after which the workflow fails: a ComfyUI that loads a model may not respond."""

_JSON: Final = b"application/json"


class ConvertedResponse(NamedTuple):
    """The response that the client receives."""

    status: int
    content_type: bytes
    body: bytes


class ComfyUiRun:
    """Runs one workflow."""

    def __init__(self, engine: Engine, body: bytes, form: ResultForm, report: Callable[[float], None]) -> None:
        """Prepare to run the prompt `body`; `report` receives the progress (0-1), at most REPORTS + 1 times."""
        self._engine = engine
        self._images = ImageFetch()
        self._body = body
        self._form = form
        self._report = report
        self._reported = -1
        self._progress = WorkflowProgress(b"")
        self._news = asyncio.Event()
        """Set when the end of the workflow was announced, or will not be."""
        self._socket = EngineSocket(engine, self._on_message, self._news.set)
        self._prompt: asyncio.Task[Fetched] | None = None
        """The request that submits the prompt; it is not cancelled, so that the prompt can be removed."""

    async def run(self) -> ConvertedResponse:
        """Run the workflow to its end. Does not raise, unless cancelled: then call `remove`."""
        try:
            return await self._run()
        except BadWorkflow as error:
            return failure(502, "bad_response", str(error))
        except UpstreamError as error:
            return failure(502, "engine_failed", str(error))
        finally:
            self._socket.close()

    async def _run(self) -> ConvertedResponse:
        try:
            client_id, name = uuid4().hex, uuid4().hex
            body, texts = without_long_texts(self._body, name)
            prompt = prompt_with_client(body, client_id, uuid4().hex)
            self._progress = WorkflowProgress(prompt)
            images = await self._load_images(input_images(body, texts))
        except (BadWorkflow, BadText) as error:
            return failure(400, "invalid_prompt", str(error))
        if images:
            names = {name: await self._upload(kind, content) for name, kind, content in images}
            prompt = with_images(prompt, names)
        prompt = with_long_texts(prompt, name, texts)
        await self._socket.open(client_id)
        self._prompt = asyncio.create_task(
            self._engine.post("/prompt", prompt, SUBMIT_TIMEOUT_S), name="prompt of a workflow"
        )
        submitted = await asyncio.shield(self._prompt)
        if submitted.status != 200:
            # Errors of nodes, in ComfyUI's own format.
            kind = submitted.headers.get("content-type", "application/json").encode("latin-1")
            return ConvertedResponse(submitted.status, kind, submitted.body)
        prompt_id = self._progress.prompt_id = prompt_id_of(submitted.body)
        end = await self._end_of(prompt_id)
        if end is None:
            return failure(502, "prompt_lost", "the ComfyUI has lost the prompt, such as by a restart")
        if end.interrupted:
            return failure(502, "execution_interrupted", "the execution was interrupted at the ComfyUI")
        if not end.succeeded:
            return failure(422, "execution_error", "a node of the workflow failed", end.messages)
        return await self._result(prompt_id, end)

    async def _load_images(self, images: Iterable[InputImage]) -> list[tuple[str, str, bytes]]:
        """Return name, kind and content of each input image; raises BadWorkflow."""
        found, size_bytes = [], 0
        for image in images:
            content = await (self._images.content(image) if image.url else _in_turns(image.pieces()))
            size_bytes += len(content)
            if size_bytes > MAX_ALL_BYTES:
                raise BadWorkflow(f"the input images have more than {MAX_ALL_BYTES} bytes")
            found.append((image.name, kind_of(image.name, content), content))
        return found

    async def _upload(self, kind: str, content: bytes) -> str:
        """Upload an input image under a random name; returns the name by which nodes find it."""
        content_type, form = upload_form(f"{uuid4().hex}.{kind}", content, uuid4().hex)
        found = await self._engine.post("/upload/image", form, SUBMIT_TIMEOUT_S, content_type.encode())
        if found.status != 200:
            raise UpstreamError(f"the ComfyUI answered {found.status} to the upload of an image")
        return stored_as(found.body)

    async def _end_of(self, prompt_id: str) -> Finished | None:
        """Wait for the end of the workflow; None if the ComfyUI has lost it."""
        wait_s, polls, failed = MIN_POLL_S, 0, 0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            is_watched = self._socket.is_open and not self._progress.has_ended
            longest_s = MAX_WATCHED_POLL_S if is_watched else MAX_POLL_S
            wait_s, polls = MIN_POLL_S if self._news.is_set() else min(longest_s, wait_s * POLL_GROWTH), polls + 1
            self._news.clear()
            try:
                # The place is read first: a prompt that ends in between is in the history.
                is_queued = polls % POLLS_PER_QUEUE != 0 or await self._place_of(prompt_id) != ""
                history = await self._engine.get(f"/history/{prompt_id}")
            except UpstreamError:
                failed += 1
                if failed >= MAX_FAILED_POLLS:
                    raise
                continue
            failed = 0
            end = finished(history.body, prompt_id) if history.status == 200 else None
            if end is not None or not is_queued:
                return end

    def _on_message(self, message: bytes) -> None:
        """Read a message of the WebSocket."""
        progress = self._progress
        had_ended = progress.has_ended
        progress.read(message)
        if progress.has_ended and not had_ended:
            self._news.set()
        step = int(progress.value * REPORTS)
        if progress.has_started and step > self._reported:
            self._reported = step
            self._report(step / REPORTS)

    async def _place_of(self, prompt_id: str) -> str:
        queue = await self._engine.get("/queue")
        if queue.status != 200:
            raise UpstreamError(f"the ComfyUI answered {queue.status} to a request for its queue")
        return place_in_queue(queue.body, prompt_id)

    async def _result(self, prompt_id: str, end: Finished) -> ConvertedResponse:
        images: list[dict[str, Any]] = []
        name, texts = uuid4().hex, dict[str, memoryview]()
        left_bytes = MAX_RESULT_BYTES
        for file in end.results:
            image: dict[str, Any] = {"node": file.node, "filename": file.filename, "url": _target(file, prompt_id)}
            if self._form is not ResultForm.URL:
                found = await self._engine.get(_target(file), left_bytes)
                if found.status != 200:
                    return failure(502, "file_missing", f"{file.filename}: the ComfyUI answered {found.status}")
                kind = found.headers.get("content-type", "application/octet-stream")
                if self._form is ResultForm.BYTES:
                    return ConvertedResponse(200, kind.encode("latin-1"), found.body)
                left_bytes -= len(found.body)
                short = f"{name}-{len(texts)}"
                texts[short] = memoryview(await _in_turns(base64_of(found.body)))
                image |= {"content_type": kind, "b64_json": short}
            images.append(image)
        if self._form is ResultForm.BYTES:
            return failure(422, "no_image", "the workflow has written no file")
        # The identifier comes first: the agent reads it from the beginning of the response.
        document = msgspec.json.encode({"prompt_id": prompt_id, "images": images})
        return ConvertedResponse(200, _JSON, with_long_texts(document, name, texts))

    async def remove(self) -> None:
        """Remove the prompt from the queue, or interrupt it; nothing if it has ended. Errors are ignored."""
        if self._prompt is None:
            return
        with suppress(UpstreamError, BadWorkflow):
            prompt_id = prompt_id_of((await self._prompt).body)
            await self._engine.post("/queue", msgspec.json.encode({"delete": [prompt_id]}))
            # Earlier releases of ComfyUI interrupt whatever runs, so the prompt must be the one that runs.
            if await self._place_of(prompt_id) == "queue_running":
                await self._engine.post("/interrupt", msgspec.json.encode({"prompt_id": prompt_id}))


async def _in_turns(pieces: Iterator[bytes]) -> bytes:
    """Join pieces, between which other callbacks of the event loop run."""
    joined = []
    for piece in pieces:
        joined.append(piece)
        await asyncio.sleep(0)
    return b"".join(joined)


def _target(file: OutputFile, prompt_id: str = "") -> str:
    """Return the path and query of a file, with the prompt's identifier where agents must find its ComfyUI."""
    query = {"filename": file.filename, "subfolder": file.subfolder, "type": file.type}
    return "/view?" + urlencode(query | ({"prompt_id": prompt_id} if prompt_id else {}))


def failure(status: int, kind: str, message: str, details: object = None) -> ConvertedResponse:
    """Return an error in ComfyUI's format."""
    error = {"type": kind, "message": message, "details": details}
    return ConvertedResponse(status, _JSON, msgspec.json.encode({"error": error}))

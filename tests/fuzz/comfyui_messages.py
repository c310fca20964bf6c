"""Reads any bytes as ComfyUI's responses and messages: the identifier of a prompt, the queue, history and progress.

Property: a response is read or rejected, and what was read is bounded. Progress never falls, and is between 0 and 1.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

from penstock.converters.comfyui import (
    MAX_IMAGES,
    BadWorkflow,
    finished,
    place_in_queue,
    prompt_id_of,
    prompt_with_client,
)
from penstock.converters.comfyui_progress import WorkflowProgress

WORDS = (
    b'{"prompt_id":"p"}',
    b'{"p":{"outputs":{"9":{"images":[{"filename":"a.png","subfolder":"","type":"output"}]}},"status":',
    b'{"status_str":"error","messages":[["execution_error",{}]]}',
    b'{"type":"progress_state","data":{"prompt_id":"p","nodes":{"9":{"state":"running","value":1,"max":2}}}}',
    b'{"type":"executing","data":{"prompt_id":"p","node":null}}',
    b'{"queue_running":[[1,"p",{},{},[]]],"queue_pending":[]}',
)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    with suppress(BadWorkflow):
        assert quote(identifier := prompt_id_of(data), safe="") == identifier
    with suppress(BadWorkflow):
        assert b'"client_id":"c"' in prompt_with_client(data, "c")
    with suppress(BadWorkflow):
        assert place_in_queue(data, "p") in ("", "queue_running", "queue_pending")
    with suppress(BadWorkflow):
        end = finished(data, "p")
        assert end is None or len(end.files) <= MAX_IMAGES
    progress = WorkflowProgress(b'{"prompt":{"9":{},"1":{}}}')
    progress.prompt_id, before = "p", 0.0
    for message in data.split(b"\n"):
        progress.read(message)
        assert before <= progress.value <= 1.0
        before = progress.value

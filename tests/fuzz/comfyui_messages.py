"""Reads any bytes as ComfyUI's responses: the identifier of a prompt, the queue, and the history of a workflow.

Property: a response is read or rejected, and what was read is bounded.
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

WORDS = (
    b'{"prompt_id":"p"}',
    b'{"p":{"outputs":{"9":{"images":[{"filename":"a.png","subfolder":"","type":"output"}]}},"status":',
    b'{"status_str":"error","messages":[["execution_error",{}]]}',
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

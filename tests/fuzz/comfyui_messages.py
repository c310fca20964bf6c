"""Reads any bytes as ComfyUI's responses and messages: the identifier of a prompt, the queue, history and progress.

Property: a response is read or rejected, and what was read is bounded. Progress never falls, and is between 0 and 1.
A request whose long texts were cut out is the same when they are put back. One in base64 is decoded as the
standard library decodes it, or rejected by both.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
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
from penstock.converters.long_texts import BadText, base64_of, base64_pieces, with_long_texts, without_long_texts

NAME = "f81d4fae7dec11d0a76500a0c91e6bf6"

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
    with suppress(BadText):
        short, texts = without_long_texts(data, NAME, 8)
        assert with_long_texts(short, NAME, texts) == data
        for text in texts.values():
            content = _decoded(bytes(text))
            try:
                assert b"".join(base64_pieces(text)) == content
            except BadText:
                assert content is None
            if content is not None:
                assert b"".join(base64_of(content)) == b64encode(content)
    with suppress(BadWorkflow):
        assert b'"client_id":"c"' in prompt_with_client(data, "c", "f")
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


def _decoded(text: bytes) -> bytes | None:
    try:
        encoded = json.loads(f'"{text.decode()}"')
        # The standard library ignores padding after a whole group.
        return None if len(encoded) % 4 else b64decode(encoded, validate=True)
    except ValueError:
        return None

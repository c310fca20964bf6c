"""Encodes a chat request: an OpenAI body with a prompt and a token limit of the planned sizes."""

from __future__ import annotations

import msgspec

from lab.engine.completion_request import answer_length
from lab.replay.replay_workload import PlannedRequest
from lab.replay.written_request import WrittenRequest, written_request
from lab.traces.trace import BLOCK_TOKENS, TraceRequest

CHAT_PATH = b"/v1/chat/completions"

BYTES_PER_TOKEN = 4
"""Average of English text with the tokenizers of GPT-3 and Llama."""

_BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
_FILLER = (
    b"the river fills the lake above the gate and the gate meters water down into the wheel that lights the town "
    * (_BLOCK_BYTES // 100 + 1)
)


def chat_request(planned: PlannedRequest) -> WrittenRequest:
    """Encode a request for a streamed response."""
    lengths = planned.lengths
    user = b'"user":%b,' % msgspec.json.encode(lengths.conversation) if lengths.conversation else b""
    output_tokens, text = max(1, lengths.output_tokens), prompt_text(planned.id, lengths)
    if planned.max_tokens is None:
        limit = b'"max_tokens":%d,"ignore_eos":true' % output_tokens
    else:
        limit, text = b'"max_tokens":%d' % planned.max_tokens, text + answer_length(output_tokens).encode()
    body = (
        b'{"model":%b,"messages":[{"role":"user","content":"%b"}],%b,%b'
        b'"stream":true,"stream_options":{"include_usage":true}}'
        % (msgspec.json.encode(planned.model), text, limit, user)
    )
    return written_request(planned, CHAT_PATH, "text/event-stream", body)


def prompt_text(request_id: str, lengths: TraceRequest) -> bytes:
    """A prompt of the planned size, without JSON escapes. Equal prefix blocks have equal text, others differ."""
    size = lengths.prompt_tokens * BYTES_PER_TOKEN
    blocks = [(b"block %d " % block + _FILLER)[:_BLOCK_BYTES] for block in lengths.prefix_blocks]
    text = b"".join(blocks) + request_id.encode() + b" "
    return (text + _FILLER * (max(0, size - len(text)) // len(_FILLER) + 1))[:size]

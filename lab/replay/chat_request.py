"""The bytes of a chat request: an OpenAI body whose text has the right size, and whose limit is the answer's length."""

from __future__ import annotations

import msgspec

from lab.replay.replay_workload import PlannedRequest
from lab.traces.trace import BLOCK_TOKENS, TraceRequest

BYTES_PER_TOKEN = 4
"""English text under the tokenizers of GPT-3 and Llama alike."""

_BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
_FILLER = (
    b"the river fills the lake above the gate and the gate meters water down into the wheel that lights the town "
    * (_BLOCK_BYTES // 100 + 1)
)


def chat_request(planned: PlannedRequest) -> bytes:
    """Everything after the Host header's line: the other headers and the body. See `addressed`."""
    lengths = planned.lengths
    body = (
        b'{"model":%b,"messages":[{"role":"user","content":"%b"}],"max_tokens":%d,"ignore_eos":true,'
        b'"stream":true,"stream_options":{"include_usage":true}}'
        % (
            msgspec.json.encode(planned.model),
            prompt_text(planned.id, lengths),
            max(1, lengths.output_tokens),
        )
    )
    lines = [
        f"x-request-id: {planned.id}",
        f"x-forwarded-for: {planned.client_address}",
        "accept: text/event-stream",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    if planned.api_key:
        lines.append(f"authorization: Bearer {planned.api_key}")
    if planned.required_regions:
        lines.append(f"x-lab-residency: {','.join(planned.required_regions)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def addressed(rest: bytes, authority: str) -> bytes:
    """The whole request to the server at `authority` (host:port)."""
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: %b\r\n%b" % (authority.encode(), rest)


def prompt_text(request_id: str, lengths: TraceRequest) -> bytes:
    """A prompt of the right size that needs no escaping in JSON; equal prefix blocks give equal text, others not."""
    if not lengths.prefix_blocks:
        blocks = [request_id.encode() + b" " + _FILLER]
    else:
        blocks = [(b"block %d " % block + _FILLER)[:_BLOCK_BYTES] for block in lengths.prefix_blocks]
    size = lengths.prompt_tokens * BYTES_PER_TOKEN
    text = b"".join(blocks)
    return (text + _FILLER * (max(0, size - len(text)) // len(_FILLER) + 1))[:size]

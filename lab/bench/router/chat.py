"""Request and responses of the router benchmark, with fixed sizes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MODEL = "llama-3.1-8b"

REQUEST_BODY_BYTES = 1024
ANSWER_BYTES = 512

CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"%b",'
    % (MODEL.encode())
    + b'"choices":[{"index":0,"delta":{"content":" river"},"logprobs":null,"finish_reason":null}]}\n\n'
)
"""One token as vLLM streams it."""

END_OF_STREAM = b"data: [DONE]\n\n"


class Client(msgspec.Struct, frozen=True):
    """Sender of a request. Requests have different senders, so that lookups of identity and location vary."""

    address: str
    """Address, sent as X-Forwarded-For."""
    api_key: str


def chat_request(client: Client, *, stream: bool) -> bytes:
    """Return a complete request with a body of REQUEST_BODY_BYTES."""
    body = _padded(
        b'{"model":"%b","stream":%b,"max_tokens":256,"temperature":0.7,"messages":[{"role":"system","content":"You are '
        b'a patient assistant."},{"role":"user","content":"' % (MODEL.encode(), b"true" if stream else b"false"),
        b'"}]}',
        REQUEST_BODY_BYTES,
    )
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        "host: llm.example.com\r\n"
        "user-agent: openai-python/1.50.0\r\n"
        f"accept: {'text/event-stream' if stream else 'application/json'}\r\n"
        "content-type: application/json\r\n"
        f"authorization: Bearer {client.api_key}\r\n"
        f"x-forwarded-for: {client.address}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def answer() -> bytes:
    """Return the body of a response that is not streamed, with ANSWER_BYTES bytes."""
    return _padded(
        b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1700000000,"model":"%b",'
        b'"usage":{"prompt_tokens":230,"completion_tokens":48,"total_tokens":278},"choices":[{"index":0,'
        b'"finish_reason":"stop","message":{"role":"assistant","content":"' % MODEL.encode(),
        b'"}}]}',
        ANSWER_BYTES,
    )


def embedding() -> bytes:
    """Return the body of a response to a request for an embedding, with ANSWER_BYTES bytes."""
    return _padded(
        b'{"object":"list","model":"%b","usage":{"prompt_tokens":230,"total_tokens":230},'
        b'"data":[{"object":"embedding","index":0,"embedding":"' % MODEL.encode(),
        b'"}]}',
        ANSWER_BYTES,
    )


def requests_of(clients: Sequence[Client], *, stream: bool) -> list[bytes]:
    """Return one request per client."""
    return [chat_request(client, stream=stream) for client in clients]


def _padded(begin: bytes, end: bytes, size_bytes: int) -> bytes:
    filler = b"the gate meters the water of the river down into the wheel " * (size_bytes // 50 + 1)
    return begin + filler[: size_bytes - len(begin) - len(end)] + end

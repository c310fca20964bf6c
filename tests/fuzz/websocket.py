"""Reads any frames of a WebSocket's client.

The first byte is the length of the pieces that arrive. Property: however the bytes are cut, the connection ends with
the same violation, or the same bytes are forwarded and the same messages are refused; memory is bounded; and no
complete text message that is forwarded names the model `bad`.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.routing.reasons import Reason, Refusal
from regional_agent.websocket.client_messages import MAX_HELD_BYTES, ClientMessages, Violation
from regional_agent.websocket.websocket_frames import TEXT, read_head, unmask

WORDS = (
    *(b"\x81\x91\0\0\0\0", b"\x01\x85\0\0\0\0", b"\x80\x8c\0\0\0\0", b"\x89\x80\0\0\0\0", b"\x82\xfe", b"\x81\xff"),
    *(
        b'{"model": "bad"} ',
        b'{"session": {"model": "good"}}',
        b"\\u006d",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\0",
        b"null",
    ),
)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    step, data = (data[0] if data else 0) + 1, data[1:]
    whole = _read([data])
    assert _read([data[at : at + step] for at in range(0, len(data), step)]) == whole
    _check_forwarded(whole[0])


def _read(reads: list[bytes]) -> tuple[bytes, list[str], str]:
    messages, forwarded, refused = ClientMessages(("/session/model", "/model"), _permits), b"", list[str]()
    for read in reads:
        try:
            sent, refusals = messages.feed(read)
        except Violation as violation:
            return b"", [], str(violation)
        forwarded += sent
        refused += [refusal.detail for refusal in refusals]
        assert len(messages._held) <= MAX_HELD_BYTES + len(read) + 14
    return forwarded, refused, ""


def _permits(model: str) -> Refusal | None:
    return Refusal(Reason.MODEL_NOT_FOUND, model) if model == "bad" else None


def _check_forwarded(data: bytes) -> None:
    """Parse what is forwarded again, message by message."""
    payload, opcode = b"", TEXT
    while data:
        head = read_head(data)
        if head is None or len(data) < head.size + head.length:
            return
        part = unmask(data[head.size : head.size + head.length], head.mask, 0)
        data = data[head.size + head.length :]
        if head.is_control:
            continue
        opcode, payload = head.opcode or opcode, payload + part
        if head.final:
            if opcode == TEXT and len(payload) <= 1 << 16:
                assert not _names_bad(payload)
            payload = b""


def _names_bad(payload: bytes) -> bool:
    try:
        message: Any = json.loads(payload)
    except (ValueError, RecursionError):
        return False
    if not isinstance(message, dict):
        return False
    session = message.get("session")
    return message.get("model") == "bad" or (isinstance(session, dict) and session.get("model") == "bad")

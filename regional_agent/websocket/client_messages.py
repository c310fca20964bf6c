"""Reads the messages that a client sends into a WebSocket, which may name another model than the handshake.

A message of up to MAX_MESSAGE_BYTES is forwarded when it is complete and names no model that is refused. A larger
message is forwarded as it arrives and may not contain the string `model`; the connection ends if it does, before the
engine has the whole message. Memory is bounded by MAX_HELD_BYTES.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from penstock.routes.body_fields import BodyFields
from penstock.routes.body_values import is_null, text_value
from penstock.routing.reasons import Reason, Refusal
from regional_agent.requests.body_checks import JsonCheck
from regional_agent.websocket.websocket_frames import (
    BINARY,
    CONTINUATION,
    MAX_CONTROL_BYTES,
    MAX_HEAD_BYTES,
    OPCODES,
    POLICY_VIOLATION,
    PROTOCOL_ERROR,
    TOO_BIG,
    FrameHead,
    read_head,
    unmask,
)

MAX_MESSAGE_BYTES: Final = 64 * 1024
"""Maximum size (bytes) of a message that is read as a whole."""

MAX_HELD_BYTES: Final = 2 * MAX_MESSAGE_BYTES
"""Maximum size (bytes) of the frames of such a message: a message may consist of many small frames."""

MAX_FRAMES: Final = 2048
"""Maximum number of frames that one read of the event loop may complete, in about ten milliseconds."""

MAX_REFUSED: Final = 16
"""Number of refused messages after which the connection is closed."""

_OTHER_JSON: Final = re.compile(rb"\s*(?:\xef\xbb\xbf|[\xff\xfe]{2}|\0+[{\[\s]|[{\[\s]\0)")
"""The start of a binary message that decoders of JSON accept and this one does not: with a byte order mark, or in
UTF-16 or UTF-32."""
_JSON: Final = re.compile(rb"\s*[{\[]")


class Violation(Exception):
    """The client's data ends the connection."""

    def __init__(self, code: int, problem: str) -> None:
        """Close with a status code of RFC 6455, section 7.4, and the reason."""
        super().__init__(problem)
        self.code = code


class ClientMessages:
    """The messages of one client."""

    def __init__(self, pointers: tuple[str, ...], permits: Callable[[str], Refusal | None]) -> None:
        """Read the model's name at JSON pointers of messages.

        Args:
            pointers: the `message_model` of the route.
            permits: returns the refusal of a model, or None.
        """
        self._fields = _fields_at(pointers)
        self._permits = permits
        self._head = bytearray()
        """The part of an incomplete frame head that has arrived."""
        self._frame: FrameHead | None = None
        """The frame whose payload arrives; None before its head is complete."""
        self._left = 0
        """Missing bytes of that payload."""
        self._message: int | None = None
        """Opcode of the message that arrives; None between two messages."""
        self._held = bytearray()
        """The frames of the message that arrives, as received; empty once it is forwarded as it arrives."""
        self._payload = bytearray()
        """The payload of these frames, without the mask."""
        self._check: JsonCheck | None = None
        """Checks a message that is forwarded as it arrives."""
        self._refused = 0

    def feed(self, data: bytes) -> tuple[bytes, list[Refusal]]:
        """Return the bytes to forward after a read, and the refusals of messages that are dropped.

        Raises:
            Violation: the data is not valid, or must not reach the engine.
        """
        forward, refusals = list[bytes](), list[Refusal]()
        at, size, frames = 0, len(data), 0
        while at < size or (self._frame is not None and not self._left):
            if self._frame is None:
                at += self._read_head(data[at : at + MAX_HEAD_BYTES], forward)
                continue
            part = data[at : at + self._left]
            at += len(part)
            self._read_payload(self._frame, part, forward)
            if self._left:
                break
            self._end_frame(self._frame, forward, refusals)
            frames += 1
            if frames > MAX_FRAMES:
                raise Violation(POLICY_VIOLATION, f"more than {MAX_FRAMES} frames arrive at once")
        return b"".join(forward), refusals

    def _read_head(self, data: bytes, forward: list[bytes]) -> int:
        """Read a frame head, or a part of it; returns the number of bytes that belong to it."""
        known = len(self._head)
        self._head += data[: MAX_HEAD_BYTES - known]
        head = read_head(self._head)
        if head is None:
            return len(data)
        raw = bytes(self._head[: head.size])
        self._head.clear()
        self._check_head(head)
        self._frame, self._left = head, head.length
        if head.is_control or (self._message is not None and not self._held):
            forward.append(raw)
        else:
            self._held += raw
        if not head.is_control and self._message is None:
            self._message = head.opcode
        return head.size - known

    def _check_head(self, head: FrameHead) -> None:
        if head.reserved or head.opcode not in OPCODES or head.length >> 63:
            raise Violation(PROTOCOL_ERROR, "the frame uses an extension or an opcode that was not negotiated")
        if not head.mask:
            raise Violation(PROTOCOL_ERROR, "the frame is not masked")
        if head.is_control:
            if not head.final or head.length > MAX_CONTROL_BYTES:
                raise Violation(PROTOCOL_ERROR, "the control frame is fragmented or too long")
        elif (head.opcode == CONTINUATION) is (self._message is None):
            raise Violation(PROTOCOL_ERROR, "the frame does not continue the message, or continues none")

    def _read_payload(self, frame: FrameHead, part: bytes, forward: list[bytes]) -> None:
        offset = frame.length - self._left
        self._left -= len(part)
        if frame.is_control:
            forward.append(part)
        elif self._held:
            self._payload += unmask(part, frame.mask, offset)
            self._held += part
            if len(self._payload) > MAX_MESSAGE_BYTES or len(self._held) > MAX_HELD_BYTES:
                self._begin_forwarding(forward)
        else:
            if self._check is not None:
                self._check_part(self._check, unmask(part, frame.mask, offset))
            forward.append(part)

    def _begin_forwarding(self, forward: list[bytes]) -> None:
        """Forward a message that is too large to be read as a whole."""
        payload = self._payload
        if self._message == BINARY and _OTHER_JSON.match(payload):
            raise Violation(POLICY_VIOLATION, "the message is JSON in another encoding than UTF-8")
        if self._message != BINARY or _JSON.match(payload):
            self._check = JsonCheck()
            self._check_part(self._check, bytes(payload))
        forward.append(bytes(self._held))
        self._drop_held()

    def _check_part(self, check: JsonCheck, part: bytes) -> None:
        if check.finds_model(part):
            problem = f"a message above {MAX_MESSAGE_BYTES} bytes contains the string `model`; send it in a smaller one"
            raise Violation(TOO_BIG, problem)

    def _end_frame(self, frame: FrameHead, forward: list[bytes], refusals: list[Refusal]) -> None:
        self._frame = None
        if frame.is_control or not frame.final:
            return
        if self._held:
            refusal = self._refuse(bytes(self._payload))
            if refusal is None:
                forward.append(bytes(self._held))
            else:
                refusals.append(refusal)
                self._refused += 1
                if self._refused > MAX_REFUSED:
                    raise Violation(POLICY_VIOLATION, f"more than {MAX_REFUSED} messages were refused")
            self._drop_held()
        self._message = self._check = None

    def _drop_held(self) -> None:
        self._held.clear()
        self._payload.clear()

    def _refuse(self, payload: bytes) -> Refusal | None:
        """Return the refusal of a complete message; None if it may be forwarded."""
        if self._message == BINARY:
            if _OTHER_JSON.match(payload):
                return Refusal(Reason.BAD_REQUEST, "the message is JSON in another encoding than UTF-8")
            if not _JSON.match(payload):
                return None
        values = self._fields.read(payload)
        if isinstance(values, str):
            return Refusal(Reason.BAD_REQUEST, values.replace("the request body", "the message"))
        for pointer, value in values.items():
            if is_null(value):
                continue
            name = text_value(value)
            if name is None:
                return Refusal(Reason.BAD_REQUEST, f"the model at {pointer} of the message is not a string")
            refusal = self._permits(name)
            if refusal is not None:
                return refusal
        return None


@lru_cache(maxsize=64)
def _fields_at(pointers: tuple[str, ...]) -> BodyFields:
    return BodyFields(pointers)

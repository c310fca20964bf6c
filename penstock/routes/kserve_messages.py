"""Reads the model's name from the gRPC messages of a KServe V2 inference, as they arrive.

Of each `ModelInferRequest`, fields 1 (`model_name`) and 2 (`model_version`) are read, all others skipped. Decoders
of protobuf use the last value of a repeated field, and a stream may have many messages: a name that differs from the
first one is a problem, because the request was authorized for the first one.

Source: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/open_inference_grpc.proto
"""

from __future__ import annotations

from typing import Final

MAX_NAME_BYTES: Final = 512

MAX_FIELDS: Final = 4096
"""Maximum number of fields of a message: each costs time, and may have as little as two bytes."""

_PREFIX_BYTES: Final = 5
_NAME, _VERSION = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES: Final = 10
_MAX_KEY: Final = 2**32 - 1
"""Some decoders, such as that of C++, drop the further bits of a larger key, and so read another field."""


class InferMessages:
    """The messages of one request; keeps at most the bytes of one name or number."""

    def __init__(self) -> None:
        """Start before the first message."""
        self.model: str | None = None
        """Name of the model; None until the first message has stated it."""
        self.version = ""
        self.is_named = False
        """Whether name and version of the first message have arrived."""
        self._kept = bytearray()
        self._skip = 0
        """Number of bytes that belong to a field that is not read."""
        self._left = 0
        """Number of bytes of the current message that have not been read."""
        self._messages = 0
        self._fields = 0
        """Number of fields of the current message that have been read."""
        self._values: dict[int, str] = {}
        """Name and version of the current message."""
        self._problem = ""

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that wait for the rest of a name or number."""
        return len(self._kept)

    def feed(self, chunk: bytes) -> str:
        """Read a further part; returns the problem, or an empty string."""
        self._kept += chunk
        while not self._problem and self._kept and self._step():
            pass
        return self._problem

    def finish(self) -> str:
        """Return the problem of the end, or an empty string: a message that is cut, or a request without one."""
        if not self._problem and (self._kept or self._skip or self._left or not self._messages):
            self._problem = "the gRPC message is cut"
        return self._problem

    def _step(self) -> bool:
        """Read one part of a message; returns whether it has arrived."""
        kept = self._kept
        if self._skip:
            self._take(min(self._skip, len(kept)), is_field=True)
            return self._skip == 0
        if self._left == 0:
            return self._begin()
        key, key_bytes = _varint(kept)
        if key_bytes == 0:
            return self._needs(_MAX_VARINT_BYTES)
        if key > _MAX_KEY:
            return self._fail("the gRPC message is malformed")
        field, kind = key >> 3, key & 7
        if kind in _FIXED_BYTES:
            return self._pass(key_bytes, _FIXED_BYTES[kind])
        value, value_bytes = _varint(kept, key_bytes)
        if value_bytes == 0:
            return self._needs(2 * _MAX_VARINT_BYTES)
        if kind == _VARINT:
            return self._pass(key_bytes + value_bytes, 0)
        if kind != _BYTES:
            return self._fail("the gRPC message is malformed")
        if field not in (_NAME, _VERSION):
            self._name_message()
            return self._pass(key_bytes + value_bytes, value)
        if value > MAX_NAME_BYTES:
            return self._fail(f"the name of the model has more than {MAX_NAME_BYTES} bytes")
        end = key_bytes + value_bytes + value
        if end > self._left:
            return self._fail("the gRPC message is malformed")
        if len(kept) < end:
            return False
        try:
            text = bytes(kept[end - value : end]).decode()
        except UnicodeDecodeError:
            return self._fail("the name of the model is not UTF-8")
        if self._values.setdefault(field, text) != text:
            return self._fail("the gRPC message names two models")
        return self._pass(end, 0)

    def _begin(self) -> bool:
        """Read the prefix of the next message."""
        kept = self._kept
        if len(kept) < _PREFIX_BYTES:
            return False
        if kept[0]:
            return self._fail("compressed gRPC messages are not supported, because they hide the model")
        self._left = int.from_bytes(kept[1:_PREFIX_BYTES], "big")
        self._messages += 1
        self._fields = 0
        self._values = {}
        del kept[:_PREFIX_BYTES]
        if self._left == 0:
            self._name_message()
        return True

    def _pass(self, read: int, skipped: int) -> bool:
        """Drop a field; `skipped` of its bytes may arrive later."""
        if read + skipped > self._left:
            return self._fail("the gRPC message is malformed")
        self._fields += 1
        if self._fields > MAX_FIELDS:
            return self._fail(f"the gRPC message has more than {MAX_FIELDS} fields")
        self._take(read, is_field=False)
        self._skip = skipped
        if self._left == 0:
            self._name_message()
        return True

    def _take(self, count: int, *, is_field: bool) -> None:
        del self._kept[:count]
        self._left -= count
        if is_field:
            self._skip -= count
            if self._left == 0:
                self._name_message()

    def _name_message(self) -> None:
        """Compare the name of the current message, whose beginning or end has been read, with that of the first one."""
        name, version = self._values.get(_NAME, ""), self._values.get(_VERSION, "")
        if self._left and not name:
            return
        if not name:
            self._fail("the gRPC message names no model")
        elif not self.is_named:
            self.model, self.version, self.is_named = name, version, True
        elif (name, version) != (self.model, self.version):
            self._fail("the gRPC messages of one request name two models")

    def _needs(self, maximum: int) -> bool:
        """A number that has not arrived, or is none."""
        return self._fail("the gRPC message is malformed") if len(self._kept) >= maximum else False

    def _fail(self, problem: str) -> bool:
        self._problem = self._problem or problem
        return False


def _varint(data: bytes | bytearray, at: int = 0) -> tuple[int, int]:
    """Return a number and its size (bytes); size 0 if it is incomplete or too long."""
    value = 0
    for count, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, count + 1
    return 0, 0

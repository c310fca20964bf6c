"""The wire format of protobuf: reading the fields of a message, and writing fields, without objects for messages.

A field that a reader does not use is skipped. Groups, which proto3 does not have, are rejected.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import Final

VARINT: Final = 0
FIXED_64: Final = 1
LENGTH: Final = 2
FIXED_32: Final = 5
"""Wire types."""

_MAX_VARINT_BYTES: Final = 10
_MAX_TAG: Final = 2**32 - 1


class BadMessage(Exception):
    """Bytes are not a message of protobuf, or not one that is permitted here."""


class Fields:
    """The fields of one message, in order, at a part of some bytes."""

    __slots__ = ("_at", "_end", "begin", "data", "stop", "tag", "value")

    def __init__(self, data: bytes, begin: int, stop: int) -> None:
        """Start before the first field of the message at `data[begin:stop]`."""
        self.data = data
        self._at = begin
        self._end = stop
        self.tag = 0
        """Number and wire type of the field, as `length_tag` and `number_tag` return them."""
        self.value = 0
        """The value of a varint; 0 for another wire type."""
        self.begin = self.stop = 0
        """Where the bytes of a field with a length are; both 0 for another wire type."""

    def advance(self) -> bool:
        """Read the next field; returns whether there is one. Raises BadMessage for bytes that are no field."""
        if self._at >= self._end:
            return False
        tag = self._varint()
        wire = tag & 7
        if tag < 8 or tag > _MAX_TAG:
            raise BadMessage("a field has an impossible number")
        self.tag = tag
        self.value = self.begin = self.stop = 0
        if wire == LENGTH:
            size = self._varint()
            self.begin = self._at
            self._at = self.stop = self.begin + size
        elif wire == VARINT:
            self.value = self._varint()
        elif wire == FIXED_64:
            self._at += 8
        elif wire == FIXED_32:
            self._at += 4
        else:
            raise BadMessage("a field has an unknown wire type")
        if self._at > self._end:
            raise BadMessage("a field ends after its message")
        return True

    def _varint(self) -> int:
        data, at, end = self.data, self._at, self._end
        if at < end and data[at] < 0x80:
            self._at = at + 1
            return data[at]
        value = shift = 0
        end = min(end, at + _MAX_VARINT_BYTES)
        while at < end:
            byte = data[at]
            value |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                self._at = at
                return value
            shift += 7
        raise BadMessage("a number does not end")

    def inner(self) -> Fields:
        """Return the fields of the message that is the value of this field."""
        return Fields(self.data, self.begin, self.stop)

    def content(self) -> bytes:
        """Return the bytes of this field."""
        return self.data[self.begin : self.stop]

    def text(self) -> str:
        """Return the text of this field; raises BadMessage for other bytes than UTF-8."""
        try:
            return self.data[self.begin : self.stop].decode()
        except UnicodeDecodeError:
            raise BadMessage("a text is not UTF-8") from None


def length_tag(number: int) -> int:
    """Return the tag of a field with bytes, a text or a message."""
    return number << 3 | LENGTH


def number_tag(number: int) -> int:
    """Return the tag of a field with a number that is a varint."""
    return number << 3 | VARINT


def varint(value: int) -> bytes:
    """Return a number that is not negative."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def with_length(number: int, content: bytes) -> bytes:
    """Return a field with bytes, a text or a message; `number` is below 16."""
    size = len(content)
    if size < 0x80:
        return bytes((number << 3 | LENGTH, size)) + content
    return bytes((number << 3 | LENGTH,)) + varint(size) + content


def with_number(number: int, value: int) -> bytes:
    """Return a field with a number or a boolean value, which is not negative; `number` is below 16."""
    return bytes((number << 3 | VARINT,)) + varint(value)

"""The wire format of protobuf: reading the fields of a message, and writing fields, without objects for messages.

A field that a reader does not use is skipped. Groups, which proto3 does not have, are rejected.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

VARINT: Final = 0
FIXED_64: Final = 1
LENGTH: Final = 2
FIXED_32: Final = 5
"""Wire types."""

_BYTES: Final[list[bytes]] = [bytes((value,)) for value in range(256)]
"""Each byte, since to create one takes ten times as long as to look it up."""

_HEADS: Final[list[bytes]] = [bytes((number << 3 | LENGTH, size)) for number in range(16) for size in range(0x80)]
"""Tag and size of fields with a length, for the numbers below 16 and the sizes below 128."""

_MAX_VARINT_BYTES: Final = 10
_MAX_TAG: Final = 2**32 - 1


class BadMessage(Exception):
    """Bytes are not a message of protobuf, or not one that is permitted here."""


class Fields:
    """The fields of one message, in order, at a part of some bytes."""

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

    def short_pair(self, first_tag: int, second_tag: int) -> tuple[bytes, bytes]:
        """Return the contents of the next two fields if they have these tags and are short; both empty otherwise.

        Most headers are such a pair, whose fields need not be read one after the other.
        """
        data, at, end = self.data, self._at, self._end
        if at + 4 > end or data[at] != first_tag or data[at + 1] >= 0x80:
            return b"", b""
        begin = at + 2
        stop = begin + data[at + 1]
        if stop + 2 > end or data[stop] != second_tag or data[stop + 1] >= 0x80:
            return b"", b""
        second = stop + 2
        last = second + data[stop + 1]
        if last > end:
            return b"", b""
        self._at = last
        return data[begin:stop], data[second:last]

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
        return _BYTES[value]
    if value < 0x4000:
        return _BYTES[value & 0x7F | 0x80] + _BYTES[value >> 7]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def with_length(number: int, content: bytes) -> bytes:
    """Return a field with bytes, a text or a message; `number` is below 16."""
    return length_head(number, len(content)) + content


def length_head(number: int, size_bytes: int) -> bytes:
    """Return what precedes the `size_bytes` of a field with bytes, a text or a message; `number` is below 16."""
    if size_bytes < 0x80:
        return _HEADS[number << 7 | size_bytes]
    return _BYTES[number << 3 | LENGTH] + varint(size_bytes)


def nested(numbers: Sequence[int], content: bytes, end: bytes = b"") -> bytes:
    """Return fields of which each is the only one of the message that is the value of the field before it.

    The content is copied once, and not for each field.

    Args:
        numbers: of the fields, from the outermost to that of `content`; below 16.
        end: further fields beside that of `content`.
    """
    size = len(content)
    head, added = b"", len(end)
    for index in range(len(numbers) - 1, -1, -1):
        head = length_head(numbers[index], size) + head
        size = len(head) + len(content) + added
    return b"".join((head, content, end))


def with_number(number: int, value: int) -> bytes:
    """Return a field with a number or a boolean value, which is not negative; `number` is below 16."""
    return _BYTES[number << 3 | VARINT] + varint(value)

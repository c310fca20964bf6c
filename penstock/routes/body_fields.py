"""Reads the values at a set of JSON pointers from a body, without decoding the rest of the body.

An object on the path of a pointer is split into fields, whose values stay undecoded; all other values are skipped,
which checks their syntax. In these objects no key may be repeated, and none may be a pointer's key in another spelling
(`duplicate_keys.py`): an engine could use another value than the agent. The number of fields decoded in one body is
limited, so that the time to read a body is proportional to its size, with a small factor, for any bytes.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from penstock.routes.duplicate_keys import MAX_KEYS, FieldError, ObjectKeys
from penstock.routes.json_pointer import array_index, parse_pointer
from penstock.routes.raw_values import Fields, Key, NotJson, Raw, any_decoder, elements_of

MAX_FIELDS: Final = MAX_KEYS
"""Number of fields of all objects on the paths of the pointers after which no further object is decoded."""

BLOCK_BYTES: Final = 64 * 1024
"""Size (bytes) of the parts in which the encoding of a large body is checked."""

_OTHER_KEY: Final = Key(chr(0xD800))
"""Replaces each key that no pointer contains; its value is dropped. No key of valid JSON is a lone surrogate."""

_Utf8Decoder: Final = getincrementaldecoder("utf-8")


class BodyFields:
    """Reads the fields of JSON bodies at the pointers of one route."""

    def __init__(self, pointers: Iterable[str]) -> None:
        """Prepare to read these JSON pointers.

        Raises:
            ValueError: a pointer is malformed, or denotes the whole body.
        """
        root = _Branch()
        for pointer in pointers:
            tokens = parse_pointer(pointer)
            if not tokens:
                raise ValueError("the empty JSON pointer denotes the whole body; name a field, such as `/model`")
            branch = root
            for token in tokens:
                branch = branch.below.setdefault(token, _Branch())
            branch.pointer = pointer
        self._root = _Level(root)

    def read(self, body: bytes | bytearray | Raw) -> dict[str, Raw] | str:
        """The undecoded value at each pointer that a body, or a value in it, contains, or a description of its problem.

        The description is a `NotJson` if the body is not JSON in UTF-8. The result is empty if the body is neither an
        object nor an array.
        """
        found: dict[str, Raw] = {}
        try:
            if isinstance(body, (bytes, bytearray)) and not body.isascii():
                _check_encoding(body)
            root = self._root
            if root.is_flat:
                found = root.decode(body)
            else:
                root.read(body, found, 0)
        except FieldError as ambiguity:
            return f"the request body is ambiguous: {ambiguity}"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if isinstance(error, UnicodeDecodeError):
                return NotJson(f"the request body is not valid JSON in UTF-8: {error.reason}")
            return NotJson(f"the request body is not valid JSON: {error}")
        return found


class _Branch:
    """A token of pointers: the pointer that ends with the token, if one does, and the tokens that follow in others."""

    def __init__(self) -> None:
        self.pointer = ""
        self.below: dict[str, _Branch] = {}


class _Level:
    """One value on the path of a pointer: its fields that are read, and the levels below it."""

    def __init__(self, branch: _Branch) -> None:
        self._levels = {token: _Level(below) for token, below in branch.below.items() if below.below}
        self._pointers = {token: below.pointer for token, below in branch.below.items()}
        self.is_flat = not self._levels and all(array_index(token) is None for token in self._pointers)
        """Whether all pointers denote fields of an object. The decoder then replaces each key by its pointer itself."""
        keys = {token: Key(pointer if self.is_flat else token) for token, pointer in self._pointers.items()}
        self._keys = ObjectKeys(keys, _OTHER_KEY)
        self._decoder: Any = msgspec.json.Decoder(Fields, dec_hook=self._keys.on_key)

    def decode(self, value: bytes | bytearray | Raw) -> dict[str, Raw]:
        """The fields that are read, of an object; none for any other value."""
        self._keys.begin()
        try:
            fields: dict[str, Raw] = self._decoder.decode(value)
        except msgspec.ValidationError:
            any_decoder.decode(value)  # The decoder for objects does not check what follows another value.
            return {}
        fields.pop(_OTHER_KEY, None)
        return fields

    def read(self, value: bytes | bytearray | Raw, found: dict[str, Raw], count: int) -> int:
        """Add the values that the pointers denote below `value` to `found`, by pointer.

        Args:
            count: number of fields decoded before; returns it with those decoded here.
        """
        if count > MAX_FIELDS:
            raise FieldError(f"its objects have more than {MAX_FIELDS} fields")
        fields = self.decode(value)
        count += self._keys.count
        if self.is_flat:
            found.update(fields)
            return count
        if not fields:
            return self._read_elements(value, found, count)
        for key, field in fields.items():
            count = self._continue(key, field, found, count)
        return count

    def _read_elements(self, value: bytes | bytearray | Raw, found: dict[str, Raw], count: int) -> int:
        try:
            elements = elements_of(value)
        except msgspec.ValidationError:
            return count
        for token in self._pointers:
            index = array_index(token)
            if index is not None and (element := elements[index]):
                count = self._continue(token, element, found, count)
        return count

    def _continue(self, token: str, value: Raw, found: dict[str, Raw], count: int) -> int:
        pointer, level = self._pointers[token], self._levels.get(token)
        if pointer:
            found[pointer] = value
        return count if level is None else level.read(value, found, count)


def _check_encoding(body: bytes | bytearray) -> None:
    """Raise UnicodeDecodeError for a body that is not UTF-8. The decoder itself checks only the text that it decodes.

    ASCII parts of a large body, such as an image in Base64, are not decoded.
    """
    if len(body) <= BLOCK_BYTES:
        body.decode()
        return
    decoder, view = _Utf8Decoder(), memoryview(body)
    for at in range(0, len(body), BLOCK_BYTES):
        end = at + BLOCK_BYTES
        block = bytes(view[at:end])
        if not block.isascii() or decoder.getstate()[0]:
            decoder.decode(block)
    decoder.decode(b"", final=True)

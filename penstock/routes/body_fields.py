"""Reads the values at a set of JSON pointers from a body, without decoding the rest of the body.

An object on the path of a pointer is split into fields, whose values stay undecoded; all other values are skipped,
which checks their syntax. The number of fields decoded in one body is limited, so that the time to read a body is
proportional to its size, with a small factor, for any bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.routes.json_pointer import MAX_ARRAY_INDEX, array_index, parse_pointer

MAX_FIELDS = 1024
"""Maximum number of fields of all objects on the paths of the pointers; decoding takes about half a millisecond."""

MAX_NUMBER_CHARS = 32
"""Maximum length (characters) of a JSON number that is read; a longer number counts as absent."""

if TYPE_CHECKING:
    Raw = Any
    """msgspec's stubs declare `Raw` as a subclass of bytes, which it is not."""
else:
    Raw = msgspec.Raw


class _Key(str):
    """The type of an object's keys: a custom type, for which msgspec calls the decoder's hook."""

    __slots__ = ()


class _FieldError(Exception):
    """The body is valid JSON, but is refused. Not a subclass of ValueError, because msgspec would wrap a ValueError."""


_OTHER_KEY = _Key("\ud800")
"""Replaces each key that no pointer contains; its value is dropped. No key of valid JSON is a lone surrogate."""

_ABSENT = msgspec.Raw(b"")

_Elements = msgspec.defstruct(
    "_Elements", [(f"element_{index}", Raw, _ABSENT) for index in range(MAX_ARRAY_INDEX + 1)], array_like=True
)
"""The first elements of an array; msgspec skips the others."""

_elements = msgspec.json.Decoder(_Elements)


class BodyFields:
    """Reads the fields of JSON bodies at the pointers of one route."""

    __slots__ = ("_root",)

    def __init__(self, pointers: Iterable[str], once: Iterable[str] = ()) -> None:
        """Prepare to read these pointers.

        Args:
            pointers: JSON pointers. Of a repeated key, the last value is read.
            once: more JSON pointers to read. No key on their paths may be repeated, because engines differ in the value
                that they use, or be written in another case, because Go's decoder ignores case.

        Raises:
            ValueError: a pointer is malformed, or denotes the whole body.
        """
        self._root = _Level()
        for pointer in pointers:
            self._add(pointer, once=False)
        for pointer in once:
            self._add(pointer, once=True)

    def read(self, body: bytes | bytearray) -> dict[str, Raw] | str:
        """The undecoded value at each pointer that the body contains, or a description of the body's problem.

        The result is empty if the body is neither an object nor an array.
        """
        found: dict[str, Raw] = {}
        budget = _Budget()
        try:
            self._root.read(body, found, budget)
        except _FieldError as error:
            return f"the request body is ambiguous: {error}"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return f"the request body is not valid JSON: {error}"
        return found

    def _add(self, pointer: str, *, once: bool) -> None:
        tokens = parse_pointer(pointer)
        if not tokens:
            raise ValueError("the empty JSON pointer denotes the whole body; name a field, such as `/model`")
        level = self._root
        for token in tokens[:-1]:
            level = level.add(token, once=once)
        level.add(tokens[-1], once=once).pointers.add(pointer)


class _Budget:
    """The number of fields that one call of `BodyFields.read` may still decode."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_FIELDS


class _Level:
    """One value of a body: the pointers that denote it, and the next levels of the pointers on whose path it is."""

    __slots__ = ("_budget", "_by_token", "_decoder", "_keys", "_once", "_seen", "pointers")

    def __init__(self) -> None:
        self.pointers: set[str] = set()
        """The pointers that denote the value itself."""
        self._by_token: dict[str, _Level] = {}
        self._keys: dict[str, _Key] = {}
        self._once: dict[str, str] = {}
        """Keys that may appear only once, by their case-folded form."""
        self._seen: set[str] = set()
        self._budget = _Budget()
        self._decoder = msgspec.json.Decoder(dict[_Key, Raw], dec_hook=self._on_key)

    def add(self, token: str, *, once: bool) -> _Level:
        """Returns the level of the value that a reference token selects; creates the level if it does not exist."""
        if once:
            self._once[token.casefold()] = token
        self._keys[token] = _Key(token)
        return self._by_token.setdefault(token, _Level())

    def read(self, value: bytes | bytearray | Raw, found: dict[str, Raw], budget: _Budget) -> None:
        """Add the values that the pointers denote below `value` to `found`, by pointer."""
        self._seen.clear()
        self._budget = budget
        try:
            fields = self._decoder.decode(value)
        except msgspec.ValidationError:
            self._read_elements(value, found, budget)
            return
        fields.pop(_OTHER_KEY, None)
        for key, field in fields.items():
            self._continue(self._by_token[key], field, found, budget)

    def _read_elements(self, value: bytes | bytearray | Raw, found: dict[str, Raw], budget: _Budget) -> None:
        try:
            elements = msgspec.structs.astuple(_elements.decode(value))
        except msgspec.ValidationError:
            return
        for token, level in self._by_token.items():
            index = array_index(token)
            if index is not None and (element := elements[index]):
                self._continue(level, element, found, budget)

    @staticmethod
    def _continue(level: _Level, value: Raw, found: dict[str, Raw], budget: _Budget) -> None:
        for pointer in level.pointers:
            found[pointer] = value
        if level._by_token:
            level.read(value, found, budget)

    def _on_key(self, _wanted: type, key: Any) -> _Key:
        self._budget.left -= 1
        if self._budget.left < 0:
            raise _FieldError(f"its objects have more than {MAX_FIELDS} fields")
        if self._once and (token := self._once.get(key.casefold())) is not None:
            if token in self._seen or key != token:
                raise _FieldError(f"the field {token!r} is repeated, or appears in another case; send it once")
            self._seen.add(token)
        return self._keys.get(key, _OTHER_KEY)


def text_value(value: Raw | None) -> str | None:
    """The text of a JSON string; None for any other value."""
    text: str | None = _decoded(_text, value)
    return text


def flag_value(value: Raw | None) -> bool | None:
    """The value of a JSON boolean; None for any other value."""
    flag: bool | None = _decoded(_flag, value)
    return flag


def number_value(value: Raw | None) -> float | None:
    """The value of a JSON number; None for any other value, and for a number longer than MAX_NUMBER_CHARS."""
    if value is None or len(memoryview(value)) > MAX_NUMBER_CHARS:
        return None
    number: float | None = _decoded(_number, value)
    return number


_text = msgspec.json.Decoder(str)
_flag = msgspec.json.Decoder(bool)
_number = msgspec.json.Decoder(float)


def _decoded(decoder: msgspec.json.Decoder[Any], value: Raw | None) -> Any:
    if not value:
        return None
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

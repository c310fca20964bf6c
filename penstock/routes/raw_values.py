"""The types of undecoded JSON values, and their decoders.

This module is not compiled: msgspec needs the types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.routes.json_pointer import MAX_ARRAY_INDEX

if TYPE_CHECKING:
    Raw = Any
    """msgspec's stubs declare `Raw` as a subclass of bytes, which it is not."""
else:
    Raw = msgspec.Raw

ABSENT: Final[Any] = msgspec.Raw(b"")


class NotJson(str):
    """The description of a body that is not JSON."""

    __slots__ = ()


class Key(str):
    """The type of an object's keys: a custom type, for which msgspec calls the decoder's hook."""

    __slots__ = ()


Fields = dict[Key, Raw]
"""The type of an object whose values stay undecoded."""

_Elements = msgspec.defstruct(
    "_Elements", [(f"element_{index}", Raw, ABSENT) for index in range(MAX_ARRAY_INDEX + 1)], array_like=True
)
"""The first elements of an array; msgspec skips the others."""

any_decoder: Final = msgspec.json.Decoder(Raw)
_elements: Final = msgspec.json.Decoder(_Elements)
text_decoder: Final = msgspec.json.Decoder(str)
flag_decoder: Final = msgspec.json.Decoder(bool)
number_decoder: Final = msgspec.json.Decoder(float)


def elements_of(value: bytes | bytearray | Raw) -> tuple[Raw, ...]:
    """The first elements of an array, ABSENT where it has fewer.

    Raises:
        msgspec.ValidationError: the value is no array.
    """
    elements: tuple[Raw, ...] = msgspec.structs.astuple(_elements.decode(value))
    return elements

"""Decodes the values that `body_fields.py` found in a body."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.routes.duplicate_keys import FieldError
from penstock.routes.raw_values import ABSENT, Raw, flag_decoder, number_decoder, text_decoder

_NULL: Final = memoryview(b"null")


def text_value(value: Raw | None) -> str | None:
    """The text of a JSON string; None for any other value."""
    if value is None:
        return None
    try:
        text: str = text_decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return text


def flag_value(value: Raw | None) -> bool | None:
    """The value of a JSON boolean; None for any other value."""
    if value is None:
        return None
    try:
        flag: bool = flag_decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return flag


def number_value(value: Raw | None) -> float | None:
    """The value of a JSON number; None for any other value, and for a number that is larger than any float."""
    if value is None:
        return None
    try:
        number: float = number_decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return number


def is_null(value: Raw) -> bool:
    """Whether a value is JSON's null."""
    return memoryview(value) == _NULL


def first_value(pointers: tuple[str, ...], values: dict[str, Raw]) -> Raw:
    """The value at the first of several pointers at which the body has one other than null; ABSENT without one."""
    for pointer in pointers:
        value = values.get(pointer)
        if value is not None and not is_null(value):
            return value
    return ABSENT


def flag_at(pointer: str, values: dict[str, Raw]) -> bool | None:
    """The flag at a JSON pointer; None if it is absent or null.

    Raises:
        FieldError: the value is of another type, which an engine could convert to a flag.
    """
    value = values.get(pointer)
    if value is None:
        return None
    flag = flag_value(value)
    if flag is None and not is_null(value):
        raise FieldError(f"the value at {pointer} is not true or false")
    return flag


def check_numbers(pointers: tuple[str, ...], values: dict[str, Raw]) -> None:
    """Check the numbers at JSON pointers. They may be absent or null.

    Raises:
        FieldError: a value is of another type, which an engine could convert to a number, or is too large.
    """
    for pointer in pointers:
        value = values.get(pointer)
        if value is not None and number_value(value) is None and not is_null(value):
            raise FieldError(f"the value at {pointer} is not a number, or too large")

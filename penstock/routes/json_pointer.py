"""JSON pointers (RFC 6901), by which routes locate fields of a body."""

from __future__ import annotations

import re

MAX_POINTER_CHARS = 256
MAX_POINTER_TOKENS = 8
"""Maximum number of reference tokens of a pointer. Each token costs a pass over the value that contains its target."""

MAX_ARRAY_INDEX = 15
"""Maximum array index in a pointer. The elements up to this index are indexed on each read."""

_ESCAPE = re.compile(r"~[01]?")
_CHARACTERS = {"~0": "~", "~1": "/"}


def parse_pointer(pointer: str) -> tuple[str, ...]:
    """The reference tokens of a JSON pointer; empty for the whole document.

    Raises:
        ValueError: the text is no JSON pointer, can never match a value, or exceeds a limit of this module.
    """
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise ValueError(f"the JSON pointer {pointer!r} does not start with `/`")
    if len(pointer) > MAX_POINTER_CHARS:
        raise ValueError(f"a JSON pointer is longer than {MAX_POINTER_CHARS} characters")
    tokens = tuple(_ESCAPE.sub(_unescape, token) for token in pointer[1:].split("/"))
    if len(tokens) > MAX_POINTER_TOKENS:
        raise ValueError(f"the JSON pointer {pointer!r} has more than {MAX_POINTER_TOKENS} parts")
    for token in tokens:
        if token == "-":
            raise ValueError(f"the JSON pointer {pointer!r} can never match: `-` is the element after the last")
        if any("\ud800" <= character <= "\udfff" for character in token):
            raise ValueError(f"the JSON pointer {pointer!r} can never match: it has a lone surrogate")
    return tokens


def array_index(token: str) -> int | None:
    """The array index that a reference token denotes; None if it is not an index of at most MAX_ARRAY_INDEX."""
    canonical = token.isascii() and token.isdigit() and len(token) <= 2 and (token == "0" or token[0] != "0")
    return int(token) if canonical and int(token) <= MAX_ARRAY_INDEX else None


def _unescape(escape: re.Match[str]) -> str:
    character = _CHARACTERS.get(escape[0])
    if character is None:
        raise ValueError(f"the JSON pointer {escape.string!r} has `~` without `0` or `1` after it")
    return character

"""Reads a parameter of the query of a request, and refuses queries that servers read differently."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_plus

from penstock.routes.duplicate_keys import folded

MAX_QUERY_FIELDS: Final = 64

_SEPARATOR: Final = re.compile("[&;]")
"""Some servers separate parameters by semicolons too."""


def query_values(target: bytes, name: str) -> list[str] | str:
    """The values of a query parameter in a request target, or a description of the problem.

    A parameter is refused if it is repeated or appears in another case: servers differ in the value that they use.
    """
    _, _, query = target.partition(b"?")
    if not query:
        return []
    fields = _SEPARATOR.split(query.decode("latin-1"), MAX_QUERY_FIELDS)
    if len(fields) > MAX_QUERY_FIELDS:
        return f"the query has more than {MAX_QUERY_FIELDS} parameters"
    values = []
    for field in fields:
        key, _, value = field.partition("=")
        key = unquote_plus(key)
        if key == name:
            values.append(unquote_plus(value))
        elif folded(key.partition("\0")[0]) == folded(name):
            return f"the query parameter `{name}` appears in another spelling"
    if len(values) > 1:
        return f"the query parameter `{name}` is repeated"
    return values

"""Text fields of requests that other people read: one line, without characters that control a terminal."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from penstock.overrides.overrides import MAX_REASON

_CONTROL = r"\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Control characters, line separators, and characters that change the direction of text."""

_ONE_LINE = rf"^[^{_CONTROL}]*[^{_CONTROL}\s][^{_CONTROL}]*$"
"""No control characters, and at least one visible character."""


def _one_line(text: str) -> str:
    if re.fullmatch(_ONE_LINE, text) is None:
        raise PydanticCustomError("one_line", "must be one line of text without control characters")
    return text


Reason = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_REASON,
        description="Reason of the change; recorded in the audit log.",
        json_schema_extra={"pattern": _ONE_LINE},
    ),
    AfterValidator(_one_line),
]

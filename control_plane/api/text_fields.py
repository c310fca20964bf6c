"""What people write into requests for other people: one line, and nothing that acts on the terminal that shows it."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from penstock.overrides.overrides import MAX_REASON

_ACTS = r"\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Control characters, and those that turn the direction of what is around them."""

_ONE_LINE = rf"^[^{_ACTS}]*[^{_ACTS}\s][^{_ACTS}]*$"
"""None of these, and something that is seen."""


def _one_line(text: str) -> str:
    if re.fullmatch(_ONE_LINE, text) is None:
        raise PydanticCustomError("one_line", "say why in one line, without control characters")
    return text


Reason = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_REASON,
        description="Why, for people and the audit log.",
        json_schema_extra={"pattern": _ONE_LINE},
    ),
    AfterValidator(_one_line),
]

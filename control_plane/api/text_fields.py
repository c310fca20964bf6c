"""Text fields of requests: reasons, which other people read, and the codes of countries and subdivisions."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from penstock.overrides.overrides import MAX_REASON
from penstock.policy.geography import country_error

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


def _country(code: str) -> str:
    if (flaw := country_error(code)) is not None:
        raise PydanticCustomError("country", "{flaw}", {"flaw": flaw})
    return code


Country = Annotated[
    str,
    AfterValidator(_country),
    Field(
        max_length=64,
        description="Country of the client, ISO 3166-1 alpha-2. Default: unknown.",
        examples=["DE"],
        json_schema_extra={"pattern": "^[A-Z]{2}$"},
    ),
]

Subdivision = Annotated[
    str,
    Field(pattern="^[A-Z0-9]{1,3}$", description="Subdivision of the country, ISO 3166-2 without the country code."),
]

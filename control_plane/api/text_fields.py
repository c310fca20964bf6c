"""Text fields of requests: reasons and notes, which other people read, names, and codes of countries."""

from __future__ import annotations

import re
from typing import Annotated, Final, get_args

from msgspec import Meta
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from penstock.overrides.overrides import MAX_REASON
from penstock.policy.fields import Label
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

MAX_NOTE: Final = 200
"""Maximum length (characters) of a note."""

Note = Annotated[
    str,
    Field(
        max_length=MAX_NOTE, description="Free text for people.", json_schema_extra={"pattern": rf"^[^{_CONTROL}]*$"}
    ),
    AfterValidator(lambda text: text and _one_line(text)),
]

_LABEL: Final[Meta] = get_args(Label)[1]
LABEL_PATTERN: Final[str] = (_LABEL.extra_json_schema or {})["pattern"]
LABEL_REMEDY: Final[str] = (_LABEL.extra or {})["remedy"]


def is_label(text: str) -> bool:
    """Whether a text is a DNS label (RFC 1123), as names of tenants and tiers are."""
    return re.fullmatch(LABEL_PATTERN.removesuffix("$"), text) is not None


def _label(text: str) -> str:
    if not is_label(text):
        raise PydanticCustomError("label", "{remedy}", {"remedy": f"is not well-formed: {LABEL_REMEDY}"})
    return text


LabelText = Annotated[str, AfterValidator(_label), Field(json_schema_extra={"pattern": LABEL_PATTERN})]
"""A name that must be a DNS label, as in policy documents."""


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

"""Base of all kinds: the strict model, and the types of names and lists."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar
from unicodedata import category

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

API_VERSION = "penstock/v1"
"""Version of the format of policy files."""

REMEDY = "remedy"
"""Type of validation errors whose context contains a remedy."""

LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
"""A DNS label (RFC 1123): names of regions and tenants are used in keys, headers and metrics."""
MODEL = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"
ADAPTERS = r"^[A-Za-z0-9*][A-Za-z0-9._:/*-]{0,127}$"
BLOC = r"^[A-Z][A-Z0-9-]{1,31}$"
DIGEST = r"^[0-9a-f]{64}$"
MOMENT = r"^20\d{2}-\d{2}-\d{2}T\d{2}:\d{2}Z?$"
"""A minute in UTC (RFC 3339), or without the Z in local time; years 2000 to 2099."""
SUBDIVISION = r"^[A-Z]{2}-[A-Z0-9]{1,3}$"

REMEDY_BY_PATTERN = {
    MOMENT: "write date and minute in UTC, such as 2026-12-01T02:00Z, or local time without the Z and a time_zone",
    LABEL: "use 1 to 63 lower-case letters, digits and hyphens, with no hyphen at an end",
    MODEL: "use 1 to 128 letters, digits and . _ : / -, beginning with a letter or digit",
    ADAPTERS: "use 1 to 128 letters, digits and . _ : / -, with * for any number of characters",
    BLOC: "use 2 to 32 capital letters, digits and hyphens, beginning with a letter",
    SUBDIVISION: "write an ISO 3166-2 code with its country, such as US-CA",
    DIGEST: "write the SHA-256 of the key in 64 lower-case hexadecimal digits, in quotes: printf %s KEY | sha256sum",
}

Item = TypeVar("Item")


def _each_once(items: list[Item]) -> list[Item]:
    seen: set[Item] = set()
    for index, item in enumerate(items):
        if item in seen:
            named = f"'{item}'" if isinstance(item, str) else f"item {index + 1}"
            raise PydanticCustomError(REMEDY, "{item} is listed twice", {"item": named, "remedy": "keep one of them"})
        seen.add(item)
    return items


def _visible(text: str) -> str:
    """Rejects invisible characters, which could control a terminal or make two different texts appear equal."""
    for letter in text:
        if letter != "\n" and (category(letter)[0] == "C" or category(letter) in {"Zl", "Zp"}):
            written = letter.encode("unicode_escape").decode()
            remedy = {"remedy": "remove it", "letter": written}
            raise PydanticCustomError(REMEDY, "has the invisible character {letter}", remedy)
    return text


Text = Annotated[str, AfterValidator(_visible)]
Label = Annotated[str, Field(pattern=LABEL)]
ModelName = Annotated[str, Field(pattern=MODEL)]
AdapterPattern = Annotated[str, Field(pattern=ADAPTERS)]
BlocName = Annotated[str, Field(pattern=BLOC)]
KeyDigest = Annotated[str, Field(pattern=DIGEST)]
SubdivisionCode = Annotated[str, Field(pattern=SUBDIVISION)]
UniqueList = Annotated[list[Item], AfterValidator(_each_once), Field(json_schema_extra={"uniqueItems": True})]
NonEmptyList = Annotated[
    list[Item], AfterValidator(_each_once), Field(min_length=1, json_schema_extra={"uniqueItems": True})
]


class StrictModel(BaseModel):
    """A mapping that accepts known fields of their exact types only."""

    # `use_attribute_docstrings` would read the sources at every start, so policy/schema.py reads the docstrings.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class PolicyDocument(StrictModel):
    """Base of the documents of a bundle; each document has the fields `apiVersion` and `kind`."""

    api_version: Literal["penstock/v1"] = Field(alias="apiVersion")
    """Version of the file format."""

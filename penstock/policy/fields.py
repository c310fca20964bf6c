"""Types of the fields of policy documents: bounds, patterns, and marks of fields that documents do not have.

The structs in `penstock.policy.kinds` are both the format of documents and the format of compiled policies: name, type,
default and docstring of a field stand there alone. What this module adds to a type limits documents only. A stored
policy is decoded without bounds and patterns, because a release with other limits may have written it.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from penstock.policy.time_zone import wall_clock_s

DERIVED: Final = Meta(extra={"derived": True})
"""Marks a field that the compiler sets, or that only earlier releases wrote. Documents do not have the field."""

REQUIRED: Final = Meta(extra={"required": True})
"""Marks a field that documents must have, although the struct has a default."""


def bounds(
    *, ge: float | None = None, gt: float | None = None, le: float | None = None, lt: float | None = None
) -> Meta:
    """Limit a number: greater than or equal to `ge`, greater than `gt`, less than or equal to `le`, less than `lt`."""
    limits = {"minimum": ge, "exclusiveMinimum": gt, "maximum": le, "exclusiveMaximum": lt}
    return Meta(extra_json_schema={name: limit for name, limit in limits.items() if limit is not None})


def length(least: int, most: int) -> Meta:
    """Limit the number of characters of a text."""
    return Meta(extra_json_schema={"minLength": least, "maxLength": most})


def pattern(regex: str, remedy: str) -> Meta:
    """Limit a text to those that match `regex`; `remedy` states how to write one."""
    return Meta(extra_json_schema={"pattern": regex}, extra={"remedy": remedy})


Item = TypeVar("Item")
NonEmpty = Annotated[Item, Meta(extra_json_schema={"minItems": 1})]
"""A list with at least one item where a document has it: an empty list could be read as "none" or as "all"."""

Label = Annotated[
    str,
    pattern(
        r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        "use 1 to 63 lower-case letters, digits and hyphens, with no hyphen at an end",
    ),
]
"""A DNS label (RFC 1123): names of regions and tenants are used in keys, headers and metrics."""

ModelName = Annotated[
    str,
    pattern(
        r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$",
        "use 1 to 128 letters, digits and . _ : / -, beginning with a letter or digit",
    ),
]
AdapterPattern = Annotated[
    str,
    pattern(
        r"^[A-Za-z0-9*][A-Za-z0-9._:/*-]{0,127}$",
        "use 1 to 128 letters, digits and . _ : / -, with * for any number of characters",
    ),
]
Revision = Annotated[
    str,
    pattern(
        r"^[A-Za-z0-9*/.][A-Za-z0-9._:/@+*-]{0,199}$",
        "use 1 to 200 letters, digits and . _ : / @ + -, with * for any number of characters",
    ),
]
BlocName = Annotated[
    str,
    pattern(r"^[A-Z][A-Z0-9-]{1,31}$", "use 2 to 32 capital letters, digits and hyphens, beginning with a letter"),
]


def refers_to(kind: str) -> Meta:
    """Mark a name that a document of `kind` must have, or one of `COUNTRY`, `PLACE` and `SUBDIVISION`."""
    return Meta(extra={"refers_to": kind})


COUNTRY: Final = "Country"
"""ISO 3166-1 alpha-2 code."""
PLACE: Final = "Place"
"""ISO 3166-1 alpha-2 code, or the name of a bloc."""
SUBDIVISION: Final = "Subdivision"
"""ISO 3166-2 code, of which the country is checked."""

RegionRef = Annotated[Label, refers_to("Region")]
ModelRef = Annotated[ModelName, refers_to("Model")]
VersionsRef = Annotated[ModelName, refers_to("ModelVersions")]
TenantRef = Annotated[Label, refers_to("Tenant")]
TierRef = Annotated[Label, refers_to("Tier")]
DataClassRef = Annotated[Label, refers_to("DataClass")]
CountryRef = Annotated[str, refers_to(COUNTRY)]
PlaceRef = Annotated[str, refers_to(PLACE)]
SubdivisionRef = Annotated[
    str,
    pattern(r"^[A-Z]{2}-[A-Z0-9]{1,3}$", "write an ISO 3166-2 code with its country, such as US-CA"),
    refers_to(SUBDIVISION),
]

KeyDigest = Annotated[
    str,
    pattern(
        r"^[0-9a-f]{64}$",
        "write the SHA-256 of the key in 64 lower-case hexadecimal digits, in quotes: printf %s KEY | sha256sum",
    ),
]
PORT: Final = r"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
"""The pattern of a port from 1 to 65535: a URL with a larger one would fail at each use."""

Origin = Annotated[
    str,
    pattern(
        r"^(\*|(?!http://.*:80$|https://.*:443$)[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:" + PORT + r")?)$",
        "write the origin as browsers send it, such as https://app.example or http://localhost:3000, without a path and"
        " without the default port of the scheme; or *",
    ),
]
"""An origin as browsers serialise it (https://html.spec.whatwg.org/#ascii-serialisation-of-an-origin)."""

STORE_URL: Final = r"^(file:///[^?#\s]*[^?#/\s]|(s3|gs|az)://[^/?#@\s]+(/[^?#@\s]*[^?#@/\s])?)$"

StoreUrl = Annotated[
    str,
    pattern(
        STORE_URL,
        "write file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://account/container/prefix, without"
        " credentials, which processes read from files and their environment",
    ),
]
"""URL of an object store."""

Moment = Annotated[
    float,
    Meta(
        extra_json_schema={"pattern": r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}Z?$"},
        extra={
            "parse": wall_clock_s,
            "remedy": "write date and minute in UTC, such as 2026-12-01T02:00Z, or local time without the Z and a"
            " time_zone",
        },
    ),
]
"""Unix time (s). A document writes a minute (RFC 3339) of the years 2000 to 2099, in UTC or, without the Z, in local
time; the compiler applies the time zone."""

Day = Annotated[
    float,
    Meta(
        extra_json_schema={"pattern": r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}$"},
        extra={"parse": wall_clock_s, "remedy": "write a day, such as 2026-12-01"},
    ),
]
"""Unix time (s) of the beginning of a day in UTC. A document writes the day (RFC 3339) of the years 2000 to 2099."""

Pointer = Annotated[str, length(1, 256)]
"""A JSON pointer (RFC 6901)."""


class Conflict(NamedTuple):
    """Fields of a document that contradict each other."""

    problem: str
    remedy: str


class PolicyStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all parts of a policy. Unknown fields are rejected, because an unknown field could restrict the known
    ones."""

    def conflict(self) -> Conflict | None:
        """Return what is wrong with fields that are valid one by one. Called for documents, not for stored policies."""
        return None

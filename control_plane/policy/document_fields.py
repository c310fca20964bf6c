"""The fields that a document may have, derived from the struct of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec.inspect as types
from msgspec import Struct

DESCRIPTION = "description"
MAX_DESCRIPTION = 500
"""Maximum number of characters of the `description` of a document."""

COMMON_FIELDS = ("apiVersion", "kind", DESCRIPTION)
"""Fields of every document, which are not part of the policy."""


class DocumentField(NamedTuple):
    """One field of a document."""

    type: types.Type
    is_required: bool
    may_be_null: bool
    default: Any
    """Default in the policy; `msgspec.NODEFAULT` if it has none."""


@cache
def document_fields(struct: type[Struct]) -> Mapping[str, DocumentField]:
    """Return the fields that a document writes, by name: those of the struct which are not marked `DERIVED`.

    A field that may be null may be absent.
    """
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    return {
        field.name: DocumentField(
            field.type,
            mark(field.type, "required") or (field.required and not _has_null(field.type)),
            _has_null(field.type),
            field.default,
        )
        for field in info.fields
        if not mark(field.type, "derived")
    }


def mark(type_: types.Type, name: str) -> Any:
    """Return an entry that `penstock.policy.fields` attached to a type; None if the type has none."""
    return (type_.extra or {}).get(name) if isinstance(type_, types.Metadata) else None


def _has_null(type_: types.Type) -> bool:
    inner = type_.type if isinstance(type_, types.Metadata) else type_
    return isinstance(inner, types.UnionType) and inner.includes_none

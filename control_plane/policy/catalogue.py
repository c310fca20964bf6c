"""Sorts the documents of a bundle by kind: unique names, and the allowed number of each kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from adapters.error_text import suggest
from control_plane.policy.bundle_errors import MAX_ERRORS, WHOLE_BUNDLE, PolicyError
from control_plane.policy.documents import Document
from control_plane.policy.kinds import KINDS
from control_plane.policy.struct_reader import Reference, read_struct
from penstock.policy.fields import PolicyStruct

Shape = TypeVar("Shape", bound=PolicyStruct)


class Entry(msgspec.Struct, frozen=True):
    """A well-formed document: its source, its content, and the names that it refers to."""

    document: Document
    struct: PolicyStruct
    references: list[Reference]


class Catalogue(msgspec.Struct, frozen=True):
    """A bundle's documents by kind. `names` also contains the names of documents that are not well-formed."""

    entries: dict[str, list[Entry]]
    names: dict[str, dict[str, Document]]

    def of(self, struct: type[Shape]) -> list[tuple[Document, Shape]]:
        """Return every well-formed document of one kind."""
        return [
            (entry.document, entry.struct)
            for entries in self.entries.values()
            for entry in entries
            if isinstance(entry.struct, struct)
        ]

    def single(self, struct: type[Shape]) -> Shape:
        """Return the document of a kind that a bundle has at most once; if absent, a document with default values."""
        documents = self.of(struct)
        return documents[0][1] if documents else struct()


def build_catalogue(documents: Sequence[Document], unread: Iterable[str] = ()) -> tuple[Catalogue, list[PolicyError]]:
    """Validate documents by kind; return the catalogue and the errors. Stops after MAX_ERRORS errors.

    Args:
        unread: kinds of documents that are in the bundle but could not be parsed; they are not reported as missing.
    """
    written = set(unread)
    errors: list[PolicyError] = []
    entries: dict[str, list[Entry]] = defaultdict(list)
    names: dict[str, dict[str, Document]] = defaultdict(dict)
    counts: dict[str, int] = defaultdict(int)
    for document in documents:
        if len(errors) >= MAX_ERRORS:
            return Catalogue(entries, names), errors
        kind = document.content.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            errors.append(_unknown_kind(document, kind))
            written.update(get_close_matches(str(kind), KINDS, n=1))
            continue
        counts[kind] += 1
        if counts[kind] == KINDS[kind].max_count + 1:
            remedy = f"keep at most {KINDS[kind].max_count}"
            errors.append(document.error(("kind",), f"too many documents of kind {kind}", remedy))
        errors += _note_name(document, names[kind])
        if counts[kind] > KINDS[kind].max_count:
            continue
        found = read_struct(document, kind)
        errors += found.errors[:MAX_ERRORS]
        if found.struct is not None:
            entries[kind].append(Entry(document, found.struct, found.references))
    errors += [
        PolicyError(WHOLE_BUNDLE, 0, "", f"has no document of kind {name}", "add one; policies/planet shows its fields")
        for name, kind_of in KINDS.items()
        if name not in written and counts[name] < kind_of.min_count
    ]
    return Catalogue(entries, names), errors


def _unknown_kind(document: Document, kind: Any) -> PolicyError:
    if kind is None:
        return document.error((), "has no kind", f"write `kind`, one of {', '.join(KINDS)}")
    remedy = suggest(str(kind), KINDS, f"use one of {', '.join(KINDS)}")
    return document.error(("kind",), "is not a kind of policy document", remedy)


def _note_name(document: Document, taken: dict[str, Document]) -> list[PolicyError]:
    name = document.content.get("name")
    if not isinstance(name, str):
        return []
    before = taken.setdefault(name, document)
    if before is document:
        return []
    place = f"{before.file}:{before.line_of(('name',))}"
    return [document.error(("name",), f"{document.content['kind']} {name} exists already", f"keep one; see {place}")]

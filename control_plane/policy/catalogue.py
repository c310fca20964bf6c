"""Validates documents by kind: known and well-formed fields, unique names, and the allowed number of each kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar, get_args

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from adapters.configuration.strict_yaml import Path
from adapters.error_text import suggest
from control_plane.policy.bundle_errors import MAX_ERRORS, WHOLE_BUNDLE, PolicyError
from control_plane.policy.documents import Document
from control_plane.policy.kinds import KINDS
from control_plane.policy.kinds.base import API_VERSION, REMEDY, REMEDY_BY_PATTERN, PolicyDocument

Shape = TypeVar("Shape", bound=PolicyDocument)


class Entry(msgspec.Struct, frozen=True):
    """A well-formed document: its source, and its model."""

    document: Document
    shaped: PolicyDocument


class Catalogue(msgspec.Struct, frozen=True):
    """A bundle's documents by kind. `names` also contains the names of documents that are not well-formed."""

    entries: dict[str, list[Entry]]
    names: dict[str, dict[str, Document]]

    def of(self, shape: type[Shape]) -> list[tuple[Document, Shape]]:
        """Return every well-formed document of one kind."""
        return [
            (entry.document, entry.shaped)
            for entries in self.entries.values()
            for entry in entries
            if isinstance(entry.shaped, shape)
        ]

    def single(self, shape: type[Shape]) -> Shape:
        """Return the document of a kind that a bundle has at most once; if absent, a document with default values."""
        documents = self.of(shape)
        if documents:
            return documents[0][1]
        name = next(name for name, kind in KINDS.items() if kind.shape is shape)
        return shape.model_validate({"apiVersion": API_VERSION, "kind": name})


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
        try:
            entries[kind].append(Entry(document, KINDS[kind].shape.model_validate(document.content)))
        except ValidationError as error:
            details = error.errors(include_url=False)[:MAX_ERRORS]
            errors += [_to_error(document, KINDS[kind].shape, detail) for detail in details]
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


_REMOVED_FIELDS: Final[dict[str, dict[Path, str]]] = {
    "Route": {("hedged",): "remove it: slow requests are no longer sent to a second endpoint"}
}
"""The remedies for fields of earlier releases, by kind and path."""

_OF_TYPE = {"string_type", "float_type", "int_type", "bool_type", "list_type", "dict_type", "model_type"}


def _to_error(document: Document, shape: type[BaseModel], detail: ErrorDetails) -> PolicyError:
    path: Path = tuple(step for step in detail["loc"] if step != "[key]")
    context = detail.get("ctx", {})
    problem = detail["msg"][:1].lower() + detail["msg"][1:]
    match detail["type"]:
        case kind if kind in _OF_TYPE and detail["input"] is None:
            problem, remedy = "is blank", _remedy_for_blank(shape, path)
        case "model_type" | "dict_type":
            problem, remedy = "is not a mapping", "write its fields below it, indented"
        case "list_type":
            problem, remedy = "is not a list", "write it as one, such as [a, b]"
        case "float_type" | "int_type" if isinstance(detail["input"], str) and detail["input"].lstrip("+-").isdigit():
            problem, remedy = "is out of bounds, or in quotes", "correct it; policies/schema.json describes every field"
        case "missing":
            problem, remedy = "is missing", "write it: it has no default"
        case "extra_forbidden":
            problem, remedy = "is not a known field", _field_suggestion(shape, path)
            if path in _REMOVED_FIELDS.get(document.content["kind"], {}):
                problem, remedy = "was removed", _REMOVED_FIELDS[document.content["kind"]][path]
        case "string_pattern_mismatch":
            problem, remedy = "is not well-formed", REMEDY_BY_PATTERN[context["pattern"]]
        case "string_type":
            remedy = "put the text in quotes"
        case "literal_error":
            problem, remedy = "is not known", f"write {context['expected']}"
        case "float_type" | "int_type":
            remedy = "write a number, without quotes"
        case "too_short":
            problem, remedy = "is empty", "list something, or remove the field"
        case kind if kind == REMEDY:
            remedy = context["remedy"]
        case _:
            remedy = "correct it; policies/schema.json describes every field"
    return document.error(path, problem, remedy)


def _remedy_for_blank(shape: type[BaseModel], path: Path) -> str:
    field = _model_at(shape, path).model_fields.get(str(path[-1]))
    if field is None or field.is_required():
        return "write its value: it has no default"
    return "write its value, or remove the field to use its default"


def _field_suggestion(shape: type[BaseModel], path: Path) -> str:
    """Return a remedy that names the known field closest to the unknown one at `path`."""
    known = [field.alias or name for name, field in _model_at(shape, path).model_fields.items()]
    return suggest(str(path[-1]), known, "remove it; policies/schema.json describes every field")


def _model_at(shape: type[BaseModel], path: Path) -> type[BaseModel]:
    """Return the model of the mapping that contains the field at `path`."""
    for step in path[:-1]:
        if isinstance(step, int):
            continue  # a position in a list: the field before it describes its items
        field = shape.model_fields.get(step)
        inner = _shape_in(field.annotation) if field is not None else None
        if inner is None:
            break
        shape = inner
    return shape


def _shape_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a field's type: the type itself, an optional one, or a list's item."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((shape for part in get_args(annotation) if (shape := _shape_in(part)) is not None), None)

"""Reads documents into the structs of their kinds: every error of a document, and the names that it refers to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from operator import ge, gt, le, lt
from typing import Any, Final, NamedTuple
from unicodedata import category

import msgspec.inspect as types
from msgspec import Struct

from adapters.configuration.strict_yaml import Path
from adapters.error_text import suggest
from control_plane.policy.bundle_errors import MAX_SUGGESTIONS, PolicyError
from control_plane.policy.document_fields import (
    COMMON_FIELDS,
    DESCRIPTION,
    MAX_DESCRIPTION,
    DocumentField,
    document_fields,
    mark,
)
from control_plane.policy.documents import Document
from control_plane.policy.kinds import API_VERSION, KINDS
from penstock.policy.fields import PolicyStruct

_SEE_SCHEMA: Final = "policies/schema.json describes every field"
_BOUNDS: Final[dict[str, tuple[str, Callable[[float, float], bool]]]] = {
    "minimum": ("at least", ge),
    "exclusiveMinimum": ("above", gt),
    "maximum": ("at most", le),
    "exclusiveMaximum": ("below", lt),
}
"""Words and comparison of the limits of numbers in JSON Schema."""


_LEAST: Final = 1e-100
"""Least magnitude of a number that is not 0. With smaller ones, quotients overflow, and the solver of the plan may run
without end."""


class Reference(NamedTuple):
    """A name in a document that another document must have."""

    path: Path
    kind: str
    """Kind of the other document, or `COUNTRY`, `PLACE` or `SUBDIVISION` of `penstock.policy.fields`."""
    name: str


class Reading(NamedTuple):
    """What a document contains: the struct of its kind, None if the document has errors."""

    struct: PolicyStruct | None
    references: list[Reference]
    errors: list[PolicyError]


def read_struct(document: Document, kind: str) -> Reading:
    """Read a document by the struct of its kind."""
    reader = _StructReader(document)
    content = dict(document.content)
    reader.read_choice((API_VERSION,), content.pop("apiVersion", API_VERSION), ("apiVersion",))
    if "apiVersion" not in document.content:
        reader.refuse(("apiVersion",), "is missing", f"write `apiVersion: {API_VERSION}`")
    if DESCRIPTION in content:
        limits = {"maxLength": MAX_DESCRIPTION}
        reader.read(types.Metadata(types.StrType(), limits), content.pop(DESCRIPTION), (DESCRIPTION,))
    content.pop("kind")
    found = reader.read_mapping(KINDS[kind].struct, content, ())
    return Reading(None if reader.errors else found, reader.references, reader.errors)


class _StructReader:
    """Collects the errors of one document. A value with an error is read as None, and discarded with the document."""

    def __init__(self, document: Document) -> None:
        self.errors: list[PolicyError] = []
        self.references: list[Reference] = []
        self._document = document

    def refuse(self, path: Path, problem: str, remedy: str) -> None:
        self.errors.append(self._document.error(path, problem, remedy))

    def read(self, type_: types.Type, value: Any, path: Path) -> Any:
        """Return the value of a field or an item."""
        match type_:
            case types.Metadata():
                return self._read_limited(type_, value, path)
            case types.UnionType():
                return None if value is None else self.read(_not_null(type_), value, path)
            case _ if value is None:
                self.refuse(path, "is blank", "write its value")
            case types.StructType() if isinstance(value, dict):
                return self.read_mapping(type_.cls, value, path)
            case types.DictType() if isinstance(value, dict):
                return {
                    self.read(type_.key_type, key, (*path, key)): self.read(type_.value_type, inner, (*path, key))
                    for key, inner in value.items()
                }
            case types.StructType() | types.DictType():
                self.refuse(path, "is not a mapping", "write its fields below it, indented")
            case types.VarTupleType() | types.FrozenSetType():
                return self._read_list(type_, value, path)
            case types.EnumType():
                chosen = self.read_choice([choice.value for choice in type_.cls], value, path)
                return None if chosen is None else type_.cls(chosen)
            case types.LiteralType():
                return self.read_choice(type_.values, value, path)
            case types.BoolType():
                if isinstance(value, bool):
                    return value
                self.refuse(path, "is neither true nor false", "write true or false, without quotes")
            case types.StrType():
                return self._read_text(value, path)
            case types.IntType() | types.FloatType():
                return self._read_number(type_, value, path)
            case _:
                raise TypeError(f"documents cannot have a {type_}")
        return None

    def read_mapping(self, struct: type[Struct], value: Mapping[str, Any], path: Path) -> Any:
        """Return a struct; None if one of its fields has an error, or its fields contradict each other."""
        errors_before = len(self.errors)
        fields = document_fields(struct)
        for name in value.keys() - fields.keys():
            self._refuse_unknown((*path, name), [*fields, *(COMMON_FIELDS if not path else ())])
        values: dict[str, Any] = {}
        for name, field in fields.items():
            if name in value:
                values[name] = self._read_field(field, value[name], (*path, name))
            elif field.is_required:
                self.refuse((*path, name), "is missing", "write it: it has no default")
            elif field.may_be_null:
                values[name] = None
        if len(self.errors) > errors_before:
            return None
        # A default is set by its own object: msgspec omits no other, and equal documents must have equal digests.
        found: Any = struct(**{name: each for name, each in values.items() if each != fields[name].default})
        conflict = found.conflict()
        if conflict is not None:
            self.refuse(path, *conflict)
        return found

    def read_choice(self, choices: Sequence[Any], value: Any, path: Path) -> Any:
        """Return a value that must be one of `choices`."""
        if isinstance(value, str) and value in choices:
            return value
        written = [choice for choice in choices if choice]
        self.refuse(path, "is not known", self._suggestion(value, written, f"write one of {', '.join(written)}"))
        return None

    def _read_field(self, field: DocumentField, value: Any, path: Path) -> Any:
        if value is None and not field.may_be_null:
            default = "write its value: it has no default"
            optional = "write its value, or remove the field to use its default"
            self.refuse(path, "is blank", default if field.is_required else optional)
            return None
        return self.read(field.type, value, path)

    def _refuse_unknown(self, path: Path, known: Sequence[str]) -> None:
        self.refuse(path, "is not a known field", self._suggestion(path[-1], known, f"remove it; {_SEE_SCHEMA}"))

    def _suggestion(self, word: Any, known: Sequence[str], otherwise: str) -> str:
        return suggest(str(word), known, otherwise) if len(self.errors) < MAX_SUGGESTIONS else otherwise

    def _read_limited(self, type_: types.Metadata, value: Any, path: Path) -> Any:
        """Return a value whose type has bounds, a pattern or a parser."""
        limits = type_.extra_json_schema or {}
        parse = mark(type_, "parse")
        errors_before = len(self.errors)
        found = self.read(type_.type if parse is None else types.StrType(), value, path)
        if len(self.errors) > errors_before or found is None:
            return None
        error = _limit_error(limits, found, mark(type_, "remedy"))
        if error is None and parse is not None:
            try:
                return parse(found)
            except ValueError as reason:
                error = str(reason), mark(type_, "remedy")
        if error is not None:
            self.refuse(path, *error)
        refers_to = mark(type_, "refers_to")
        if refers_to is not None:
            self.references.append(Reference(path, refers_to, found))
        return found

    def _read_list(self, type_: types.VarTupleType | types.FrozenSetType, value: Any, path: Path) -> Any:
        if not isinstance(value, list):
            self.refuse(path, "is not a list", "write it as one, such as [a, b]")
            return None
        errors_before = len(self.errors)
        items = [self.read(type_.item_type, item, (*path, index)) for index, item in enumerate(value)]
        if len(self.errors) > errors_before:
            return None
        seen = set[Any]()
        for index, item in enumerate(items):
            if item in seen:
                named = f"'{item}'" if isinstance(item, str) else f"item {index + 1}"
                self.refuse(path, f"{named} is listed twice", "keep one of them")
                break
            seen.add(item)
        return tuple(items) if isinstance(type_, types.VarTupleType) else frozenset(items)

    def _read_text(self, value: Any, path: Path) -> str | None:
        if not isinstance(value, str):
            self.refuse(path, "is not a text", "put the text in quotes")
            return None
        if value.isprintable():
            return value
        for letter in value:
            # Such a character could control a terminal, or make two different texts appear equal.
            if letter != "\n" and (category(letter)[0] == "C" or category(letter) in {"Zl", "Zp"}):
                written = letter.encode("unicode_escape").decode()
                self.refuse(path, f"has the invisible character {written}", "remove it")
                return None
        return value

    def _read_number(self, type_: types.Type, value: Any, path: Path) -> float | None:
        is_whole = isinstance(type_, types.IntType)
        if isinstance(value, str) and value.lstrip("+-").isdigit():
            self.refuse(path, "is out of bounds, or in quotes", f"correct it; {_SEE_SCHEMA}")
        elif isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
            what = "a whole number" if is_whole else "a number"
            self.refuse(path, f"is not {what}", f"write {what}, without quotes")
        elif not isfinite(value):
            self.refuse(path, "is out of bounds", f"write a smaller number; {_SEE_SCHEMA}")
        elif 0 < abs(value) < _LEAST:
            self.refuse(path, "is out of bounds", f"write 0 or a larger number; {_SEE_SCHEMA}")
        else:
            return value if is_whole else float(value)
        return None


def _limit_error(limits: Mapping[str, Any], value: Any, remedy: str | None) -> tuple[str, str] | None:
    """Return problem and remedy of a value that exceeds a limit; None if it exceeds none."""
    if isinstance(value, int | float):
        bounds = [(words, limits[name], holds) for name, (words, holds) in _BOUNDS.items() if name in limits]
        if all(holds(value, bound) for _, bound, holds in bounds):
            return None
        named = " and ".join(f"{words} {bound:.12g}" for words, bound, _ in bounds)
        return "is out of bounds", f"write a number that is {named}"
    if not isinstance(value, str | tuple | frozenset):
        return None
    if isinstance(value, str) and "pattern" in limits and re.fullmatch(limits["pattern"], value) is None:
        return "is not well-formed", remedy or ""
    size, what = len(value), "characters" if isinstance(value, str) else "items"
    if size < limits.get("minLength", 0) or size < limits.get("minItems", 0):
        return "is empty", "write its value" if isinstance(value, str) else "list something, or remove the field"
    most = limits.get("maxLength", limits.get("maxItems", size))
    return None if size <= most else (f"has more than {most} {what}", "make it shorter")


def _not_null(type_: types.UnionType) -> types.Type:
    (found,) = [each for each in type_.types if not isinstance(each, types.NoneType)]
    return found

"""Parses YAML into plain documents with the line of each field, and rejects YAML's error-prone features.

Scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema), so that the country code NO
is a string and not false. Anchors, aliases and tags are rejected: an alias can expand into gigabytes, and the meaning
of a tag depends on the reader.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec
from yaml.composer import Composer, ComposerError
from yaml.error import Mark, MarkedYAMLError, YAMLError
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

MAX_DEPTH = 8
"""Maximum number of nesting levels; every file format of Penstock needs less than half."""

_SPLIT = "split it into several files; what follows in this file was not read"
_BAD_CHARACTER = "a character that YAML does not allow"
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character in UTF-16, which an escape in YAML can denote and no encoding can write."""
_TAG = "tag:yaml.org,2002:"
_CORE_SCHEMA = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]{1,18}", list("-+0123456789")),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
}

Path = tuple[str | int, ...]


class YamlError(msgspec.Struct, frozen=True):
    """One error of a file, and its remedy."""

    line: int
    """Line number, from 1; 0 if the error belongs to no line."""
    path: Path
    """Path of the field; empty if the error concerns no single field."""
    problem: str
    remedy: str


class YamlDocument(msgspec.Struct, frozen=True):
    """One document, which is a mapping, with its line and the line of each field."""

    line: int
    content: dict[str, Any]
    lines: dict[Path, int]

    def line_of(self, path: Path) -> int:
        """Return the line of a field, or of the nearest enclosing field that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, self.line)


def read_yaml(
    text: str, *, beginning: str, max_documents: int, max_errors: int
) -> tuple[list[YamlDocument], list[YamlError]]:
    """Return every valid document of one file, and the errors of the file.

    Args:
        beginning: remedy for a document that is not a mapping: how to begin a document.
        max_documents: maximum number of documents; further documents are not read.
        max_errors: number of errors after which no further documents are read.
    """
    documents: list[YamlDocument] = []
    errors: list[YamlError] = []
    refusals: list[YamlError] = []
    number = 0
    try:
        loader = _Loader(text, refusals)
        while loader.check_node():
            number += 1
            if number > max_documents:
                errors.append(YamlError(loader.next_line, (), f"more than {max_documents} documents", _SPLIT))
                break
            seen = len(refusals)
            node: Any = loader.get_node()
            builder = _Builder()
            content = builder.build(node, ())
            line = node.start_mark.line + 1
            if not isinstance(content, dict):
                problem, remedy = "this document is not a mapping", beginning
                if content is None:
                    problem, remedy = "this document is empty", "write it, or remove the `---` before it"
                builder.errors.append(YamlError(line, (), problem, remedy))
            elif not builder.errors and len(refusals) == seen:
                documents.append(YamlDocument(line, content, builder.lines))
            errors += builder.errors
            if len(errors) + len(refusals) >= max_errors:
                remedy = "correct these first; what follows in this file was not read"
                errors.append(YamlError(line, (), f"{max_errors} errors or more", remedy))
                break
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        errors.append(YamlError(line, (), _BAD_CHARACTER, "remove it"))
    except (ValueError, OverflowError):
        # From `chr` in PyYAML: an escape such as "\\U00110000" denotes no character.
        errors.append(YamlError(loader.get_mark().line + 1, (), _BAD_CHARACTER, "remove it"))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "not YAML"
        remedy = "correct the YAML; what follows in this file was not read"
        errors.append(YamlError(mark.line + 1 if mark else 0, (), problem, remedy))
    except YAMLError as error:
        errors.append(YamlError(0, (), f"not YAML: {error}", "correct it"))
    return documents, errors + refusals


class _CoreResolver(BaseResolver):
    pass


for _name, (_pattern, _first) in _CORE_SCHEMA.items():
    _CoreResolver.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), _first)


class _Loader(Reader, Scanner, Parser, Composer, _CoreResolver):
    """Composes nodes, and records anchors, aliases and tags as errors instead of applying them."""

    def __init__(self, text: str, refusals: list[YamlError]) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        _CoreResolver.__init__(self)
        self._refusals = refusals
        self._depth = 0

    @property
    def next_line(self) -> int:
        """Line at which the unread part of the file begins."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        line: int = event.start_mark.line + 1
        return line

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        marks = (event.start_mark, event.end_mark)
        if isinstance(event, AliasEvent):
            self.get_event()  # type: ignore[no-untyped-call]
            self._refuse(event, f"the alias *{event.anchor}", "write the value out where it is used")
            return ScalarNode(_TAG + "null", "", *marks)
        if event.anchor is not None:
            self._refuse(event, f"the anchor &{event.anchor}", "remove it, and write values out where they are used")
            event.anchor = None
        if getattr(event, "tag", None) is not None:
            self._refuse(event, f"the tag {event.tag}", "remove it")
            event.tag = None
        if _SURROGATE.search(getattr(event, "value", "")):
            self._refusals.append(YamlError(event.start_mark.line + 1, (), _BAD_CHARACTER, "remove it"))
        self._depth += 1
        if self._depth > MAX_DEPTH:
            _too_deep(event.start_mark)
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _refuse(self, event: Any, what: str, remedy: str) -> None:
        line = event.start_mark.line + 1
        self._refusals.append(YamlError(line, (), f"{what} is not allowed", remedy))


def _too_deep(mark: Mark) -> NoReturn:
    raise ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", mark)


class _Builder:
    """Converts one document's nodes to plain values, and records the line of each path."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self.errors: list[YamlError] = []

    def build(self, node: Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, ScalarNode):
            return _scalar(node)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _scalar(key_node) if isinstance(key_node, ScalarNode) else None
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                self.errors.append(YamlError(line, path, "a field's name is not a word", "put it in quotes"))
                continue
            here = (*path, key)
            if key in built:
                remedy = f"keep one; the other is at line {self.lines[here]}"
                self.errors.append(YamlError(line, here, "written twice", remedy))
                continue
            self.lines[here] = line
            built[key] = self.build(value_node, here)
        return built


def _scalar(node: ScalarNode) -> Any:
    match node.tag.removeprefix(_TAG):
        case "null":
            return None
        case "bool":
            return node.value.lower() == "true"
        case "int":
            return int(node.value)
        case "float":
            return float(node.value)
    return node.value

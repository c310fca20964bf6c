"""Reads the documents of a bundle's files: strict YAML, with the file and line of each field."""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.configuration.strict_yaml import Path, YamlDocument, read_yaml
from adapters.error_text import field_path
from control_plane.policy.bundle_errors import MAX_ERRORS, PolicyError
from control_plane.policy.bundle_limits import MAX_DOCUMENTS_OF_FILE


class Document(msgspec.Struct, frozen=True):
    """One YAML document of a file."""

    file: str
    yaml: YamlDocument

    @property
    def line(self) -> int:
        """The line at which the document begins."""
        return self.yaml.line

    @property
    def content(self) -> dict[str, Any]:
        """The document as a mapping."""
        return self.yaml.content

    @property
    def source(self) -> str:
        """File and line of the document's name."""
        return f"{self.file}:{self.line_of(('name',))}"

    def line_of(self, path: Path) -> int:
        """Return the line of a field, or of the nearest enclosing field that is in the file."""
        return self.yaml.line_of(path)

    def error(self, path: Path, problem: str, remedy: str) -> PolicyError:
        """Return an error at a field of this document."""
        return PolicyError(self.file, self.line_of(path), field_path(path), problem, remedy)


def read_documents(file: str, text: str) -> tuple[list[Document], list[PolicyError]]:
    """Return the valid documents of one file, and the errors of its invalid documents.

    A file without a document is invalid, because it may have lost its content in a crash or on a full disk.
    """
    documents, errors = read_yaml(
        text,
        beginning="begin it with `apiVersion` and `kind`",
        max_documents=MAX_DOCUMENTS_OF_FILE,
        max_errors=MAX_ERRORS,
    )
    found = [PolicyError(file, error.line, field_path(error.path), error.problem, error.remedy) for error in errors]
    if not documents and not found:
        found.append(PolicyError(file, 0, "", "has no document", "restore its content, or remove the file"))
    return [Document(file, document) for document in documents], found

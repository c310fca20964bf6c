"""YAML is parsed by the core schema of YAML 1.2, with line numbers, and without error-prone features."""

# A row of a table of messages is one line.
# ruff: noqa: E501

from __future__ import annotations

from typing import Any

import pytest

from adapters.configuration.strict_yaml import MAX_DEPTH
from control_plane.policy import documents as documents_module
from control_plane.policy.bundle_errors import MAX_ERRORS
from control_plane.policy.documents import read_documents


def content(text: str) -> dict[str, Any]:
    (document,), errors = read_documents("a.yaml", text)
    assert errors == []
    return document.content


def errors(text: str) -> list[str]:
    return [str(error) for error in read_documents("a.yaml", text)[1]]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("NO", "NO"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("", None),
        ("12", 12),
        ("-1.5", -1.5),
        ("1e3", 1000.0),
        ("1:30", "1:30"),
        ("0x1F", "0x1F"),
        ("2024-01-01", "2024-01-01"),
        ('"12"', "12"),
        (".inf", ".inf"),
        ("9" * 19, 9999999999999999999.0),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(written: str, read: object) -> None:
    value = content(f"a: {written}")["a"]
    assert value == read
    assert type(value) is type(read)


def test_documents_and_fields_have_line_numbers() -> None:
    first, second = read_documents("a.yaml", "# comment\na: 1\nb:\n  - x\n  - y\n---\nc: {d: 2}\n")[0]
    assert (first.line, first.line_of(("b",)), first.line_of(("b", 1))) == (2, 3, 5)
    assert (second.line, second.line_of(("c", "d"))) == (7, 7)
    assert first.line_of(("b", 1, "nowhere")) == 5
    assert first.line_of(("nowhere",)) == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: &x 1\nb: 2", "a.yaml:1: the anchor &x is not allowed; remove it, and write values out where they are used"),
        ("a: 1\nb: !!python/name:os.system ''", "a.yaml:2: the tag tag:yaml.org,2002:python/name:os.system is not allowed; remove it"),
        ("a: 1\nb: 2\na: 3", "a.yaml:3: a: written twice; keep one; the other is at line 1"),
        ("a:\n  b: 1\n  b: 2", "a.yaml:3: a.b: written twice; keep one; the other is at line 2"),
        ("a: 1\n2: b", "a.yaml:2: a field's name is not a word; put it in quotes"),
        ("a: {[1]: b}", "a.yaml:1: a: a field's name is not a word; put it in quotes"),
        ("- a\n- b", "a.yaml:1: this document is not a mapping; begin it with `apiVersion` and `kind`"),
        ("a: 1\n---\n", "a.yaml:3: this document is empty; write it, or remove the `---` before it"),
        ("a: 1\nb: [1, 2", "a.yaml:2: expected ',' or ']', but got '<stream end>'; correct the YAML; what follows in this file was not read"),
        ("a: 1\nb: \x07", "a.yaml:2: a character that YAML does not allow; remove it"),
        ('a: 1\nb: "\\U00110000"', "a.yaml:2: a character that YAML does not allow; remove it"),
        ('a: 1\nb: "\\UFFFFFFFF"', "a.yaml:2: a character that YAML does not allow; remove it"),
        ('a: 1\n"\\ud800": 2', "a.yaml:2: a character that YAML does not allow; remove it"),
        ("a: " + "[" * 1000, f"a.yaml:1: nested deeper than {MAX_DEPTH} levels; correct the YAML; what follows in this file was not read"),
        ("a: *x", "a.yaml:1: the alias *x is not allowed; write the value out where it is used"),
    ],
)  # fmt: skip
def test_error_prone_features_are_refused_at_their_line(text: str, error: str) -> None:
    assert errors(text) == [error]


def test_an_alias_bomb_is_refused_without_expanding_it() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40))]
    documents, found = read_documents("a.yaml", "\n".join(lines))
    assert documents == []
    assert len(found) == 40 + 39 * 9


def test_a_flood_of_documents_is_not_read_to_its_end() -> None:
    documents, found = read_documents("a.yaml", "a: 1\n" + "---\n" * 200_000)
    assert [document.content for document in documents] == [{"a": 1}]
    assert len(found) == MAX_ERRORS + 1
    assert str(found[-1]).endswith("1000 errors or more; correct these first; what follows in this file was not read")


def test_a_file_of_too_many_documents_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "MAX_DOCUMENTS_OF_FILE", 3)
    remedy = "split it into several files; what follows in this file was not read"
    assert errors("a: 1\n---\n" * 2 + "a: 1\n") == []
    assert errors("a: 1\n---\n" * 20 + "a: [") == [f"a.yaml:6: more than 3 documents; {remedy}"]


def test_documents_before_a_broken_one_are_read() -> None:
    documents, found = read_documents("a.yaml", "a: 1\n---\nb: [")
    assert [document.content for document in documents] == [{"a": 1}]
    assert len(found) == 1


@pytest.mark.parametrize(
    "text", ["", "\n", " \n\n", "# nothing yet\n", "\ufeff", "...\n", "%YAML 1.2\n---\n", "---\n", "---\n---\n"]
)
def test_a_file_without_a_document_is_refused(text: str) -> None:
    documents, errors = read_documents("a.yaml", text)
    assert documents == []
    assert errors

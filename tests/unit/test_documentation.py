"""Generated reference pages are current, and guides name only metrics, files, commands and codes that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

import pytest
import typer

from control_plane.cli.main import app
from docs import api_page, generate_reference
from docs.reference_tables import default_text
from penstock.accounts.refusal_statuses import STATUS
from tests.support.paths import ROOT


def test_committed_pages_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    code = generate_reference.main(["--check"])
    assert code == 0, capsys.readouterr().out[:4_000]


def test_a_changed_page_is_stale(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        generate_reference, "pages", lambda: {generate_reference.PAGES / "settings.md": "another page\n"}
    )
    assert generate_reference.main(["--check"]) == 1
    assert "+another page" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("default", "text"),
    [
        (1.0, "1.0"),
        (0, "0"),
        (0.0, "0.0"),
        (1, "1"),
        (True, "true"),
        (False, "false"),
        (None, "null"),
        ("", '""'),
        ([1], "[1]"),
    ],
)
def test_a_default_is_printed_as_json(default: object, text: str) -> None:
    assert default_text(default) == text


def test_every_default_of_the_policy_page_has_the_type_of_its_field() -> None:
    boolean = re.compile(r"^\| `(\w+)` \| ([^|]*) \| `(true|false)` \|", re.MULTILINE)
    found = boolean.findall(generate_reference.policy_page())
    assert found
    assert [row for row in found if "boolean" not in row[1]] == []


def test_the_api_page_has_every_operation() -> None:
    page = api_page.api_page()
    for path, methods in api_page.description()["paths"].items():
        for method in methods:
            assert page.count(f"### {method.upper()} {path}\n") == 1


NAMED_PATH = re.compile(
    r"`((?:penstock|adapters|control_plane|regional_agent|lab|tests|docs|policies|dashboards|terraform)/[\w./-]*)`"
)


def test_documents_name_only_paths_that_exist() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")):
        missing = [path for path in NAMED_PATH.findall(document.read_text()) if not (ROOT / path).exists()]
        assert missing == [], document.name


def test_guides_name_only_metrics_that_exist() -> None:
    exported = set(re.findall(r"^\| `(penstock_\w+)`", generate_reference.metrics_page(), re.MULTILINE))
    for guide in (ROOT / "docs").glob("*.md"):
        named = set(re.findall(r"\bpenstock_(?!regions\b)\w+", guide.read_text()))
        assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in named} <= exported, guide.name


BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^ *(?:kubectl .* -- )?penstock (?![a-z -]+: )([^\n|>#;&]+)", re.MULTILINE)
"""A command, but no message of one, such as `penstock audit export: 1 entries`."""


def unknown_word(words: Sequence[str]) -> str | None:
    """The first word of a `penstock` command that names no command or option; None if all are known."""
    command: Any = typer.main.get_command(app)
    rest = iter(words)
    for word in rest:
        if word.startswith("-"):
            name, has_value, _ = word.partition("=")
            found = [option for option in command.params if name in (*option.opts, *option.secondary_opts)]
            if not found:
                return word
            if not (has_value or found[0].is_flag):
                next(rest, None)
        elif hasattr(command, "get_command"):
            command = command.get_command(typer.Context(command), word)
            if command is None:
                return word
    return None


@pytest.mark.parametrize(
    ("command", "unknown"),
    [("rollout show", None), ("rollout shew", "shew"), ("drain eu-de --reason x", None), ("drain --why", "--why")],
)
def test_an_unknown_command_is_found(command: str, unknown: str | None) -> None:
    assert unknown_word(command.split()) == unknown


def test_guides_panels_and_messages_name_only_commands_that_exist() -> None:
    guides = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/runbooks").glob("*.md"))
    panels = (ROOT / "dashboards" / "generated").iterdir()
    packages = ("adapters", "control_plane", "penstock", "regional_agent")
    sources = (source for package in packages for source in (ROOT / package).rglob("*.py"))
    for guide in (*guides, *ROOT.glob("*/README.md"), *panels, *sources):
        for command in re.findall(r"`penstock ([a-z][^`\n]*)`", guide.read_text()):
            words = re.sub(r'"[^"]*"|\{[^}]*\}', "text", command).replace(",", " ").split()
            assert unknown_word(words) is None, f"{guide.name}: penstock {command}"


def test_blocks_of_guides_and_the_notes_of_the_chart_have_only_commands_that_exist() -> None:
    guides = {guide: "\n".join(BLOCK.findall(guide.read_text())) for guide in (ROOT / "docs").rglob("*.md")}
    notes = ROOT / "deploy/helm/penstock/templates/NOTES.txt"
    for file, text in {**guides, notes: notes.read_text()}.items():
        for command in COMMAND.findall(text.replace("\\\n", " ")):
            words = re.sub(r"'[^']*'|\"[^\"]*\"|\{\{.*?\}\}", "text", command).split()
            assert unknown_word(words) is None, f"{file.name}: penstock {command}"


def test_troubleshooting_has_each_error_with_its_status_and_no_other() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    table = page.partition("## A client receives an error")[2].partition("\n## ")[0]
    named = {}
    for symptom in re.findall(r"^\| (\d.*?) \|", table, re.MULTILINE):
        status = 0
        for number, code in re.findall(r"(?:(\d{3}) )?`(\w+)`", symptom):
            status = int(number or status)
            named[code] = status
    assert named == {reason.value: status for reason, status in STATUS.items()}


def test_the_index_of_test_support_is_complete() -> None:
    """Each module of tests/support is in its README once, with the first line of its docstring."""
    folder = ROOT / "tests" / "support"
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.py\) \| (.+) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    modules = [
        (path.stem, (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0])
        for path in folder.glob("*.py")
        if path.stem != "__init__"
    ]
    assert sorted(listed) == sorted(modules)

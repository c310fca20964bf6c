"""Generated reference pages are current, and guides name only metrics and files that exist."""

from __future__ import annotations

import re

import pytest

from docs import api_page, generate_reference
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

"""A release whose version, tag and changelog contradict each other is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from release import project
from tests.support.paths import ROOT

CHART = Path("deploy/helm/penstock/Chart.yaml")


def test_all_files_of_the_checkout_state_one_version() -> None:
    assert project.problems("") == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the files that state the version 7.8.9, and a changelog of it."""
    for name in (Path("pyproject.toml"), Path("lab/pyproject.toml"), CHART):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text()
        (tmp_path / name).write_text(text.replace(project.version(), "7.8.9"))
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [7.8.9] - 2026-12-01\n")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "all"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_a_release_without_contradictions(checkout: Path) -> None:
    assert project.problems("v7.8.9", checkout) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("lab/pyproject.toml", '=="7.8.9"', "", "git: files differ"),
        ("lab/pyproject.toml", "==7.8.9", "==7.8.8", 'lab/pyproject.toml: lacks "penstock[jobs,quickstart]==7.8.9"'),
        (str(CHART), "appVersion: 7.8.9", "appVersion: 7.8.8", f"{CHART}: appVersion is not 7.8.9"),
        ("CHANGELOG.md", "[7.8.9] - 2026-12-01", "[7.8.9]", "CHANGELOG.md: has no section ## [7.8.9] - YYYY-MM-DD"),
        ("CHANGELOG.md", "7.8.9", "7.8.8", "CHANGELOG.md: has no section"),
        ("pyproject.toml", '"7.8.9"', '"7.9.0"', "pyproject.toml: version is 7.9.0, and the tag v7.8.9"),
    ],
)
def test_contradictions_are_named(checkout: Path, file: str, old: str, new: str, problem: str) -> None:
    text = (checkout / file).read_text()
    (checkout / file).write_text(text.replace(old, new, 1) + "\n")
    assert any(found.startswith(problem) for found in project.problems("v7.8.9", checkout))

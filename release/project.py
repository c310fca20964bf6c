"""The version of a release, and whether everything that states it agrees."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "penstock"


def version(root: Path = ROOT) -> str:
    """Return the version of `pyproject.toml`, which is the only place to change it by hand."""
    text: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return text


def commit(root: Path = ROOT) -> str:
    """Return the commit of the checkout, with the suffix `-dirty` if files differ from it."""
    described = _git(root, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    return described.strip()


def commit_time_s(root: Path = ROOT) -> int:
    """Return the Unix time (s) of the commit: the time of all that is built from it (SOURCE_DATE_EPOCH)."""
    return int(_git(root, "log", "-1", "--format=%ct"))


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return what contradicts a release, each with its file and the remedy.

    Args:
        tag: tag of the release, such as "v0.1.0"; "" for a build without a tag, whose changes are unreleased.
    """
    ours = version(root)
    found = []
    lab = (root / "lab" / "pyproject.toml").read_text()
    for stated in (f'version = "{ours}"', f'"penstock[jobs,quickstart]=={ours}"'):
        if stated not in lab:
            found.append(f"lab/pyproject.toml: lacks {stated}; write it")
    chart = (root / "deploy" / "helm" / "penstock" / "Chart.yaml").read_text()
    for field in ("version", "appVersion"):
        if f"\n{field}: {ours}\n" not in chart:
            found.append(f"deploy/helm/penstock/Chart.yaml: {field} is not {ours}; write {field}: {ours}")
    if tag:
        if tag != f"v{ours}":
            found.append(f"pyproject.toml: version is {ours}, and the tag {tag}; tag v{ours}, or change the version")
        changes = (root / "CHANGELOG.md").read_text()
        if not re.search(rf"^## \[{re.escape(ours)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
            found.append(f"CHANGELOG.md: has no section ## [{ours}] - YYYY-MM-DD; give Unreleased this title")
        if "-dirty" in commit(root):
            found.append("git: files differ from the commit; commit or remove them")
    return found


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout

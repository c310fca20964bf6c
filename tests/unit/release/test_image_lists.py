"""The lists of the image's packages are whole, and a list with a fault is refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from release.image import EXTRAS
from release.image.debian_packages import NAMES, PackageProblem, download, read_pinned
from tests.support.paths import ROOT

LISTS = ROOT / "deploy" / "container"


def test_every_package_is_pinned() -> None:
    assert [each.name for each in read_pinned(LISTS / "debian-amd64.txt")] == list(NAMES)


def test_python_packages_have_the_versions_of_the_constraints() -> None:
    """Otherwise what is tested is not what is in the image: run make lock-image after a change of constraints.txt."""
    constraints = dict(
        re.match(r"([^=]+)==([^;]+)", line).groups()  # type: ignore[union-attr]
        for line in (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
        if "==" in line
    )
    pinned = re.findall(
        r"^(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}$", (LISTS / "python-amd64.txt").read_text(), re.MULTILINE
    )
    assert len(pinned) == len((LISTS / "python-amd64.txt").read_text().splitlines()) - 1
    for name, version in pinned:
        assert constraints[name.replace("_", "-")] == version


def test_every_dependency_is_in_the_image() -> None:
    """Of the project and of the extras that the image has: run make lock-image after a change of the dependencies."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for_development = {"compile", "docs", "fuzz", "quickstart", "release", "test", "ui"}
    assert set(EXTRAS.split(",")) == declared["optional-dependencies"].keys() - for_development
    extras = [declared["optional-dependencies"][extra] for extra in EXTRAS.split(",")]
    wanted = {re.match(r"[\w.-]+", each)[0].lower() for each in sum(extras, declared["dependencies"])}  # type: ignore[index]
    pinned = {line.partition("==")[0] for line in (LISTS / "python-amd64.txt").read_text().splitlines()}
    assert wanted <= pinned
    unbounded = [each for each in sum(extras, declared["dependencies"]) if "<" not in each and "==" not in each]
    assert unbounded == ["tzdata>=2026.1"], "installations of the wheel choose the newest versions"


@pytest.mark.parametrize(
    ("text", "problem"), [(None, "no such list; run make lock-image"), ("a 1\n", ":1: is not `name version sha256`")]
)
def test_a_list_with_a_fault_is_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    if text is not None:
        (tmp_path / "list").write_text(text)
    with pytest.raises(PackageProblem, match=re.escape(problem)):
        read_pinned(tmp_path / "list")


def test_a_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(f"# comment\na 1:2 {'0' * 64}\n")
    (tmp_path / "a_1%3a2_amd64.deb").write_text("another")
    with pytest.raises(PackageProblem, match="its SHA-256 differs"):
        download(read_pinned(tmp_path / "list"), tmp_path)

"""Python packages of the image: pinned by digest, built into wheels, installed for the image's interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

INTERPRETER = "/usr/bin/python3.11"
SITE_PACKAGES = "usr/local/lib/python3.11/dist-packages"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def lock(file: Path, project: Path, extras: str, python: str) -> None:
    """Write the dependencies of the project with the digests of the files for this platform.

    Args:
        extras: extras of the project, comma-separated.
        python: full version of the image's interpreter, such as "3.11.2", which markers compare.

    Raises:
        subprocess.CalledProcessError: pip finds no set of versions by constraints.txt.
    """
    more: list[str] = []
    while True:
        found = _resolved([f"{project}[{extras}]", *more], project / "constraints.txt")
        missing = [name for name in _needed(found, python) if name not in found]
        if not missing:
            break
        more += missing
    lines = [
        f"{name}=={package['metadata']['version']} --hash=sha256:{_sha256(package)}\n"
        for name, package in sorted(found.items())
        if name != "penstock"
    ]
    file.write_text("# Python packages of the image, for CPython 3.11. Made by `make lock-image`.\n" + "".join(lines))


def _resolved(requirements: list[str], constraints: Path) -> dict[str, Any]:
    """What pip would install, by canonical name (its installation report)."""
    command = [*PIP, "install", "-qq", "--dry-run", "--ignore-installed", "--no-build-isolation", "--report", "-"]
    reported = subprocess.run(
        [*command, "--constraint", str(constraints), *requirements], check=True, stdout=subprocess.PIPE, text=True
    )
    return {canonicalize_name(each["metadata"]["name"]): each for each in json.loads(reported.stdout)["install"]}


def _sha256(package: Any) -> str:
    digest: str = package["download_info"]["archive_info"]["hashes"]["sha256"]
    return digest


def _needed(packages: Mapping[str, Any], python: str) -> set[str]:
    """The names that packages require by their markers on the image's interpreter."""
    needed: set[str] = set()
    for package in packages.values():
        extras = package.get("requested_extras", [])
        for line in package["metadata"].get("requires_dist", ()):
            requirement = Requirement(line)
            for extra in ("", *extras):
                environment = {"python_full_version": python, "extra": extra}
                if requirement.marker is None or requirement.marker.evaluate(environment):
                    needed.add(canonicalize_name(requirement.name))
    return needed


def wheels(pinned: Path, folder: Path) -> list[Path]:
    """Download the pinned packages as wheels, or build wheels of those that have none; return them.

    Raises:
        subprocess.CalledProcessError: a digest differs, or a package cannot be had.
    """
    made = folder / "made-from.txt"
    if not made.exists() or made.read_text() != pinned.read_text():
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        command = [*PIP, "wheel", "-qq", "--no-deps", "--require-hashes", "--no-build-isolation"]
        subprocess.run([*command, "--wheel-dir", str(folder), "--requirement", str(pinned)], check=True)
        made.write_text(pinned.read_text())
    return sorted(folder.glob("*.whl"))


def install_wheels(files: Iterable[Path], root: Path) -> None:
    """Install wheels into a root directory, with commands for the image's interpreter."""
    site = str(root / SITE_PACKAGES)
    scheme = {
        "purelib": site,
        "platlib": site,
        "scripts": str(root / "usr/local/bin"),
        "data": str(root / "usr/local"),
        "headers": str(root / "usr/local/include"),
    }
    for file in files:
        with WheelFile.open(file) as source:
            destination = SchemeDictionaryDestination(scheme, interpreter=INTERPRETER, script_kind="posix")
            install(source, destination, additional_metadata={"INSTALLER": b"penstock-release\n"})

"""Unpacks packages of Debian without installing them: `python -m lab.debian_packages FOLDER PACKAGE...`.

Servers that have no wheel come from here: PowerDNS, dnsperf, BIRD. A package is downloaded with what it depends on and
this machine lacks. Programs are looked for in the folder that `DEBIAN_PACKAGES` names, or on PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLE = "DEBIAN_PACKAGES"


def unpack(folder: Path, packages: list[str]) -> None:
    """Download packages and their missing dependencies, and unpack them below `folder`.

    Raises:
        subprocess.CalledProcessError: apt-get or dpkg failed, as without a network.
    """
    wanted = f"apt-get install --simulate --no-install-recommends {' '.join(packages)}"
    if subprocess.run(wanted.split(), capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "update"], check=True, capture_output=True)
    plan = subprocess.run(wanted.split(), check=True, capture_output=True, text=True).stdout
    missing = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    # A package that is installed here is not among the missing, and needs no copy.
    for package in missing:
        if not (folder / f"{package}.unpacked").exists():
            subprocess.run(["apt-get", "download", package], cwd=folder, check=True, capture_output=True)
            for archive in folder.glob(f"{package}_*.deb"):
                subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)
                archive.unlink()
            (folder / f"{package}.unpacked").touch()


def program(name: str) -> str | None:
    """Return the path of a program, unpacked or installed; None if there is none."""
    folder = os.environ.get(VARIABLE)
    if folder:
        for place in ("usr/bin", "usr/sbin", "sbin", "bin"):
            unpacked = Path(folder, "root", place, name).resolve()
            if unpacked.exists():
                return str(unpacked)
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def file(path: str) -> Path | None:
    """Return a file of a package by its path below the root, unpacked or installed; None if there is none."""
    folder = os.environ.get(VARIABLE)
    found = [Path(folder, "root", path).resolve()] if folder else []
    return next((each for each in [*found, Path("/", path)] if each.is_file()), None)


def library_folders() -> list[Path]:
    """Return the folders of unpacked shared libraries."""
    folder = os.environ.get(VARIABLE)
    return (
        []
        if not folder
        else [path for path in Path(folder, "root/usr/lib").resolve().glob("*-linux-gnu*") if path.is_dir()]
    )


def environment() -> dict[str, str]:
    """Return the environment in which unpacked programs find their libraries."""
    found = os.environ.get("LD_LIBRARY_PATH", "")
    return os.environ | {"LD_LIBRARY_PATH": ":".join([*map(str, library_folders()), *filter(None, [found])])}


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]).resolve(), sys.argv[2:])
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"the packages {', '.join(sys.argv[2:])} cannot be unpacked: {error}")

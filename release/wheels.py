"""The source distribution and the wheels: a pure one, and a compiled one for each CPython of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from release.project import ROOT

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PIP = ("-m", "pip", "--disable-pip-version-check")


def interpreters() -> dict[str, str]:
    """Return the command of each supported CPython that runs here, by version: of PATH, or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in VERSIONS:
        candidates = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))]
        # Of Debian's packages one has no ensurepip; a shim of pyenv runs nothing where no version is selected.
        check = "import sys, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != sys.argv[1])"
        for candidate in filter(None, candidates):
            if subprocess.run([candidate, "-c", check, version], capture_output=True, check=False).returncode == 0:
                found[version] = candidate
                break
    return found


def build_sdist(folder: Path, time_s: int) -> Path:
    """Build the source distribution into `folder` and return its file."""
    hatchling = str(Path(sys.executable).with_name("hatchling"))
    subprocess.run(
        [hatchling, "build", "-t", "sdist", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(time_s)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def build_wheel(sdist: Path, folder: Path, log: Path, time_s: int, *, python: str | None) -> Path:
    """Build a wheel from the source distribution, with the build tools of constraints.txt, and return its file.

    Args:
        log: file of the compiler's output.
        python: the interpreter for which the request path is compiled; None builds the pure wheel.

    Raises:
        subprocess.CalledProcessError: it does not build; the log has the reason.
    """
    environment = {
        **os.environ,
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_BUILD_CONSTRAINT": str(ROOT / "constraints.txt"),
        "SOURCE_DATE_EPOCH": str(time_s),
        "PYTHONHASHSEED": "0",
        "HATCH_BUILD_HOOKS_ENABLE": "" if python is None else "1",
        # As in the Makefile: gcc takes minutes for warnings about the C code that mypyc writes.
        # setuptools adds CPPFLAGS to the flags of Python, and would put CFLAGS in their place.
        "CPPFLAGS": f"{os.environ.get('CPPFLAGS', '')} -Wno-all",
    }
    before = set(folder.glob("*.whl"))
    # The pip of this environment runs in the other interpreter, which need not have one.
    pip = [sys.executable, *PIP, *(("--python", python) if python else ())]
    with log.open("ab") as output:
        subprocess.run(
            [*pip, "wheel", "--no-cache-dir", "--no-deps", "--wheel-dir", str(folder), str(sdist)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=True,
        )
    (wheel,) = set(folder.glob("*.whl")) - before
    return wheel

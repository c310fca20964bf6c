"""Bytecode of the image's modules, made by the image's own interpreter, which needs neither root nor a container."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def compile_modules(root: Path, system: Path) -> None:
    """Write the bytecode of all modules below `root`.

    The files do not contain times, and the interpreter does not compare them with the sources, which are read-only.

    Args:
        root: root directory of a layer.
        system: root directory with the interpreter and its libraries.

    Raises:
        subprocess.CalledProcessError: the interpreter of the image does not run on this machine.
    """
    (loader,) = system.glob("lib/*-linux-gnu/ld-linux-*.so.*")
    libraries = ":".join(str(path) for path in (loader.parent, *system.glob("usr/lib/*-linux-gnu")))
    folders = [str(path) for path in (root / "usr/lib", root / "usr/local/lib", root / "usr/share") if path.exists()]
    subprocess.run(
        [
            *(str(loader), "--library-path", libraries, str(system / "usr/bin/python3.11"), "-S", "-B"),
            *("-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash"),
            *("-s", str(root), "-p", "/", *folders),
        ],
        # The order of the constants of a set depends on the seed of hashes.
        env={"PYTHONHOME": str(system / "usr"), "PYTHONHASHSEED": "0", "PATH": os.defpath},
        check=True,
    )

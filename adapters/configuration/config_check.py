"""Implementation of `--check-config`, `--print-config` and `--version`.

The checks read the same settings and files that a daemon reads at its start, and open no connections.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from platform import python_version

from adapters.configuration.settings_listing import settings_listing
from adapters.configuration.settings_loader import BadSettings, LoadedSettings, S
from adapters.error_text import printable
from adapters.release import release


def show_config(
    loaded: LoadedSettings[S], config_problems: Callable[[S], list[str]], *, check: bool, listing: bool
) -> bool:
    """Execute `--check-config` and `--print-config`; returns whether either was given.

    Args:
        config_problems: returns the problems of the settings and of the files that they name.
        check: whether `--check-config` was given.
        listing: whether `--print-config` was given.

    Raises:
        BadSettings: the check found a problem.
    """
    if listing:
        print(settings_listing(loaded))
    if check:
        problems = config_problems(loaded.settings)
        if problems:
            raise BadSettings("\n".join(problems))
        print("the configuration is valid", file=sys.stderr)
    return check or listing


def problems_of(checks: Iterable[Callable[[], object]], *errors: type[Exception]) -> list[str]:
    """Return the messages of all checks that fail, one line for each problem.

    Args:
        checks: each raises one of `errors` if something is invalid.
        errors: the exceptions whose messages are for the operator.
    """
    problems: list[str] = []
    for check in checks:
        try:
            check()
        except errors as error:
            problems += [printable(line) for line in str(error).splitlines()]
    return problems


def can_write_in(directory: Path) -> bool:
    """Whether this process may write in a directory, or create it if it is missing."""
    # Unlike Path.exists, this raises nothing if a parent directory is inaccessible.
    while not os.path.exists(directory) and directory != directory.parent:
        directory = directory.parent
    return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)


def version_line(command: str) -> str:
    """Return the output of `--version`: the command, its version, and the version of Python."""
    return f"{command} {release() or '(not installed)'} (Python {python_version()})"

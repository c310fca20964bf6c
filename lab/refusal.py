"""Reports invalid input of a lab command: one line with the command's name on stderr, and exit code 2."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

BAD_INPUT = 2


def refuse(command: str, problem: str) -> NoReturn:
    """Print the problem to stderr and exit.

    Args:
        command: name of the command, without `penstock-lab`.
        problem: the problem and its remedy.
    """
    print(f"penstock-lab {command}: {problem}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT)

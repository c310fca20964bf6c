"""How every command of the lab refuses what it was given: one line that names the command, and exit code 2."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

BAD_INPUT = 2


def refuse(command: str, problem: str) -> NoReturn:
    """End with the problem on stderr.

    Args:
        command: as it is called, without `penstock-lab`.
        problem: what is wrong with what, and the remedy.
    """
    print(f"penstock-lab {command}: {problem}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT)

"""How a command says what went wrong: lines on stderr, and an exit code that scripts can tell apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from control_plane.api_client import ApiError
from control_plane.client.secret_file import BadSecret
from control_plane.contexts import BadContexts

AT_FAULT = 2
"""Exit code: the command, or a file that it was given, has to be corrected."""

FAILED = 1
"""Exit code: nobody answers, or what was asked for is refused or not so."""


class CommandFault(Exception):
    """The command cannot be done as it was given; the message says why and what to write instead."""


@contextmanager
def telling(command: str) -> Iterator[None]:
    """End the process as it should end when something goes wrong inside.

    Args:
        command: the words after `penstock`, for the message.
    """
    try:
        yield
    except (CommandFault, BadSecret, BadContexts) as error:
        fail(command, str(error), AT_FAULT)
    except ApiError as error:
        fail(command, str(error), AT_FAULT if error.at_fault else FAILED)


def fail(command: str, message: str, code: int) -> NoReturn:
    """Say what is wrong, and exit with `code`."""
    complain(command, message)
    raise typer.Exit(code)


def complain(command: str, message: str) -> None:
    """Say what is wrong, and go on."""
    for line in message.splitlines():
        print(f"penstock {command}: {line}", file=sys.stderr)

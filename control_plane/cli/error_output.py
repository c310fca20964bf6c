"""How a command says what went wrong: lines on stderr, JSON on stdout where that is wanted, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec
import typer

from adapters.secret_file import BadSecret
from control_plane.cli.api_client import ApiError, ApiRefused
from control_plane.cli.contexts import BadContexts
from control_plane.policy.bundle_errors import printable

AT_FAULT = 2
"""Exit code: the command, or a file that it was given, has to be corrected."""

FAILED = 1
"""Exit code: nobody answers, or what was asked for is refused or not so."""


class CommandFault(Exception):
    """The command cannot be done as it was given; the message says why and what to write instead."""


class Fault(msgspec.Struct, frozen=True):
    """What went wrong, for programs: `{"error": ...}` on stdout."""

    message: str
    exit_code: int
    errors: Sequence[Any] = ()
    """Each thing that is wrong, where there are several: of a bundle by file and line, of a request by field."""
    problem: Mapping[str, Any] | None = None
    """What the control plane answered (RFC 9457), where it refused."""


class Failed(typer.Exit):
    """The command ends; people have been told why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.exit_code)
        self.fault = fault


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
    except ApiRefused as error:
        errors = error.problem.get("errors") or ()
        fail(command, str(error), AT_FAULT if error.at_fault else FAILED, errors=errors, problem=error.problem)
    except ApiError as error:
        fail(command, str(error), AT_FAULT if error.at_fault else FAILED)


def fail(
    command: str, message: str, code: int, *, errors: Iterable[Any] = (), problem: Mapping[str, Any] | None = None
) -> NoReturn:
    """Say what is wrong, and exit with `code`; the rest is for programs alone, see `Fault`."""
    complain(command, message)
    raise Failed(Fault(message, code, tuple(errors), problem))


def complain(command: str, message: str) -> None:
    """Say what is wrong, and go on."""
    for line in message.splitlines():
        print(f"penstock {command}: {printable(line)}", file=sys.stderr)


def fault_of(error: Exception) -> Fault | None:
    """What a command line ended with, where it was a fault of some kind; None for an end that is none."""
    if isinstance(error, Failed):
        return error.fault
    # Usage errors of click, or of the copy of it that newer versions of typer bring along.
    told = getattr(error, "format_message", None)
    return Fault(told(), getattr(error, "exit_code", AT_FAULT)) if told is not None else None

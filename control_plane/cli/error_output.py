"""Errors of commands: messages on stderr, JSON on stdout with `-o json`, and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec
import typer

from adapters.error_text import printable
from adapters.files.plain_file import UnusableFile
from control_plane.cli.api_client import ApiError, ApiRefused
from control_plane.cli.contexts import BadContexts

EXIT_USAGE = 2
"""Exit code: the command line, or a file that it names, is invalid."""

EXIT_FAILED = 1
"""Exit code: no control plane answered, the request was refused, or a check failed."""


class UsageFault(Exception):
    """The command line, or a file that it names, is invalid; the message states the remedy."""


class ErrorReport(msgspec.Struct, frozen=True):
    """An error as JSON: `{"error": ...}` on stdout."""

    message: str
    exit_code: int
    errors: Sequence[Any] = ()
    """The single errors: of a bundle by file and line, of a request by field."""
    problem: Mapping[str, Any] | None = None
    """Problem details (RFC 9457) of the control plane, when it refused the request."""


class CommandFailed(typer.Exit):
    """Ends the command after its error was printed."""

    def __init__(self, report: ErrorReport) -> None:
        super().__init__(report.exit_code)
        self.report = report


@contextmanager
def exit_on_error(command: str) -> Iterator[None]:
    """Print the errors raised inside and end the process with the exit code of each.

    Args:
        command: name of the command without `penstock`, for the message.
    """
    try:
        yield
    except (UsageFault, UnusableFile, BadContexts) as error:
        fail(command, str(error), EXIT_USAGE)
    except ApiError as error:
        code = EXIT_USAGE if error.is_usage_error else EXIT_FAILED
        problem = error.problem if isinstance(error, ApiRefused) else {}
        fail(command, str(error), code, errors=problem.get("errors") or (), problem=problem or None)


def fail(
    command: str, message: str, code: int, *, errors: Iterable[Any] = (), problem: Mapping[str, Any] | None = None
) -> NoReturn:
    """Print `message` on stderr and exit with `code`; `errors` and `problem` are for `ErrorReport`."""
    print_error(command, message)
    raise CommandFailed(ErrorReport(message, code, tuple(errors), problem))


def print_error(command: str, message: str) -> None:
    """Print a message on stderr, each line with the name of the command."""
    for line in message.splitlines():
        print(f"penstock {command}: {printable(line)}", file=sys.stderr)


def error_report(error: Exception) -> ErrorReport | None:
    """Return the error that ended a command line; None for an exit without an error."""
    if isinstance(error, CommandFailed):
        return error.report
    # Usage errors of click, or of the copy of click that newer versions of typer include.
    format_message = getattr(error, "format_message", None)
    return ErrorReport(format_message(), getattr(error, "exit_code", EXIT_USAGE)) if format_message else None

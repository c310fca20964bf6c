"""Policy bundles as command arguments: a folder, or a revision of a git repository.

The compiler and the git client are imported where they are used, so that other commands start faster.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from control_plane.cli.error_output import EXIT_USAGE, UsageFault, fail
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.folder import read_folder
from control_plane.policy.source.readers import SourceUnreadable
from control_plane.policy.source.repository_url import url_error, without_credentials
from penstock.policy.policy import Policy

if TYPE_CHECKING:
    from control_plane.policy.compiler import CompiledBundle

MAX_READ_S = 60.0
"""Time limit (s) for reading a repository."""

_REVISION = re.compile(r"(?P<repository>.+)@(?P<ref>[^@:]+)(?::(?P<folder>[^@]*))?")

BundleArgument = Annotated[
    str,
    typer.Argument(
        show_default=False,
        help="Folder of a policy bundle, or REPOSITORY@REF:FOLDER, such as .@main:policies; REF is a branch, tag,"
        " origin/main, HEAD or a full commit id.",
    ),
]


def read_bundle(where: str) -> dict[str, str]:
    """Return the contents of a bundle's files, by name.

    Raises:
        UsageFault: the folder or repository cannot be read.
        PolicyRefused: the set of files is not a bundle; the contents are not checked.
    """
    if os.path.isdir(where):
        return read_folder(Path(where))
    revision = _REVISION.fullmatch(where)
    if revision is None:
        shown = "the URL" if "://" in where else where  # a URL may have a password
        raise UsageFault(f"{shown} is not a folder; give a folder, or REPOSITORY@REF:FOLDER")
    from control_plane.policy.source.repository import RepositoryReader

    repository = revision["repository"]
    url = str(Path(repository).resolve()) if os.path.exists(repository) else repository
    if (wrong := url_error(url)) is not None:
        raise UsageFault(f"the repository {wrong}; give a folder, or REPOSITORY@REF:FOLDER")
    reader = RepositoryReader(url, revision["ref"], revision["folder"] or "", poll_s=0.0, timeout_s=MAX_READ_S)
    try:
        bundle = asyncio.run(reader.read())
    except SourceUnreadable as error:
        raise UsageFault(str(error)) from None
    if bundle.errors:
        raise PolicyRefused(bundle.errors)
    return bundle.files


def compiled(where: str, command: str) -> Policy:
    """Return the policy of a bundle; see `compiled_revision`."""
    return compiled_revision(where, command).policy


def compiled_revision(where: str, command: str) -> CompiledBundle:
    """Return a compiled bundle. The errors of an invalid bundle are printed, and end the command.

    Args:
        where: a folder, or REPOSITORY@REF:FOLDER.
        command: name of the command without `penstock`, for the message.
    """
    from control_plane.policy.compiler import compile_revision

    try:
        return compile_revision(read_bundle(where))
    except UsageFault as fault:
        fail(command, str(fault), EXIT_USAGE)
    except PolicyRefused as refused:
        for error in refused.errors:
            print(error, file=sys.stderr)
        fail(
            command,
            f"{without_credentials(where)}: refused, {len(refused.errors)} error(s)",
            EXIT_USAGE,
            errors=refused.errors,
        )

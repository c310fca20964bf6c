"""Bundles that commands are given: a folder, or a revision of a git repository.

The compiler and the git client are imported where they are used, so that other commands do not wait for them to load.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from control_plane.cli.error_output import EXIT_USAGE, UsageFault, fail
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.folder import read_folder
from control_plane.policy.source.readers import Unreadable
from control_plane.policy.source.repository_url import shown, why_unusable
from penstock.policy.policy import Policy

MAX_READ_S = 60.0
"""A repository that takes longer (s) to read is given up."""

_REVISION = re.compile(r"(?P<repository>.+)@(?P<ref>[^@:]+)(?::(?P<folder>[^@]*))?")

BundleArgument = Annotated[
    str,
    typer.Argument(
        show_default=False,
        help="Folder of a policy bundle, or REPOSITORY@REF:FOLDER, such as .@main:policies; REF is a branch, tag,"
        " origin/main, HEAD or a commit's whole id.",
    ),
]


def read_bundle(where: str) -> dict[str, str]:
    """The text of a bundle's files, by name.

    Raises:
        UsageFault: nothing can be read there.
        PolicyRefused: what is there is no bundle, whatever its files say.
    """
    if os.path.isdir(where):
        return read_folder(Path(where))
    revision = _REVISION.fullmatch(where)
    if revision is None:
        raise UsageFault(f"{where} is no folder; name one, or REPOSITORY@REF:FOLDER")
    from control_plane.policy.source.repository import RepositoryReader

    repository = revision["repository"]
    url = str(Path(repository).resolve()) if os.path.exists(repository) else repository
    if (wrong := why_unusable(url)) is not None:
        raise UsageFault(f"the repository {wrong}; name a folder, or REPOSITORY@REF:FOLDER")
    reader = RepositoryReader(url, revision["ref"], revision["folder"] or "", poll_s=0.0, timeout_s=MAX_READ_S)
    try:
        bundle = asyncio.run(reader.read())
    except Unreadable as error:
        raise UsageFault(str(error)) from None
    if bundle.errors:
        raise PolicyRefused(bundle.errors)
    return bundle.files


def compiled(where: str, command: str) -> Policy:
    """The policy of a well-formed bundle; the others are told of as `lint` does, and end the command.

    Args:
        command: the words after `penstock`, for the message.
    """
    from control_plane.policy.compiler import compile_bundle

    try:
        return compile_bundle(read_bundle(where))
    except UsageFault as fault:
        fail(command, str(fault), EXIT_USAGE)
    except PolicyRefused as refused:
        for error in refused.errors:
            print(error, file=sys.stderr)
        fail(command, f"{shown(where)}: refused, {len(refused.errors)} error(s)", EXIT_USAGE, errors=refused.errors)

"""A bundle's folder: its YAML files and nothing else, read within bounds.

Links are followed as far as they stay inside it, which is how Kubernetes mounts a ConfigMap. Beyond it whoever may put
files there could have others read that this process may.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from control_plane.policy.bundle_errors import PolicyError, PolicyRefused
from control_plane.policy.bundle_limits import MAX_FILE_BYTES, SUFFIX, count_error, is_policy_file, text_of
from control_plane.policy.source.readers import Bundle

POLL_S = 0.5
"""Time (s) between two looks at a folder. A change counts when the second look at it finds no other: whoever writes
several files and pauses for longer than this has each of their states judged."""


class FolderReader:
    """Reads a folder, which somebody may be writing at the same time."""

    atomic = False
    poll_s = POLL_S

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = str(folder)

    async def read(self) -> Bundle:
        """The folder as it is."""
        return await asyncio.to_thread(self._read)

    async def close(self) -> None:
        """Nothing is held."""

    def _read(self) -> Bundle:
        try:
            return Bundle(read_folder(self._folder))
        except PolicyRefused as refused:
            return Bundle({}, refused.errors)


def read_folder(folder: Path) -> dict[str, str]:
    """The text of every policy file in `folder`, by name; `belonging` says what counts.

    Raises:
        PolicyRefused: the folder or a file cannot be read, is too large, or is not what belongs here.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if is_policy_file(path.name))
    except OSError as error:
        remedy = "name the folder that holds the policy files"
        raise PolicyRefused([PolicyError(str(folder), 0, "", f"cannot be read: {error.strerror}", remedy)]) from None
    wrong = count_error(len(paths), str(folder))
    if wrong is not None:
        raise PolicyRefused([wrong])
    files: dict[str, str] = {}
    errors: list[PolicyError] = []
    inside = os.path.realpath(folder)
    for path in paths:
        text = _read(path, inside)
        if isinstance(text, PolicyError):
            errors.append(text)
        else:
            files[path.name] = text
    if errors:
        raise PolicyRefused(errors)
    return files


def _read(path: Path, inside: str) -> str | PolicyError:
    """The text of one file, which lies `inside` the folder, links resolved."""
    try:
        leads_to = Path(os.path.realpath(path, strict=True))
        if not leads_to.is_relative_to(inside):
            remedy = "put the file itself there, or link to one inside the folder"
            return PolicyError(path.name, 0, "", "is a symbolic link that leads out of the folder", remedy)
        if path.suffix == SUFFIX and leads_to.is_file():
            with leads_to.open("rb") as file:
                return text_of(path.name, file.read(MAX_FILE_BYTES + 1))
    except OSError as error:
        if path.is_symlink():
            remedy = "put the file itself there, or remove the link"
            return PolicyError(path.name, 0, "", f"is a symbolic link that leads nowhere: {error.strerror}", remedy)
        return PolicyError(path.name, 0, "", f"cannot be read: {error.strerror}", "make it readable")
    return text_of(path.name, None)

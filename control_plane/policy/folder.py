"""Reader of a bundle in a folder: its policy files, within the limits of `bundle_limits`.

Symbolic links are followed inside the folder, since Kubernetes mounts a ConfigMap through them. A link that leads out
of the folder is refused: it could expose any file that this process may read.
"""

from __future__ import annotations

import os
from pathlib import Path

from adapters.files.plain_file import FileStalled, ThreadedRead, open_plain_file
from control_plane.policy.bundle_errors import PolicyError, PolicyRefused
from control_plane.policy.bundle_limits import MAX_FILE_BYTES, SUFFIX, count_error, decode_file, is_policy_file
from control_plane.policy.source.readers import Bundle, SourceUnreadable

POLL_S = 0.5
"""Time (s) between two reads of a folder. A change is checked once two reads in a row return the same content, so a
writer of several files that pauses for longer than this has an intermediate state checked."""


class FolderReader:
    """Reads a folder, which may be written at the same time."""

    atomic = False
    poll_s = POLL_S

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = str(folder)
        self._in_thread = ThreadedRead(self._read, self.place)

    async def read(self) -> Bundle:
        """Return the folder's current content.

        Raises:
            SourceUnreadable: the folder's file system does not respond.
        """
        try:
            return await self._in_thread()
        except FileStalled as error:
            raise SourceUnreadable(str(error)) from None

    async def close(self) -> None:
        """Do nothing: no resource is held between reads."""

    def _read(self) -> Bundle:
        try:
            return Bundle(read_folder(self._folder))
        except PolicyRefused as refused:
            return Bundle({}, refused.errors)


def read_folder(folder: Path) -> dict[str, str]:
    """Return the text of every policy file in `folder`, by name; `is_policy_file` selects them.

    Raises:
        PolicyRefused: the folder or a file cannot be read, exceeds a limit, or is not a policy file.
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
    """Return the text of one file; `inside` is the folder's path with links resolved."""
    try:
        target = Path(os.path.realpath(path, strict=True))
        if not target.is_relative_to(inside):
            remedy = "put the file itself there, or link to one inside the folder"
            return PolicyError(path.name, 0, "", "is a symbolic link that leads out of the folder", remedy)
        if path.suffix == SUFFIX and target.is_file():
            with open_plain_file(target) as file:
                return decode_file(path.name, file.read(MAX_FILE_BYTES + 1))
    except OSError as error:
        if path.is_symlink():
            remedy = "put the file itself there, or remove the link"
            return PolicyError(path.name, 0, "", f"is a broken symbolic link: {error.strerror}", remedy)
        return PolicyError(path.name, 0, "", f"cannot be read: {error.strerror}", "make it readable")
    return decode_file(path.name, None)

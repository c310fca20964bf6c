"""Reads a bundle from an uncompressed tar archive in memory, within bounds: the body of a validation request."""

from __future__ import annotations

import io
import tarfile

from control_plane.policy.bundle_errors import WHOLE_BUNDLE, PolicyError, PolicyRefused
from control_plane.policy.bundle_limits import (
    MAX_BUNDLE_BYTES,
    MAX_FILE_BYTES,
    MAX_FILES,
    count_error,
    decode_file,
    is_policy_file,
)

MAX_MEMBERS = 4 * MAX_FILES
"""Maximum number of members of an archive, including documentation and folders."""


def read_tar(archive: bytes) -> dict[str, str]:
    """Return the text of every policy file, by name. All must be in one folder, which may have any name.

    Raises:
        PolicyRefused: the input is not an uncompressed archive, exceeds a limit, or contains a file that is not a
            policy file.
    """
    files: dict[str, str] = {}
    errors: list[PolicyError] = []
    folders: set[str] = set()
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for number, member in enumerate(tar):
                if number >= MAX_MEMBERS:
                    raise _refused(f"has more than {MAX_MEMBERS} members", "send the bundle's folder alone")
                folder, _, name = member.name.rpartition("/")
                if member.isdir() or not is_policy_file(name):
                    continue
                folders.add(folder.removeprefix("./").strip("."))
                text = _text(tar, member, name)
                total += len(text) if isinstance(text, str) else 0
                if total > MAX_BUNDLE_BYTES:
                    raise _refused(f"larger than {MAX_BUNDLE_BYTES} bytes in all", "make the bundle smaller")
                if isinstance(text, PolicyError):
                    errors.append(text)
                elif name in files:
                    errors.append(PolicyError(name, 0, "", "is in the archive twice", "keep one of them"))
                else:
                    files[name] = text
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        raise _refused(f"is not a tar archive: {error}", "send what `tar -cf` makes, without compression") from None
    if len(folders) > 1:
        errors.append(PolicyError(WHOLE_BUNDLE, 0, "", "is spread over several folders", "put its files into one"))
    wrong = count_error(len(files) + len(errors), WHOLE_BUNDLE)
    if wrong is not None:
        errors.append(wrong)
    if errors:
        raise PolicyRefused(errors)
    return files


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> str | PolicyError:
    if member.issym() or member.islnk():
        return PolicyError(name, 0, "", "is a link", "put the file itself into the archive")
    inside = tar.extractfile(member) if member.isfile() else None
    return decode_file(name, inside.read(MAX_FILE_BYTES + 1) if inside is not None else None)


def _refused(problem: str, remedy: str) -> PolicyRefused:
    return PolicyRefused([PolicyError(WHOLE_BUNDLE, 0, "", problem, remedy)])

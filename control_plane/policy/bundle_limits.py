"""Limits of a bundle: its files are YAML in UTF-8, and their number and sizes are bounded.

Hidden files (through which Kubernetes mounts ConfigMaps) and documentation are ignored. Any other file that is not a
`.yaml` file is refused, because its author may expect it to be read.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from control_plane.policy.bundle_errors import WHOLE_BUNDLE, PolicyError

MAX_FILES = 200
MAX_FILE_BYTES = 1 << 20
MAX_BUNDLE_BYTES = 4 << 20
"""Maximum size (bytes) of a bundle. The compiled policy must also fit into one value of the store, whose limit is
lower."""

MAX_DOCUMENTS = 10_000
"""Maximum number of documents in a bundle: more than fit into one value of the store."""

MAX_DOCUMENTS_OF_FILE = 5_000

SUFFIX = ".yaml"
_DOCUMENTATION = {".md", ".txt"}
_SEPARATOR = re.compile(r"^---\s", re.MULTILINE)
"""What precedes each document of a file but the first."""


def is_policy_file(name: str) -> bool:
    """Whether a file of this name is read."""
    return not name.startswith(".") and PurePosixPath(name).suffix not in _DOCUMENTATION


def count_error(files: int, place: str) -> PolicyError | None:
    """Return an error if the number of files at `place` is not allowed."""
    if files == 0:
        return PolicyError(place, 0, "", "has no policy files", f"put {SUFFIX} files into it")
    if files > MAX_FILES:
        return PolicyError(WHOLE_BUNDLE, 0, "", f"has {files} files", f"use at most {MAX_FILES}")
    return None


def decode_file(name: str, content: bytes | None) -> str | PolicyError:
    """Return the text of one file, or its error.

    A file whose last line is incomplete is refused: a crash or a full disk truncates files, and what remains of a
    truncated file is often valid YAML. JSON needs no line break at its end, because it is invalid where it is cut off.

    Args:
        content: the bytes of the file, or of a larger file at least the first MAX_FILE_BYTES + 1 bytes; None if the
            file is not a regular file.
    """
    if PurePosixPath(name).suffix != SUFFIX:
        return not_yaml(name)
    if content is None:
        return PolicyError(name, 0, "", "is not a regular file", "put a file with policy documents in its place")
    if len(content) > MAX_FILE_BYTES:
        return PolicyError(name, 0, "", f"larger than {MAX_FILE_BYTES} bytes", "split it into several files")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return PolicyError(name, line, "", "is not UTF-8", "save it as UTF-8")
    if text and not text.endswith("\n") and not _shows_its_end(text):
        line, problem = text.count("\n") + 1, "the last line has no line break, so the file may have been cut off"
        return PolicyError(
            name, line, "", problem, "restore what is missing, or add a line break at the end of the file"
        )
    return text


def _shows_its_end(text: str) -> bool:
    """Whether the last document begins with a bracket, so that it is valid only with the bracket that closes it."""
    return _SEPARATOR.split(text.removeprefix("\ufeff"))[-1].lstrip().startswith(("{", "["))


def not_yaml(name: str) -> PolicyError:
    """Return the error of a file that is not a policy file."""
    remedy = f"name policy files *{SUFFIX}, and keep anything else out of the folder"
    return PolicyError(name, 0, "", f"is not a {SUFFIX} file", remedy)

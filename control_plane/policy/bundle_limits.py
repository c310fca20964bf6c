"""Files and sizes that a bundle may have: YAML files in UTF-8, within bounds.

Hidden files (which is what Kubernetes mounts ConfigMaps through) and documentation are passed over; anything else that
is no `.yaml` file is refused, since its author may think that it counts.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from control_plane.policy.bundle_errors import WHOLE_BUNDLE, PolicyError

MAX_FILES = 200
MAX_FILE_BYTES = 1 << 20
MAX_BUNDLE_BYTES = 4 << 20
"""The compiled policy has to fit into one value of the store, which is smaller than this."""

MAX_DOCUMENTS = 10_000
"""Of a bundle: more than the store can hold of the shortest tenants."""

MAX_DOCUMENTS_OF_FILE = 5_000

SUFFIX = ".yaml"
_DOCUMENTATION = {".md", ".txt"}


def is_policy_file(name: str) -> bool:
    """Whether a file of this name is read."""
    return not name.startswith(".") and PurePosixPath(name).suffix not in _DOCUMENTATION


def count_error(files: int, place: str) -> PolicyError | None:
    """What is wrong with the number of files at `place`, if anything is."""
    if files == 0:
        return PolicyError(place, 0, "", "has no policy files", f"put {SUFFIX} files into it")
    if files > MAX_FILES:
        return PolicyError(WHOLE_BUNDLE, 0, "", f"has {files} files", f"use at most {MAX_FILES}")
    return None


def text_of(name: str, content: bytes | None) -> str | PolicyError:
    """The text of one file, or why it has none that counts.

    Args:
        content: its bytes, at least one more than MAX_FILE_BYTES of a larger one; None for what is no plain file.
    """
    if content is None or PurePosixPath(name).suffix != SUFFIX:
        return not_yaml(name)
    if len(content) > MAX_FILE_BYTES:
        return PolicyError(name, 0, "", f"larger than {MAX_FILE_BYTES} bytes", "split it into several files")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return PolicyError(name, line, "", "is not UTF-8", "save it as UTF-8")


def not_yaml(name: str) -> PolicyError:
    """The error of a file that is not a policy file."""
    remedy = f"name policy files *{SUFFIX}, and keep anything else out of the folder"
    return PolicyError(name, 0, "", f"is no {SUFFIX} file", remedy)

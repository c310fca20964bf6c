"""A bundle's folder: its YAML files and nothing else, read within bounds."""

from __future__ import annotations

from pathlib import Path

from control_plane.policy.compiler import LARGEST_FILE_BYTES, MOST_FILES
from control_plane.policy.errors import WHOLE_BUNDLE, PolicyError, PolicyRefused

SUFFIX = ".yaml"
_DOCUMENTATION = {".md", ".txt"}


def read_folder(folder: Path) -> dict[str, str]:
    """The text of every policy file in `folder`, by name.

    Hidden files (which is what Kubernetes mounts ConfigMaps through) and documentation are passed over; any other file
    that is no `.yaml` is refused, since its author may think that it counts.

    Raises:
        PolicyRefused: the folder or a file cannot be read, is too large, or is not what belongs here.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        remedy = "name the folder that holds the policy files"
        raise PolicyRefused([PolicyError(str(folder), 0, "", f"cannot be read: {error.strerror}", remedy)]) from None
    paths = [path for path in paths if path.suffix not in _DOCUMENTATION]
    if not paths:
        raise PolicyRefused([PolicyError(str(folder), 0, "", "has no policy files", f"put {SUFFIX} files into it")])
    if len(paths) > MOST_FILES:
        raise PolicyRefused([PolicyError(WHOLE_BUNDLE, 0, "", f"has {len(paths)} files", f"use at most {MOST_FILES}")])
    files: dict[str, str] = {}
    errors: list[PolicyError] = []
    for path in paths:
        text = _read(path)
        if isinstance(text, PolicyError):
            errors.append(text)
        else:
            files[path.name] = text
    if errors:
        raise PolicyRefused(errors)
    return files


def _read(path: Path) -> str | PolicyError:
    if path.suffix != SUFFIX or not path.is_file():
        remedy = f"name policy files *{SUFFIX}, and keep anything else out of the folder"
        return PolicyError(path.name, 0, "", f"is no {SUFFIX} file", remedy)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        return PolicyError(path.name, 0, "", f"cannot be read: {error.strerror}", "make it readable")
    if len(content) > LARGEST_FILE_BYTES:
        return PolicyError(path.name, 0, "", f"larger than {LARGEST_FILE_BYTES} bytes", "split it into several files")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return PolicyError(path.name, line, "", "is not UTF-8", "save it as UTF-8")

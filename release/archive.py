"""Archives whose bytes follow from the content alone: sorted names, one time, no owner of this machine."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

GZIP_LEVEL = 6


class Entry(NamedTuple):
    """One file, directory or link of an archive."""

    name: str
    source: Path
    mode: int | None = None
    """None: 755 for directories and what is executable, else 644."""
    owner: int = 0
    """User and group."""


def tree(folder: Path, prefix: str = "", special: Mapping[str, tuple[int, int]] | None = None) -> list[Entry]:
    """Return all that is in a folder, sorted by name.

    Args:
        prefix: prefix of each name, such as "penstock/".
        special: mode and owner of names that differ from the usual.
    """
    names = []
    for parent, folders, files in os.walk(folder):
        names += [os.path.relpath(os.path.join(parent, name), folder) for name in (*folders, *files)]
    return [Entry(prefix + name, folder / name, *(special or {}).get(name, (None, 0))) for name in sorted(names)]


def write_tar(target: IO[bytes], entries: Iterable[Entry], time_s: int = 0) -> None:
    """Write entries as an uncompressed archive.

    Args:
        time_s: Unix time (s) of every entry.
    """
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            status = entry.source.lstat()
            info = tarfile.TarInfo(entry.name)
            info.mtime = time_s
            info.uid = info.gid = entry.owner
            if stat.S_ISLNK(status.st_mode):
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(entry.source), 0o777
                archive.addfile(info)
            elif stat.S_ISDIR(status.st_mode):
                info.type, info.mode = tarfile.DIRTYPE, entry.mode or 0o755
                archive.addfile(info)
            elif stat.S_ISREG(status.st_mode):
                info.mode = entry.mode or (0o755 if status.st_mode & 0o100 else 0o644)
                info.size = status.st_size
                with entry.source.open("rb") as content:
                    archive.addfile(info, content)
            else:
                raise ValueError(f"{entry.source}: is no file, folder or link; remove it")


def compressed(content: bytes) -> bytes:
    """Return content in gzip's format, without a name and a time."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0, compresslevel=GZIP_LEVEL) as stream:
        stream.write(content)
    return buffer.getvalue()


def write_tar_gz(target: Path, entries: Iterable[Entry], time_s: int) -> None:
    """Write entries as a compressed archive."""
    plain = io.BytesIO()
    write_tar(plain, entries, time_s)
    target.write_bytes(compressed(plain.getvalue()))

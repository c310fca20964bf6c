"""Debian packages of the image: pinned by version and digest, downloaded by apt, unpacked without root."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

NAMES = (
    "base-files",
    "ca-certificates",
    "libbz2-1.0",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libsqlite3-0",
    "libssl3",
    "libstdc++6",
    "libuuid1",
    "media-types",
    "netbase",
    "python3.11-minimal",
    "zlib1g",
)
"""What CPython, its standard library and the wheels link to. There is no shell and no package manager."""

LEFT_OUT = ("usr/share/doc-base/", "usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/")
"""Of `usr/share/doc` the copyright files stay."""


class PackageProblem(Exception):
    """A package is not in the archive, or not the one that is pinned."""


class Pinned(NamedTuple):
    """A line of the list."""

    name: str
    version: str
    sha256: str

    @property
    def file_prefix(self) -> str:
        """The beginning of the file's name, as apt writes it: a colon of the version is escaped."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_"


def read_pinned(file: Path) -> list[Pinned]:
    """Read a list: name, version and SHA-256 in each line.

    Raises:
        PackageProblem: the list does not exist, or a line has another form.
    """
    if not file.exists():
        raise PackageProblem(f"{file.name}: no such list; run make lock-image on a machine of this architecture")
    pinned = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        fields = line.partition("#")[0].split()
        if fields:
            if len(fields) != 3 or len(fields[2]) != 64:
                raise PackageProblem(f"{file.name}:{number}: is not `name version sha256`; run make lock-image")
            pinned.append(Pinned(*fields))
    return pinned


def download(pinned: Iterable[Pinned], folder: Path) -> list[Path]:
    """Download packages that are not in `folder` yet, and verify all; return their files.

    Raises:
        PackageProblem: a version is no longer in the archive, or a digest differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list(pinned)
    missing = [each for each in wanted if not list(folder.glob(f"{each.file_prefix}*.deb"))]
    if missing:
        fetched = _apt_download([f"{each.name}={each.version}" for each in missing], folder)
        if fetched.returncode != 0:
            raise PackageProblem(
                f"apt-get download: {fetched.stderr.strip()}\n"
                "Run apt-get update; if the archive has newer versions, run make lock-image and commit the list."
            )
    files = []
    for each in wanted:
        (file,) = folder.glob(f"{each.file_prefix}*.deb")
        if hashlib.sha256(file.read_bytes()).hexdigest() != each.sha256:
            raise PackageProblem(f"{file}: is not the pinned file, its SHA-256 differs; remove it and try again")
        files.append(file)
    return files


def lock(file: Path, folder: Path) -> None:
    """Write the list of the newest versions that apt knows."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in NAMES:
        fetched = _apt_download([name], folder)
        if fetched.returncode != 0:
            raise PackageProblem(f"apt-get download {name}: {fetched.stderr.strip()}")
        newest = max(folder.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)
        lines.append(f"{name} {_field(newest, 'Version')} {hashlib.sha256(newest.read_bytes()).hexdigest()}\n")
    file.write_text("# Debian 12 packages of the image. Made by `make lock-image`.\n" + "".join(lines))


def unpack(packages: Iterable[Path], root: Path) -> None:
    """Unpack packages into a root directory, with what their scripts would make for these packages.

    Modes and owners are those of this user; special bits are dropped.
    """
    for package in packages:
        listing = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(listing)) as archive:
            archive.extractall(root, members=filter(_kept, archive), filter="tar")
        name = _field(package, "Package")
        # Scanners of images read this directory where there is no package manager.
        status = root / "var" / "lib" / "dpkg" / "status.d"
        status.mkdir(parents=True, exist_ok=True)
        (status / name).write_text(subprocess.check_output(["dpkg-deb", "--field", package], text=True))
    # What update-ca-certificates makes.
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(file.read_text().strip() + "\n" for file in certificates))


def _kept(member: tarfile.TarInfo) -> bool:
    name = member.name.removeprefix("./")
    documentation = name.startswith("usr/share/doc/") and not member.isdir() and not name.endswith("/copyright")
    return not documentation and not name.startswith(LEFT_OUT)


def _field(package: Path, name: str) -> str:
    return subprocess.check_output(["dpkg-deb", "--field", package, name], text=True).strip()


def _apt_download(names: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # apt drops its privileges, and warns that its user cannot write into the folder.
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *names]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

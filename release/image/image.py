"""Builds the image: Debian's Python, the Python packages, Penstock; one layer each."""

from __future__ import annotations

import platform
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from release.archive import tree
from release.image.bytecode import compile_modules
from release.image.debian_packages import download, read_pinned, unpack
from release.image.oci_layout import Layer, layer, write_layout
from release.image.python_packages import install_wheels, wheels
from release.project import ROOT

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
USER = 65532
STATE_DIR = "var/lib/penstock-agent"
LISTS = ROOT / "deploy" / "container"

PASSWD = f"root:x:0:0:root:/root:/usr/sbin/nologin\npenstock:x:{USER}:{USER}:Penstock:/nonexistent:/usr/sbin/nologin\n"
GROUP = f"root:x:0:\npenstock:x:{USER}:\n"
ALIVE = (
    "import ssl, urllib.request as web; "
    "web.urlopen('https://127.0.0.1:{}/livez', context=ssl._create_unverified_context(), timeout=9)"
)
"""Fails unless the event loop answers. The certificate is for other names than the loopback address."""
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONFAULTHANDLER": "1",
    # They win over the configuration file: in a container the loopback address is of no use.
    "PENSTOCK_LISTEN": "0.0.0.0:8443",
    "PENSTOCK_AGENT_TRAFFIC_LISTEN": "0.0.0.0:8080",
    "PENSTOCK_AGENT_PEER_LISTEN": "0.0.0.0:8081",
    "PENSTOCK_AGENT_ADMIN_LISTEN": "0.0.0.0:8082",
    "PENSTOCK_AGENT_STATE_DIR": f"/{STATE_DIR}",
}


class Built(NamedTuple):
    """An image in an archive."""

    file: Path
    digest: str
    layers: Path
    """Where its layers are on this machine: `system`, `packages`, `penstock`."""
    status_folder: Path
    """Where the descriptions of its Debian packages are."""


def architecture() -> str:
    """Return OCI's name of this machine's architecture."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def build_image(wheel: Path, target: Path, work: Path, *, version: str, commit: str, time_s: int) -> Built:
    """Build the archive of the image for this machine's architecture.

    Args:
        wheel: wheel of Penstock for CPython 3.11.
        target: the archive.
        work: directory for downloads, which are kept, and for the layers, which are replaced.
        commit: commit that the wheel was built from.
        time_s: Unix time (s) of the commit.

    Raises:
        PackageProblem: a Debian package cannot be had.
        subprocess.CalledProcessError: a Python package cannot be had.
    """
    name = architecture()
    debs = download(read_pinned(LISTS / f"debian-{name}.txt"), work / "debian")
    dependencies = wheels(LISTS / f"python-{name}.txt", work / "python")
    shutil.rmtree(work / "layers", ignore_errors=True)
    system, packages, penstock = (work / "layers" / part for part in ("system", "packages", "penstock"))
    for folder in (system, packages, penstock):
        folder.mkdir(parents=True)
    unpack(debs, system)
    (system / "etc/passwd").write_text(PASSWD)
    (system / "etc/group").write_text(GROUP)
    (system / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (system / "usr/bin/python3").symlink_to("python3.11")
    install_wheels(dependencies, packages)
    install_wheels([wheel], penstock)
    (penstock / STATE_DIR).mkdir(parents=True)
    for folder in (system, packages, penstock):
        compile_modules(folder, system)
    layers = [
        layer(tree(system, special={"tmp": (0o1777, 0)}), "Debian packages of deploy/container/debian-*.txt"),
        layer(tree(packages), "Python packages of deploy/container/python-*.txt"),
        layer(tree(penstock, special={STATE_DIR: (0o700, USER)}), f"penstock {version}"),
    ]
    return Built(
        target,
        _write(target, layers, name, version, commit, time_s),
        work / "layers",
        system / "var/lib/dpkg/status.d",
    )


def _write(target: Path, layers: list[Layer], name: str, version: str, commit: str, time_s: int) -> str:
    created = datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    annotations = {
        "org.opencontainers.image.title": "penstock",
        "org.opencontainers.image.description": "A multi-region global traffic controller for AI inference",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.revision": commit,
        "org.opencontainers.image.created": created,
    }
    config: dict[str, Any] = {
        "created": created,
        "architecture": name,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": [f"{variable}={value}" for variable, value in ENVIRONMENT.items()],
            "Cmd": ["penstock-agent", "--config", "/etc/penstock/agent.yaml"],
            "WorkingDir": "/",
            "ExposedPorts": {f"{port}/tcp": {} for port in (8080, 8081, 8082, 8443)},
            # Both daemons drain at SIGTERM and exit with 0.
            "StopSignal": "SIGTERM",
            "Labels": annotations,
            # An extension of Docker, which other engines ignore.
            "Healthcheck": {
                "Test": ["CMD", "python3", "-c", ALIVE.format(8082)],
                "Interval": 10_000_000_000,
                "Timeout": 10_000_000_000,
                "StartPeriod": 30_000_000_000,
                "Retries": 6,
            },
        },
    }
    return write_layout(target, layers, config, annotations, f"penstock:{version}")

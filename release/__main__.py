"""`python -m release`: builds everything of a release into `dist/`; `--lock-image` renews the lists of the image."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from release import project
from release.archive import Entry, tree, write_tar_gz
from release.bill_of_materials import bill_of_materials
from release.helm import program
from release.image import EXTRAS, debian_packages, python_packages
from release.image.image import LISTS, architecture, build_image
from release.wheels import build_sdist, build_wheel, interpreters

DIST = project.ROOT / "dist"
WORK = project.ROOT / "out" / "release"


def main() -> None:
    """Build a release, or what `--only` names of it; exit with 2 where something contradicts the release."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--tag", default="", help="the tag, such as v0.1.0, whose version and changelog are checked")
    parser.add_argument("--python", action="append", metavar="3.11", help="compile for these versions only")
    parser.add_argument("--lock-image", action="store_true", help="renew the lists of the image's packages")
    options = parser.parse_args()
    if options.lock_image:
        lock_image()
        return
    contradictions = project.problems(options.tag)
    if contradictions:
        raise SystemExit("\n".join(contradictions))
    available = interpreters()
    wanted = options.python or list(available)
    missing = [version for version in {"3.11", *wanted} if version not in available]
    if missing:
        raise SystemExit(f"no CPython {', '.join(missing)} runs here: put it on PATH (the image needs 3.11)")
    build({version: available[version] for version in sorted({"3.11", *wanted})})


def lock_image() -> None:
    """Write the lists of the image's packages for this machine's architecture."""
    name = architecture()
    debian_packages.lock(LISTS / f"debian-{name}.txt", WORK / "debian")
    pinned = {each.name: each.version for each in debian_packages.read_pinned(LISTS / f"debian-{name}.txt")}
    python = pinned["python3.11-minimal"].partition("-")[0]
    python_packages.lock(LISTS / f"python-{name}.txt", project.ROOT, EXTRAS, python)
    print(f"wrote {LISTS}/*-{name}.txt: read the differences, and commit them")


def build(pythons: dict[str, str]) -> None:
    """Build everything, compiled for each interpreter of `pythons` (command by version)."""
    version, commit, time_s = project.version(), project.commit(), project.commit_time_s()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    WORK.mkdir(parents=True, exist_ok=True)
    log = WORK / "wheels.log"
    log.unlink(missing_ok=True)
    sdist = build_sdist(DIST, time_s)
    _say(sdist)
    _say(build_wheel(sdist, DIST, log, time_s, python=None))
    compiled = {}
    for python, command in pythons.items():
        compiled[python] = build_wheel(sdist, DIST, log, time_s, python=command)
        _say(compiled[python])
    image = DIST / f"penstock-{version}-image-{architecture()}.oci.tar"
    built = build_image(compiled["3.11"], image, WORK, version=version, commit=commit, time_s=time_s)
    _say(image, built.digest)
    sites = [built.layers / part / python_packages.SITE_PACKAGES for part in ("packages", "penstock")]
    bill = DIST / f"penstock-{version}-image-{architecture()}.cdx.json"
    bill.write_text(bill_of_materials(sites, sorted(built.status_folder.iterdir()), built.digest, version, time_s))
    _say(bill)
    _say(package_chart(DIST / f"penstock-helm-{version}.tgz", version, time_s))
    _say(package_terraform(DIST / f"penstock-terraform-{version}.tar.gz", version, time_s))
    sums = DIST / "SHA256SUMS"
    files = sorted(file for file in DIST.iterdir() if file != sums)
    sums.write_text("".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files))
    _say(sums)


def package_chart(target: Path, version: str, time_s: int) -> Path:
    """Package the chart, with the bytes that follow from its files, and return the archive."""
    with tempfile.TemporaryDirectory() as folder:
        packaged = [str(program()), "package", str(project.CHART), "--version", version, "--app-version", version]
        subprocess.run([*packaged, "--destination", folder], check=True, capture_output=True)
        (made,) = Path(folder).glob("*.tgz")
        with tarfile.open(made) as archive:
            archive.extractall(Path(folder) / "chart", filter="data")
        # Helm wants Chart.yaml first.
        entries = tree(Path(folder) / "chart")
        write_tar_gz(target, sorted(entries, key=lambda entry: entry.name != "penstock/Chart.yaml"), time_s)
    return target


def package_terraform(target: Path, version: str, time_s: int) -> Path:
    """Archive the Terraform modules as they are in git, and return the archive."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "terraform", "LICENSE"], cwd=project.ROOT, text=True)
    names = sorted(filter(None, listed.split("\0")))
    entries = [Entry(f"penstock-terraform-{version}/{name}", project.ROOT / name) for name in names]
    write_tar_gz(target, entries, time_s)
    return target


def _say(file: Path, more: str = "") -> None:
    print(f"{file.relative_to(project.ROOT)}  {file.stat().st_size / 1e6:.1f} MB  {more}".rstrip(), flush=True)


if __name__ == "__main__":
    main()

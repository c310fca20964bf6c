"""What `make release` has built in dist/: complete, the same when it is built again, and an image that serves."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
from contextlib import suppress
from datetime import datetime
from email.parser import HeaderParser
from functools import partial
from pathlib import Path

import httpx
import pytest

from adapters.servers.etcd import EtcdServer
from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from release import project
from release.wheels import build_wheel, interpreters
from tests.support.chart import CHART, helm, values_of
from tests.support.control_planes import TOKEN
from tests.support.engines import running_engines
from tests.support.identities import agent_id, authority, control_plane_id, write_identity
from tests.support.paths import POLICIES, ROOT
from tests.support.unconstrained_wheel import IMPORT_ALL, WITH_EXTRAS
from tests.support.unpacked_image import UnpackedImage, may_mount
from tests.support.wait import PATIENCE_S

DIST = ROOT / "dist"
IMAGES = list(DIST.glob("*.oci.tar"))

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not IMAGES, reason="make release has not run"),
]
needs_mounts = pytest.mark.skipif(not may_mount(), reason="this user may not mount")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> UnpackedImage:
    return UnpackedImage(IMAGES[0], tmp_path_factory.mktemp("image") / "root")


def test_the_checksums_are_of_all_files() -> None:
    sums = dict(reversed(line.split("  ")) for line in (DIST / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {file.name for file in DIST.iterdir()} - {"SHA256SUMS"}
    for name, expected in sums.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == expected
    version = project.version()
    for wanted in (
        f"penstock-{version}.tar.gz",
        f"penstock-{version}-py3-none-any.whl",
        f"penstock-helm-{version}.tgz",
        f"penstock-terraform-{version}.tar.gz",
    ):
        assert wanted in sums
    assert any(re.match(rf"penstock-{version}-cp311-cp311-linux", name) for name in sums)


def test_nothing_runs_as_root_and_nothing_raises_privileges(image: UnpackedImage) -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", image.config["User"])
    assert image.config["StopSignal"] == "SIGTERM"
    for member in image.members():
        assert not member.mode & 0o6000, member.name
        assert member.isdir() or not member.mode & 0o022 or member.issym(), member.name
        assert member.mtime == 0, member.name
    assert not any(name.endswith(("/sh", "/bash", "/dash")) for name in (member.name for member in image.members()))


AGAIN = """
import os, shutil, sys
from pathlib import Path
from release.image.image import build_image
from release.project import ROOT, version
os.umask(0o077)
work, commit, created_s = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for downloads in ("debian", "python"):
    shutil.copytree(ROOT / "out" / "release" / downloads, work / downloads)
(wheel,) = (ROOT / "dist").glob("*-cp311-*.whl")
build_image(wheel, work / "image.tar", work, version=version(), commit=commit, time_s=created_s)
"""


def test_the_image_is_the_same_when_it_is_built_again(image: UnpackedImage, tmp_path: Path) -> None:
    """From the same wheel, in another directory, with another umask and another time."""
    annotations = image.manifest["annotations"]
    created = datetime.fromisoformat(annotations["org.opencontainers.image.created"])
    arguments = [tmp_path, annotations["org.opencontainers.image.revision"], int(created.timestamp())]
    subprocess.run([sys.executable, "-c", AGAIN, *map(str, arguments)], cwd=ROOT, check=True)
    assert (tmp_path / "image.tar").read_bytes() == IMAGES[0].read_bytes()


def test_the_wheels_are_the_same_when_they_are_built_again(tmp_path: Path) -> None:
    """The compiled one, too: compiling takes minutes."""
    (sdist,) = DIST.glob("penstock-[0-9]*.tar.gz")
    for python, name in ((None, "*-py3-none-any.whl"), (interpreters()["3.11"], "*-cp311-*.whl")):
        again = build_wheel(sdist, tmp_path, tmp_path / "log", project.commit_time_s(), python=python)
        assert again.read_bytes() == next(DIST.glob(name)).read_bytes()


def test_the_bill_of_materials_names_all_that_is_installed(image: UnpackedImage) -> None:
    (file,) = DIST.glob("*.cdx.json")
    bill = json.loads(file.read_text())
    assert bill["metadata"]["component"]["purl"].endswith("@" + image.descriptor["digest"])
    listed = {(each["purl"].split("/")[0], each["name"], each["version"]) for each in bill["components"]}
    assert image.root is not None
    for metadata in image.root.glob("usr/local/lib/python3.11/dist-packages/*.dist-info/METADATA"):
        fields = HeaderParser().parsestr(metadata.read_text())
        assert ("pkg:pypi", fields["Name"], fields["Version"]) in listed
    for status in image.root.glob("var/lib/dpkg/status.d/*"):
        assert ("pkg:deb", status.name, HeaderParser().parsestr(status.read_text())["Version"]) in listed
    assert {"penstock", "libc6", "python3.11-minimal"} <= {name for _, name, _ in listed}


def test_the_chart_and_the_terraform_modules_are_whole(tmp_path: Path) -> None:
    (chart,) = DIST.glob("penstock-helm-*.tgz")
    assert helm("lint", "--strict", chart, *values_of("gateway-api")).returncode == 0
    of_archive, of_folder = (
        helm("template", "penstock", each, *values_of("gateway-api")).stdout for each in (chart, CHART)
    )
    assert of_archive == of_folder
    assert "penstock-dashboard-fleet" in of_archive
    (archive,) = DIST.glob("penstock-terraform-*.tar.gz")
    with tarfile.open(archive) as modules:
        names = {name.partition("/")[2] for name in modules.getnames()}
    assert {"terraform/README.md", "terraform/modules/topology/settings.tf"} <= names
    assert not any(".terraform/" in name or ".tfstate" in name for name in names)


@needs_mounts
def test_the_commands_of_the_image_run(image: UnpackedImage) -> None:
    for command in ("penstock", "penstock-agent"):
        ran = subprocess.run(image.command([command, "--version"]), capture_output=True, text=True, check=False)
        assert ran.stderr == ""
        assert ran.returncode == 0
        assert ran.stdout.startswith(f"{command} {project.version()} ")
    subprocess.run(image.command(["python3", "-c", IMPORT_ALL.replace(repr(WITH_EXTRAS), "()")]), check=True)
    compiled = "import regional_agent.routing.router as router, duckdb, zmq; print(router.__file__)"
    ran = subprocess.run(image.command(["python3", "-c", compiled]), capture_output=True, text=True, check=True)
    assert ran.stdout.strip().endswith(".so")
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(image.command(["python3", "-c", "open('/etc/x', 'w')"]), check=True, capture_output=True)


@needs_mounts
def test_both_daemons_of_the_image_serve(image: UnpackedImage, etcd_server: EtcdServer, tmp_path: Path) -> None:
    """The control plane is ready, and the agent forwards a request to an engine. Both stop in order."""
    traffic, peer, admin, api = free_ports(4)
    with running_engines(tmp_path, {"name": "gpu-1"}) as engines:
        files = tmp_path / "penstock"
        shutil.copytree(POLICIES / "examples" / "smallest", files / "policy")
        write_identity(files / "cp", control_plane_id("cp-1"))
        write_identity(files / "agent", agent_id("eu-de", "eu-de-1"))
        (files / "ca.crt").write_bytes(authority().pem)
        (files / "admin.token").write_text(TOKEN)
        (files / "admin.token").chmod(0o600)
        endpoint = {"name": "gpu-1", "url": engines.urls["gpu-1"], "models": ["llama-3.1-8b"], "slots": 8}
        (files / "endpoints.yaml").write_text(json.dumps([endpoint]))
        store = {"etcd_endpoints": [etcd_server.endpoint], "etcd_prefix": f"/{tmp_path.name}/"}
        own = "/etc/penstock"
        (files / "control-plane.yaml").write_text(
            json.dumps(
                store
                | {"name": "cp-1", "identity_dir": f"{own}/cp", "admin_token_file": f"{own}/admin.token"}
                | {"policy_dir": f"{own}/policy", "advertise_url": f"https://{LOOPBACK}:{api}"}
            )
        )
        (files / "agent.yaml").write_text(
            json.dumps(
                store
                | {"name": "eu-de-1", "region": "eu-de", "identity_dir": f"{own}/agent"}
                | {"advertise_peer_url": f"https://{LOOPBACK}:{peer}", "endpoints_file": f"{own}/endpoints.yaml"}
            )
        )
        for path in (files, *files.rglob("*")):
            os.chown(path, *map(int, image.config["User"].split(":")))
        listen = {
            "PENSTOCK_LISTEN": f"0.0.0.0:{api}",
            **{
                f"PENSTOCK_AGENT_{name}_LISTEN": f"0.0.0.0:{port}"
                for name, port in (("TRAFFIC", traffic), ("PEER", peer), ("ADMIN", admin))
            },
        }
        mounts = {own: files}
        serve = ["penstock", "serve", "--config", f"{own}/control-plane.yaml"]
        context = ssl.create_default_context(cafile=files / "ca.crt")
        context.check_hostname = False

        def ready(port: int) -> bool:
            with suppress(httpx.HTTPError):
                return httpx.get(f"https://{LOOPBACK}:{port}/readyz", verify=context).status_code == 200
            return False

        daemons = [
            ServerProcess(
                name, image.command(command, listen, mounts), log_path=tmp_path / name, ready=partial(ready, port)
            )
            for name, command, port in (("control-plane", serve, api), ("agent", image.config["Cmd"], admin))
        ]
        with daemons[0], daemons[1]:
            for daemon in daemons:
                daemon.start()
            for daemon in daemons:
                daemon.wait_ready(PATIENCE_S)
            answer = httpx.post(
                f"http://{LOOPBACK}:{traffic}/v1/chat/completions",
                headers={"authorization": "Bearer example-everybody"},
                json={"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
            )
            assert answer.status_code == 200, answer.text
        assert [daemon.returncode for daemon in daemons] == [0, 0]

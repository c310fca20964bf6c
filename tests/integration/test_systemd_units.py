"""The units of deploy/systemd are valid and hardened, and their daemons serve."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from adapters.servers.etcd import EtcdServer
from adapters.servers.free_ports import LOOPBACK
from control_plane.serve import DRAIN_S
from regional_agent.daemon import CLOSE_S, MIN_DEFAULT_GRACE_S
from tests.support.deployed import NAMES, SCRIPTS, DeployedDaemon, replaced
from tests.support.paths import ROOT
from tests.support.reserved_ports import reserved_ports
from tests.support.wait import PATIENCE_S

SYSTEMD = ROOT / "deploy" / "systemd"
UNITS = ("penstock-agent", "penstock-control-plane")
MAX_EXPOSURE = 15
"""Greatest exposure that `systemd-analyze security` may find, in tenths of its score of 0 to 10."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on PATH")


def directives(unit: str) -> dict[str, list[str]]:
    """The values of each directive of a unit, in order."""
    found = defaultdict(list)
    for line in (SYSTEMD / f"{unit}.service").read_text().splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found[name].append(value)
    return found


def environment(unit: str) -> dict[str, str]:
    return dict(value.split("=", 1) for value in directives(unit)["Environment"])


@pytest.mark.parametrize("unit", UNITS)
def test_every_command_and_setting_exists(unit: str) -> None:
    (command,) = directives(unit)["ExecStart"]
    assert Path(command.split()[0]).name in SCRIPTS
    assert {name for name in environment(unit) if name.startswith("PENSTOCK_")} <= NAMES


@pytest.mark.parametrize("unit", UNITS)
def test_machines_of_terraform_do_not_need_the_files_of_the_units(unit: str) -> None:
    template = (ROOT / "terraform/modules/aws/machine/cloud-config.yaml.tftpl").read_text()
    drop_in = {line.strip() for line in template.partition("10-machine.conf")[2].partition("  - path")[0].splitlines()}
    cleared = {
        name for line in drop_in if line.startswith("Environment=") for name in re.findall(r"(\w+)= ?", line[12:])
    }
    assert {name for name in environment(unit) if name.endswith("_CONFIG")} <= cleared
    assert "LoadCredential" not in directives(unit) or "LoadCredential=" in drop_in
    assert "EnvironmentFile=/etc/penstock/unit.env" in drop_in


def test_stopping_takes_no_longer_than_systemd_waits() -> None:
    assert float(directives("penstock-agent")["TimeoutStopSec"][0]) >= MIN_DEFAULT_GRACE_S + CLOSE_S
    assert float(directives("penstock-control-plane")["TimeoutStopSec"][0]) >= DRAIN_S + 20


@needs_systemd
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_analyze_finds_no_error_and_little_exposure(unit: str, tmp_path: Path) -> None:
    text = (SYSTEMD / f"{unit}.service").read_text()
    program = tmp_path / "program"
    program.touch(mode=0o755)
    (tmp_path / f"{unit}.service").write_text(re.sub(r"(?<=^ExecStart=)\S+", str(program), text, flags=re.MULTILINE))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / f"{unit}.service")], capture_output=True, text=True
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    scored = subprocess.run(
        [
            *("systemd-analyze", "security", "--no-pager", "--offline=true", f"--threshold={MAX_EXPOSURE}"),
            str(tmp_path / f"{unit}.service"),
        ],
        capture_output=True,
        text=True,
    )
    assert scored.returncode == 0, scored.stdout


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="no systemd-sysusers on PATH")
def test_the_users_are_those_of_the_units(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    ran = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", str(SYSTEMD / "penstock.sysusers.conf")],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    users = {line.split(":")[0] for line in (tmp_path / "etc/passwd").read_text().splitlines()}
    assert {directives(unit)["User"][0] for unit in UNITS} <= users


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with reserved_ports(4) as reserved:
        yield reserved


def test_the_commands_of_the_guide_start_daemons_that_serve(
    etcd_server: EtcdServer, tmp_path: Path, ports: list[int]
) -> None:
    """Without systemd, in a separate root directory, with addresses of the test in place of the examples'."""
    traffic, peer, admin, api = ports
    by = {
        "/etc/": f"{tmp_path}/etc/",
        "/var/lib/": f"{tmp_path}/state/",
        "/usr/lib/": f"{tmp_path}/lib/",
        "%d": f"{tmp_path}/etc/penstock",
        "0.0.0.0:8080": f"{LOOPBACK}:{traffic}",
        "10.1.0.5:8081": f"{LOOPBACK}:{peer}",
        "10.1.0.5:8082": f"{LOOPBACK}:{admin}",
        "10.0.0.1:8443": f"{LOOPBACK}:{api}",
        '["10.0.0.11:2379", "10.0.1.11:2379", "10.0.2.11:2379"]': f"[{etcd_server.endpoint}]",
    }
    guide = (ROOT / "docs" / "deploying-systemd.md").read_text()
    build, users, certificates, *hosts = re.findall(r"^```sh\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    assert "make wheel" in build
    daemons = []
    for unit, host in zip(("penstock-control-plane", "penstock-agent"), hosts, strict=True):
        here = {**by, "/etc/": f"{tmp_path}/{unit}/etc/", "%d": f"{tmp_path}/{unit}/etc/penstock"}
        (tmp_path / unit / "etc/systemd/system").mkdir(parents=True)
        _run(replaced(users + (certificates if not daemons else "") + host, here | {f"-g {unit}": ""}), tmp_path)
        etc = tmp_path / unit / "etc"
        settings = etc / "penstock" / f"{unit.removeprefix('penstock-')}.yaml"
        settings.write_text(replaced(settings.read_text(), here) + f"\netcd_prefix: /{tmp_path.name}/\n")
        assert (etc / "systemd/system" / f"{unit}.service").exists()
        command = [replaced(word, here) for word in directives(unit)["ExecStart"][0].split()]
        variables = {name: replaced(value, here) for name, value in environment(unit).items()}
        daemons.append(DeployedDaemon(command, variables, tmp_path / "run" / unit))
    with daemons[0], daemons[1]:
        for daemon in daemons:
            daemon.start()
            daemon.wait_ready(PATIENCE_S)
        for port in (admin, api):
            assert httpx.get(f"http://{LOOPBACK}:{port}/livez").status_code == 200
    for daemon in daemons:
        assert daemon.returncode == 0, daemon.log_tail()
        assert daemon.states[0] == "READY=1"
        assert {"WATCHDOG=1", "STOPPING=1"} <= {line for state in daemon.states for line in state.splitlines()}
    within_s = MIN_DEFAULT_GRACE_S + CLOSE_S
    assert f"STOPPING=1\nEXTEND_TIMEOUT_USEC={within_s * 1e6:.0f}" in daemons[1].states


def _run(script: str, directory: Path) -> None:
    """Run the commands of the guide, except those of systemd, in a directory that contains the checkout's folders."""
    for folder in ("deploy", "policies"):
        if not (directory / folder).exists():
            (directory / folder).symlink_to(ROOT / folder)
    without_systemd = "systemctl() { :; }; systemd-sysusers() { :; }\n"
    commands = f'penstock() {{ {sys.executable} -c "from control_plane.cli.main import main; main()" "$@"; }}\n'
    ran = subprocess.run(
        ["bash", "-ec", without_systemd + commands + script],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr

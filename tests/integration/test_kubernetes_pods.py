"""The pods of deploy/kubernetes as real daemons that answer the probes, and the deployment guide."""

from __future__ import annotations

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

from adapters.servers.etcd import EtcdServer
from adapters.servers.free_ports import LOOPBACK
from penstock.wire.identity import ProcessRole, SpiffeId
from tests.support.cert_manager import write_requested_identity
from tests.support.containerfile import health_check
from tests.support.control_planes import TOKEN
from tests.support.deployed import DeployedDaemon, replaced
from tests.support.git_repositories import PolicyRepository
from tests.support.identities import FLEET, authority
from tests.support.manifests import (
    OVERLAYS,
    Object,
    container,
    environment,
    identity_attributes,
    of_kind,
    pod_spec,
    render,
)
from tests.support.paths import POLICIES, ROOT
from tests.support.wait import PATIENCE_S


class Pod:
    """A pod of an overlay: volumes are directories, the container is a process."""

    def __init__(self, overlay: str, name: str, directory: Path, secrets: dict[str, str], by: dict[str, str]) -> None:
        objects = render(overlay)
        self.container = container(objects)
        mounts = {mount["mountPath"]: directory / mount["name"] for mount in self.container["volumeMounts"]}
        by = by | {path: str(mounted) for path, mounted in mounts.items()}
        for volume in pod_spec(objects)["volumes"]:
            mounted = directory / volume["name"]
            mounted.mkdir(parents=True)
            for file, content in _files(objects, volume, secrets).items():
                (mounted / file).write_text(replaced(content, by))
                (mounted / file).chmod(volume.get("secret", {}).get("defaultMode", 0o644))
        requested = identity_attributes(objects, name)
        requested["uri-sans"] = requested["uri-sans"].replace("//my-fleet/", f"//{FLEET}/")
        write_requested_identity(directory / "identity", requested, authority())
        variables = environment(self.container, {"metadata.name": name, "status.podIP": LOOPBACK})
        variables = {variable: replaced(value, by) for variable, value in variables.items()}
        command = [replaced(word, by) for word in self.container["command"]]
        self.daemon = DeployedDaemon(command, variables, directory / "run")

    def probe(self, name: str, port: int, ca: Path) -> int:
        """The status of a probe. The kubelet verifies no certificate; this client requires one of the fleet."""
        get = self.container[name]["httpGet"]
        context = ssl.create_default_context(cafile=ca)
        context.check_hostname = False
        return httpx.get(f"{get['scheme'].lower()}://{LOOPBACK}:{port}{get['path']}", verify=context).status_code


def _files(objects: list[Object], volume: Any, secrets: dict[str, str]) -> dict[str, str]:
    """Content of the files of a volume."""
    if "secret" in volume:
        return secrets
    name = volume.get("configMap", {}).get("name")
    data: dict[str, str] = next(
        (config_map["data"] for config_map in of_kind(objects, "ConfigMap") if config_map["metadata"]["name"] == name),
        {},
    )
    return data


@pytest.fixture
def ca(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "ca.crt"
    file.write_bytes(authority().pem)
    return file


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Four reserved ports, on which only a server that sets SO_REUSEADDR, as the daemons do, can listen."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
        for reserved in sockets:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((LOOPBACK, 0))
        yield [reserved.getsockname()[1] for reserved in sockets]


def test_the_daemons_of_the_pods_answer_the_probes(
    etcd_server: EtcdServer, tmp_path: Path, ca: Path, ports: list[int]
) -> None:
    """Volumes are directories, and addresses of the test replace those of the overlays."""
    traffic, peer, admin, api = ports
    policy = PolicyRepository(tmp_path / "policy.git")
    smallest = POLICIES / "examples" / "smallest"
    policy.commit({file.name: file.read_bytes() for file in smallest.iterdir()})
    by = {
        **{f":{fixed}": f":{free}" for fixed, free in ((8080, traffic), (8081, peer), (8082, admin), (8443, api))},
        "[etcd-1.example.com:2379, etcd-2.example.com:2379, etcd-3.example.com:2379]": (
            f"[{etcd_server.endpoint}]\netcd_prefix: /{tmp_path.name}/"
        ),
        **{f"penstock-control-plane-{n}.control-planes.penstock.svc:8443": f"{LOOPBACK}:{api}" for n in range(3)},
        "https://git.example.com/penstock-policy.git": policy.path.as_uri(),
        "redis_url: rediss://redis.example.com:6379/0": "",
        "- name: llama\n  kubernetes: {namespace: inference, service: llama, port: http}": (
            f"- name: llama\n  url: http://{LOOPBACK}:1"
        ),
    }
    control_plane = Pod("control-plane", "penstock-control-plane-0", tmp_path / "cp", {"admin.token": TOKEN}, by)
    agent = Pod(
        "agent-deployment",
        "penstock-agent-7d9f8b6c5-x2v4q",
        tmp_path / "agent",
        {"region.key": authority().region_key("eu-de").hex(), "redis.password": "unused"},
        by,
    )
    with control_plane.daemon, agent.daemon:
        for pod in (control_plane, agent):
            pod.daemon.start()
        for pod, port in ((control_plane, api), (agent, admin)):
            pod.daemon.wait_ready(PATIENCE_S)
            assert pod.probe("livenessProbe", port, ca) == 200
        for stage, fixed, port in (("control-plane", 8443, api), ("agent", 8082, admin)):
            check = [replaced(word, {f":{fixed}/": f":{port}/"}) for word in health_check(stage)]
            subprocess.run([sys.executable, *check[1:]], check=True, timeout=PATIENCE_S)
        # No endpoint of the example exists: the agent is live and not ready.
        assert agent.probe("readinessProbe", admin, ca) == 503
    assert [pod.daemon.returncode for pod in (control_plane, agent)] == [0, 0]


def test_identities_are_of_the_role_region_and_name_of_the_process() -> None:
    agent = identity_attributes(render("agent-deployment"), "agent-1")
    assert SpiffeId.parse(agent["uri-sans"]) == SpiffeId("my-fleet", ProcessRole.AGENT, "agent-1", "eu-de")
    control_plane = identity_attributes(render("control-plane"), "cp-1")
    assert SpiffeId.parse(control_plane["uri-sans"]) == SpiffeId("my-fleet", ProcessRole.CONTROL_PLANE, "cp-1")


def test_the_commands_of_the_guide_run(tmp_path: Path) -> None:
    """Without a cluster, kubectl prints the objects that it would create and apply."""
    guide = (ROOT / "docs" / "deploying-kubernetes.md").read_text()
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE))
    kubectl = Path(sys.executable).with_name("kubectl")
    offline = f"""
        penstock() {{ {sys.executable} -c "from control_plane.cli.main import main; main()" "$@"; }}
        kubectl() {{
            case " $* " in
                *" create "*) {kubectl} "$@" --dry-run=client -o yaml >> created; echo --- >> created ;;
                " apply -k "*) {kubectl} kustomize "$3" >> applied; echo --- >> applied ;;
                " kustomize "*) {kubectl} "$@" ;;
                " label namespace "*) ;;
            esac
        }}
    """
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    ran = subprocess.run(
        ["bash", "-ec", offline + commands],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr
    created, applied = (list(yaml.safe_load_all((tmp_path / made).read_text())) for made in ("created", "applied"))
    assert {manifest["kind"] for manifest in applied if manifest} >= {"StatefulSet", "Deployment"}
    secrets = {
        manifest["metadata"]["name"]: manifest["data"].keys()
        for manifest in created
        if manifest and manifest["kind"] == "Secret"
    }
    assert secrets == {
        "penstock-authority": {"tls.crt", "tls.key"},
        "penstock-control-plane": {"admin.token"},
        "penstock-agent": {"region.key", "redis.password"},
    }
    volumes = [volume for overlay in OVERLAYS for volume in pod_spec(render(overlay))["volumes"]]
    assert {volume["secret"]["secretName"] for volume in volumes if "secret" in volume} <= secrets.keys()

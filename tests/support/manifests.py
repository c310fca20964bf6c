"""The Kubernetes manifests as `kubectl kustomize` renders them, and the environment of their containers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("control-plane", "agent-deployment", "agent-daemonset")

Object = Mapping[str, Any]


@cache
def render(overlay: str) -> list[Object]:
    """The objects of an overlay."""
    kubectl = Path(sys.executable).with_name("kubectl")
    ran = subprocess.run(
        [str(kubectl), "kustomize", str(KUBERNETES / "overlays" / overlay)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return list(yaml.safe_load_all(ran.stdout))


def of_kind(objects: list[Object], *kinds: str) -> Iterator[Object]:
    return (manifest for manifest in objects if manifest["kind"] in kinds)


def workload(objects: list[Object]) -> Object:
    """The only object that runs pods."""
    (manifest,) = of_kind(objects, "Deployment", "DaemonSet", "StatefulSet")
    return manifest


def pod_spec(objects: list[Object]) -> Object:
    spec: Object = workload(objects)["spec"]["template"]["spec"]
    return spec


def container(objects: list[Object]) -> Object:
    (only,) = pod_spec(objects)["containers"]
    single: Object = only
    return single


def environment(of: Object, fields: Mapping[str, str]) -> dict[str, str]:
    """The variables of a container, which may refer to earlier variables; `fields` are the fields of the pod."""
    variables: dict[str, str] = {}
    for variable in of["env"]:
        value = variable.get("value")
        text = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]] if value is None else value
        variables[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], text)
    return variables


def identity_attributes(objects: list[Object], pod: str) -> dict[str, str]:
    """The attributes that the CSI driver of cert-manager requests for a pod, without the prefix of the names."""
    (volume,) = (mounted["csi"] for mounted in pod_spec(objects)["volumes"] if "csi" in mounted)
    assert volume["driver"] == "csi.cert-manager.io"
    return {
        name.removeprefix("csi.cert-manager.io/"): value.replace("${POD_NAME}", pod)
        for name, value in volume["volumeAttributes"].items()
    }


Endpoint = tuple[Mapping[str, str], Mapping[str, str]]
"""Labels of a namespace and of a pod in the namespace; both empty for an address outside of the cluster."""


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def allows(rule: Object, peer: Endpoint, port: int | str) -> bool:
    """Whether a rule of a NetworkPolicy of the namespace `penstock` allows traffic with the peer."""
    peers = rule.get("from", rule.get("to"))
    ports = rule.get("ports")
    return (peers is None or any(_is(selectors, peer) for selectors in peers)) and (
        ports is None or port in {allowed["port"] for allowed in ports}
    )


def _is(selectors: Object, peer: Endpoint) -> bool:
    namespace, pod = peer
    own = {"matchLabels": {"kubernetes.io/metadata.name": "penstock"}}
    return (
        bool(namespace)
        and selects(selectors.get("namespaceSelector", own), namespace)
        and selects(selectors.get("podSelector", {}), pod)
    )

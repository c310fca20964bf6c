"""The Helm chart as `helm template` renders it, and the environment of its containers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.helm import HelmMissing, program
from tests.support.paths import ROOT

CHART = ROOT / "deploy" / "helm" / "penstock"
VALUES = ROOT / "deploy" / "helm" / "values"
VALUE_SETS: Mapping[str, tuple[str, ...]] = {
    "control-planes": ("control-planes",),
    "first-region": ("first-region",),
    "on-nodes": ("first-region", "on-nodes"),
    "gateway": ("gateway",),
    "gateway-api": ("gateway-api",),
    "trial": ("trial",),
}
"""The files of deploy/helm/values that are installed together, by name."""

Object = Mapping[str, Any]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm; skip the test where there is none."""
    try:
        command = [str(program()), *map(str, arguments)]
    except HelmMissing as missing:
        pytest.skip(str(missing))
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def values_of(value_set: str) -> list[str]:
    return [f"--values={VALUES / name}.yaml" for name in VALUE_SETS[value_set]]


@cache
def render(value_set: str, *options: str, chart: Path = CHART) -> list[Object]:
    """The objects of a set of values, in the namespace `penstock`."""
    ran = helm("template", "penstock", chart, "--namespace=penstock", *values_of(value_set), *options)
    assert ran.returncode == 0, ran.stderr
    return [manifest for manifest in yaml.load_all(ran.stdout, yaml.CSafeLoader) if manifest]


def of_kind(objects: list[Object], *kinds: str) -> Iterator[Object]:
    return (manifest for manifest in objects if manifest["kind"] in kinds)


def workloads(objects: list[Object]) -> dict[str, Object]:
    """The objects that run pods, by name."""
    return {each["metadata"]["name"]: each for each in of_kind(objects, "Deployment", "DaemonSet", "StatefulSet")}


def pod_spec(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def container(workload: Object) -> Object:
    (only,) = pod_spec(workload)["containers"]
    single: Object = only
    return single


def pod_labels(workload: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def environment(of: Object, fields: Mapping[str, str]) -> dict[str, str]:
    """The variables of a container, which may refer to earlier variables; `fields` are the fields of the pod."""
    variables: dict[str, str] = {}
    for variable in of["env"]:
        value = variable.get("value")
        text = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]] if value is None else value
        variables[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], text)
    return variables


def identity_attributes(workload: Object, pod: str) -> dict[str, str]:
    """The attributes that the CSI driver of cert-manager requests for a pod, without the prefix of the names."""
    (volume,) = (mounted["csi"] for mounted in pod_spec(workload)["volumes"] if "csi" in mounted)
    assert volume["driver"] == "csi.cert-manager.io"
    return {
        name.removeprefix("csi.cert-manager.io/"): value.replace("${POD_NAME}", pod)
        for name, value in volume["volumeAttributes"].items()
    }


Endpoint = tuple[Mapping[str, str], Mapping[str, str]]
"""Labels of a namespace and of a pod in the namespace; both empty for an address outside of the cluster."""


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        expression["operator"] == "In" and labels.get(expression["key"]) in expression["values"]
        for expression in selector.get("matchExpressions", ())
    )


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

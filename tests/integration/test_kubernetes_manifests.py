"""The manifests of deploy/kubernetes: valid by the schemas, consistent, with settings that the daemons accept."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest

from control_plane.serve import DRAIN_S
from regional_agent.daemon import CLOSE_S, MIN_DEFAULT_GRACE_S
from tests.support.deployed import NAMES, SCRIPTS
from tests.support.manifests import (
    OVERLAYS,
    Endpoint,
    Object,
    allows,
    container,
    environment,
    of_kind,
    pod_spec,
    render,
    selects,
    workload,
)

WITHOUT_SCHEMA = {("cert-manager.io/v1", "Issuer")}
"""Kinds that are not Kubernetes' own."""


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return render(request.param)


def test_every_object_is_valid(objects: list[Object]) -> None:
    for manifest in objects:
        if (manifest["apiVersion"], manifest["kind"]) not in WITHOUT_SCHEMA:
            kubernetes_validate.validate(manifest, "1.32", strict=True)


def test_an_unknown_field_is_found() -> None:
    """The schemas are strict."""
    service = next(of_kind(render("control-plane"), "Service"))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**service, "spec": {**service["spec"], "selectors": {}}}, "1.32", strict=True)


def test_names_that_objects_use_of_each_other_exist(objects: list[Object]) -> None:
    spec, pod, labels = (
        pod_spec(objects),
        container(objects),
        workload(objects)["spec"]["template"]["metadata"]["labels"],
    )
    ports = {port["name"]: port["containerPort"] for port in pod["ports"]}
    for service in of_kind(objects, "Service"):
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for policy in of_kind(objects, "NetworkPolicy"):
        assert policy["spec"]["podSelector"].get("matchLabels", {}).items() <= labels.items()
        for rule in policy["spec"].get("ingress", ()):
            assert {port["port"] for port in rule["ports"]} <= ports.keys()
    assert {pod[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} <= ports.keys()
    assert spec["serviceAccountName"] in {account["metadata"]["name"] for account in of_kind(objects, "ServiceAccount")}
    config_maps = {config_map["metadata"]["name"] for config_map in of_kind(objects, "ConfigMap")}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} == config_maps
    assert volumes.keys() == {mount["name"] for mount in pod["volumeMounts"]}


def test_settings_and_commands_exist_and_paths_are_mounted(objects: list[Object]) -> None:
    pod = container(objects)
    assert pod["command"][0] in SCRIPTS
    variables = environment(pod, {"metadata.name": "pod-1", "status.podIP": "10.0.0.1"})
    assert {name for name in variables if name.startswith("PENSTOCK_")} <= NAMES
    paths = [value for value in (*variables.values(), *pod["command"]) if value.startswith("/")]
    mounts = [Path(mount["mountPath"]) for mount in pod["volumeMounts"]]
    for path in paths:
        assert any(Path(path).is_relative_to(mount) for mount in mounts), path


def test_pods_are_restricted(objects: list[Object]) -> None:
    """The namespace enforces the profile `restricted` of the Pod Security Standards."""
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    spec, pod = pod_spec(objects), container(objects)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] != 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any("hostPort" in port for port in pod["ports"])
    assert pod["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {kind for volume in spec["volumes"] for kind in volume} <= {"name", "configMap", "csi", "emptyDir", "secret"}


def test_no_role_permits_changes_of_cluster_objects(objects: list[Object]) -> None:
    assert not list(of_kind(objects, "ClusterRole", "ClusterRoleBinding"))
    for role in of_kind(objects, "Role"):
        assert {verb for rule in role["rules"] for verb in rule["verbs"]} <= {"list", "watch"}
        assert {resource for rule in role["rules"] for resource in rule["resources"]} <= {
            "endpointslices",
            "inferencepools",
            "pods",
        }


HERE = {"kubernetes.io/metadata.name": "penstock"}
OUTSIDE: Endpoint = ({}, {})
"""Namespace and labels of what is no pod of this cluster."""
AGENT: Endpoint = (HERE, {"app.kubernetes.io/name": "penstock-agent"})
CONTROL_PLANE: Endpoint = (HERE, {"app.kubernetes.io/name": "penstock-control-plane"})
PROMETHEUS: Endpoint = ({"kubernetes.io/metadata.name": "monitoring"}, {"app.kubernetes.io/name": "prometheus"})
ENGINE: Endpoint = ({"kubernetes.io/metadata.name": "inference", "penstock/engines": "true"}, {"app": "llama"})
STRANGER: Endpoint = ({"kubernetes.io/metadata.name": "default"}, {"app.kubernetes.io/name": "prometheus"})
DNS: Endpoint = ({"kubernetes.io/metadata.name": "kube-system"}, {"k8s-app": "kube-dns"})


@pytest.mark.parametrize(
    ("overlay", "direction", "peer", "port", "allowed"),
    [
        ("agent-deployment", "Ingress", OUTSIDE, "traffic", True),
        ("agent-deployment", "Ingress", OUTSIDE, "peer", True),
        ("agent-deployment", "Ingress", OUTSIDE, "admin", False),
        ("agent-deployment", "Ingress", PROMETHEUS, "admin", True),
        ("agent-deployment", "Ingress", STRANGER, "admin", False),
        ("agent-deployment", "Ingress", ENGINE, "admin", True),
        ("agent-deployment", "Egress", OUTSIDE, 8081, True),
        ("agent-deployment", "Egress", CONTROL_PLANE, 8443, True),
        ("agent-deployment", "Egress", OUTSIDE, 2379, True),
        ("agent-deployment", "Egress", OUTSIDE, 6379, True),
        ("agent-deployment", "Egress", OUTSIDE, 6443, True),
        ("agent-deployment", "Egress", DNS, 53, True),
        ("agent-deployment", "Egress", ENGINE, 8000, True),
        ("agent-deployment", "Egress", STRANGER, 8000, False),
        ("control-plane", "Ingress", AGENT, "api", True),
        ("control-plane", "Ingress", CONTROL_PLANE, "api", True),
        ("control-plane", "Ingress", PROMETHEUS, "api", True),
        ("control-plane", "Ingress", STRANGER, "api", False),
        ("control-plane", "Egress", CONTROL_PLANE, 8443, True),
        ("control-plane", "Egress", OUTSIDE, 2379, True),
        ("control-plane", "Egress", OUTSIDE, 443, True),
        ("control-plane", "Egress", OUTSIDE, 6379, False),
        ("control-plane", "Egress", DNS, 53, True),
    ],
)
def test_pods_reach_what_they_need_and_nothing_else(
    overlay: str, direction: str, peer: Endpoint, port: int | str, allowed: bool
) -> None:
    policies = [policy["spec"] for policy in of_kind(render(overlay), "NetworkPolicy")]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in policies
    labels = workload(render(overlay))["spec"]["template"]["metadata"]["labels"]
    assert allowed == any(
        allows(rule, peer, port)
        for policy in policies
        if selects(policy["podSelector"], labels)
        for rule in policy.get(direction.lower(), ())
    )


@pytest.mark.parametrize(
    ("overlay", "drain_s"), [("control-plane", DRAIN_S), ("agent-deployment", MIN_DEFAULT_GRACE_S + CLOSE_S)]
)
def test_pods_are_not_killed_before_requests_have_ended(overlay: str, drain_s: float) -> None:
    before_s = container(render(overlay))["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_spec(render(overlay))["terminationGracePeriodSeconds"] >= before_s + drain_s + 10


def test_only_a_hung_event_loop_fails_the_liveness_probe_and_only_after_a_minute(objects: list[Object]) -> None:
    probe = container(objects)["livenessProbe"]
    assert probe["httpGet"]["path"] == "/livez"
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 60

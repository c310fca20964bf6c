"""The Helm chart: valid by the schemas, consistent, restricted, with settings that the daemons accept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from control_plane.serve import DRAIN_S
from control_plane.settings import PREFIX as CONTROL_PLANE_PREFIX
from control_plane.settings import ControlPlaneSettings
from regional_agent.config.settings import PREFIX as AGENT_PREFIX
from regional_agent.config.settings import AgentSettings
from regional_agent.daemon import CLOSE_S, MIN_DEFAULT_GRACE_S
from tests.support.chart import (
    CHART,
    VALUE_SETS,
    Endpoint,
    Object,
    allows,
    container,
    environment,
    helm,
    of_kind,
    pod_labels,
    pod_spec,
    render,
    selects,
    values_of,
    workloads,
)
from tests.support.deployed import NAMES, SCRIPTS
from tests.support.paths import ROOT

WITHOUT_SCHEMA = {"Issuer", "PodMonitor", "PrometheusRule", "HTTPRoute", "TLSRoute"}
"""Kinds that are not Kubernetes' own."""
MINIMAL = ("--set=fleet=f,region=r,trial.etcd.enabled=true,controlPlane.policyConfigMap=policy",)


@pytest.fixture(params=VALUE_SETS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return render(request.param)


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_helm_finds_no_fault(value_set: str) -> None:
    ran = helm("lint", "--strict", CHART, *values_of(value_set))
    assert ran.returncode == 0, ran.stdout


def valid(objects: list[Object], version: str) -> None:
    for manifest in objects:
        if manifest["kind"] not in WITHOUT_SCHEMA:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_every_object_is_valid(objects: list[Object]) -> None:
    valid(objects, "1.37")


def test_the_oldest_supported_kubernetes_has_all_fields() -> None:
    valid(render("gateway"), "1.30")


def test_an_unknown_field_is_found() -> None:
    """The schemas are strict."""
    service = next(of_kind(render("control-planes"), "Service"))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**service, "spec": {**service["spec"], "selectors": {}}}, "1.37", strict=True)


def test_no_two_objects_have_one_name(objects: list[Object]) -> None:
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))


def test_names_that_objects_use_of_each_other_exist(objects: list[Object]) -> None:
    running = workloads(objects)
    ports = {
        name: {port["name"] for port in container(workload)["ports"]} | {None} for name, workload in running.items()
    }

    def selected(selector: Any) -> list[str]:
        found = [name for name, workload in running.items() if selects(selector, pod_labels(workload))]
        assert found, selector
        return found

    for service in of_kind(objects, "Service"):
        # The label of a pod of a StatefulSet is the pod's name.
        labels = dict(service["spec"]["selector"])
        pod = labels.pop("statefulset.kubernetes.io/pod-name", None)
        for name in selected({"matchLabels": labels}):
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[name]
            assert pod is None or int(pod.removeprefix(f"{name}-")) < running[name]["spec"]["replicas"]
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert len(selected(budget["spec"]["selector"])) == 1
    for policy in of_kind(objects, "NetworkPolicy"):
        for name in selected(policy["spec"]["podSelector"]):
            for rule in policy["spec"].get("ingress", ()):
                assert {port["port"] for port in rule["ports"]} <= ports[name]
    services = {service["metadata"]["name"] for service in of_kind(objects, "Service")}
    accounts = {account["metadata"]["name"] for account in of_kind(objects, "ServiceAccount")}
    for name, workload in running.items():
        pod = container(workload)
        probes = [pod[probe] for probe in ("livenessProbe", "readinessProbe")]
        assert {(probe.get("httpGet") or probe["tcpSocket"])["port"] for probe in probes} <= ports[name]
        assert workload["spec"].get("serviceName", name) in services
        assert pod_spec(workload).get("serviceAccountName") in {*accounts, None}
        volumes = {volume["name"] for volume in pod_spec(workload)["volumes"]}
        claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
        assert volumes | claims == {mount["name"] for mount in pod["volumeMounts"]}


def test_settings_and_commands_exist_and_paths_are_mounted(objects: list[Object]) -> None:
    for name in workloads(objects).keys() & {"penstock-agent", "penstock-control-plane"}:
        pod = container(workloads(objects)[name])
        assert pod["command"][0] in SCRIPTS
        variables = environment(pod, {"metadata.name": "pod-1", "status.podIP": "10.0.0.1"})
        assert {name for name in variables if name.startswith("PENSTOCK_")} <= NAMES
        mounts = [Path(mount["mountPath"]) for mount in pod["volumeMounts"]]
        for path in (value for value in (*variables.values(), *pod["command"]) if value.startswith("/")):
            assert any(Path(path).is_relative_to(mount) for mount in mounts), path


@pytest.mark.parametrize(
    ("config_map", "file", "settings"),
    [
        ("penstock-agent", "agent.yaml", AgentSettings),
        ("penstock-control-plane", "control-plane.yaml", ControlPlaneSettings),
    ],
)
def test_configuration_files_have_settings_that_exist(
    objects: list[Object], config_map: str, file: str, settings: Any
) -> None:
    for each in of_kind(objects, "ConfigMap"):
        if each["metadata"]["name"] == config_map:
            assert yaml.safe_load(each["data"][file]).keys() <= settings.model_fields.keys()


def test_a_setting_of_the_chart_cannot_be_set_beside_it() -> None:
    """The environment would win over the file, silently."""
    for key, prefix, name in (
        ("controlPlane", CONTROL_PLANE_PREFIX, "penstock-control-plane"),
        ("agent", AGENT_PREFIX, "penstock-agent"),
    ):
        everything = [render(value_set) for value_set in VALUE_SETS]
        running = [workloads(objects)[name] for objects in everything if name in workloads(objects)]
        set_by_chart = {
            variable["name"].removeprefix(prefix).lower()
            for workload in running
            for variable in container(workload)["env"]
            if variable["name"].startswith(prefix)
        }
        listed = re.search(
            rf'define "penstock.{key}Settings" -}}}}\n(\[[^]]*\])', (CHART / "templates/_names.tpl").read_text()
        )
        assert listed
        assert set(json.loads(listed[1])) >= set_by_chart
    ran = helm("template", CHART, *MINIMAL, "--set=agent.settings.state_dir=/tmp")
    assert "agent.settings.state_dir: the chart sets it; remove it" in ran.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("fleet=", "fleet: is empty; name the fleet"),
        ("region=", "region: is empty; name the region of the agents"),
        ("trial.etcd.enabled=false", "etcdEndpoints: is empty; list host:port of each etcd member"),
        ("etcdEndpoints[0]=etcd:2379", "etcdEndpoints: remove them, or set trial.etcd.enabled to false"),
        ("controlPlane.policyConfigMap=", "controlPlane.settings: no policy_repository"),
        ("controlPlane.enabled=false", "controlPlane.urls: is empty"),
        ("gateway.enabled=true", "gateway.address: is empty"),
        ("certificates.source=secrets,agent.kind=DaemonSet", "agent.kind: a DaemonSet has no pods of known names"),
        ("agent.kind=ReplicaSet", "at '/agent/kind': value must be one of"),
        ("agent.replica=3", "at '/agent': additional properties 'replica' not allowed"),
        ("networkPolicies.controlPlaneCidrs[0]=10.0.0.1", "at '/networkPolicies/controlPlaneCidrs/0'"),
    ],
)
def test_bad_values_are_refused_with_the_field_and_the_remedy(options: str, problem: str) -> None:
    ran = helm("template", CHART, *MINIMAL, f"--set={options}")
    assert ran.returncode != 0
    assert problem in ran.stderr


def test_every_default_is_a_value_of_the_schema() -> None:
    """The schema refuses unknown fields, so that a value without an entry could not be set."""

    def check(values: Any, schema: Any, path: str) -> None:
        assert values.keys() == schema["properties"].keys() - {"global"}, path
        assert schema["additionalProperties"] is False, path
        for name, value in values.items():
            if "properties" in schema["properties"][name] and name != "resources":
                check(value, schema["properties"][name], f"{path}.{name}")

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    check(values, json.loads((CHART / "values.schema.json").read_text()), "")


def test_pods_are_restricted(objects: list[Object]) -> None:
    """The namespace enforces the profile `restricted` of the Pod Security Standards."""
    for workload in workloads(objects).values():
        spec, pod = pod_spec(workload), container(workload)
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
        kinds = {kind for volume in spec["volumes"] for kind in volume}
        assert kinds <= {"name", "configMap", "csi", "emptyDir", "secret"}
        assert "memory" in pod["resources"]["limits"]
        assert "cpu" not in pod["resources"]["limits"]
        for volume in spec["volumes"]:
            assert volume.get("secret", {}).get("defaultMode", 0o440) == 0o440


def test_no_role_permits_changes_of_cluster_objects(objects: list[Object]) -> None:
    assert not list(of_kind(objects, "ClusterRole", "ClusterRoleBinding"))
    for role in of_kind(objects, "Role"):
        assert {verb for rule in role["rules"] for verb in rule["verbs"]} <= {"list", "watch"}
        resources = {resource for rule in role["rules"] for resource in rule["resources"]}
        assert resources <= {"endpointslices", "inferencepools", "pods"}


HERE = {"kubernetes.io/metadata.name": "penstock"}
PART = {"app.kubernetes.io/part-of": "penstock"}
OUTSIDE: Endpoint = ({}, {})
"""Namespace and labels of what is no pod of this cluster."""
AGENT: Endpoint = (HERE, {"app.kubernetes.io/name": "penstock-agent"})
CONTROL_PLANE: Endpoint = (HERE, {"app.kubernetes.io/name": "penstock-control-plane"})
GATEWAY: Endpoint = (HERE, {"app.kubernetes.io/name": "penstock-gateway"})
ETCD: Endpoint = (HERE, {"app.kubernetes.io/name": "etcd"} | PART)
VALKEY: Endpoint = (HERE, {"app.kubernetes.io/name": "valkey"} | PART)
PROMETHEUS: Endpoint = ({"kubernetes.io/metadata.name": "monitoring"}, {"app.kubernetes.io/name": "prometheus"})
ENGINE: Endpoint = ({"kubernetes.io/metadata.name": "inference", "penstock/engines": "true"}, {"app": "llama"})
STRANGER: Endpoint = ({"kubernetes.io/metadata.name": "default"}, {"app.kubernetes.io/name": "prometheus"})
DNS: Endpoint = ({"kubernetes.io/metadata.name": "kube-system"}, {"k8s-app": "kube-dns"})


@pytest.mark.parametrize(
    ("value_set", "name", "direction", "peer", "port", "allowed"),
    [
        ("first-region", "penstock-agent", "Ingress", OUTSIDE, "traffic", True),
        ("first-region", "penstock-agent", "Ingress", OUTSIDE, "peer", True),
        ("first-region", "penstock-agent", "Ingress", OUTSIDE, "admin", False),
        ("first-region", "penstock-agent", "Ingress", PROMETHEUS, "admin", True),
        ("first-region", "penstock-agent", "Ingress", STRANGER, "admin", False),
        ("first-region", "penstock-agent", "Ingress", ENGINE, "admin", True),
        ("first-region", "penstock-agent", "Egress", OUTSIDE, 8081, True),
        ("first-region", "penstock-agent", "Egress", CONTROL_PLANE, 8443, True),
        ("first-region", "penstock-agent", "Egress", OUTSIDE, 2379, True),
        ("first-region", "penstock-agent", "Egress", OUTSIDE, 6379, True),
        ("first-region", "penstock-agent", "Egress", OUTSIDE, 6443, True),
        ("first-region", "penstock-agent", "Egress", OUTSIDE, 4318, False),
        ("gateway-api", "penstock-agent", "Egress", OUTSIDE, 4318, True),
        ("first-region", "penstock-agent", "Egress", DNS, 53, True),
        ("first-region", "penstock-agent", "Egress", ENGINE, 8000, True),
        ("first-region", "penstock-agent", "Egress", STRANGER, 8000, False),
        ("control-planes", "penstock-control-plane", "Ingress", AGENT, "api", True),
        ("control-planes", "penstock-control-plane", "Ingress", CONTROL_PLANE, "api", True),
        ("control-planes", "penstock-control-plane", "Ingress", PROMETHEUS, "api", True),
        ("control-planes", "penstock-control-plane", "Ingress", STRANGER, "api", False),
        ("control-planes", "penstock-control-plane", "Egress", CONTROL_PLANE, 8443, True),
        ("control-planes", "penstock-control-plane", "Egress", OUTSIDE, 2379, True),
        ("control-planes", "penstock-control-plane", "Egress", OUTSIDE, 443, True),
        ("control-planes", "penstock-control-plane", "Egress", OUTSIDE, 6379, False),
        ("control-planes", "penstock-control-plane", "Egress", DNS, 53, True),
        ("gateway", "penstock-gateway", "Ingress", OUTSIDE, "agents", True),
        ("gateway", "penstock-gateway", "Egress", AGENT, 8081, True),
        ("gateway", "penstock-gateway", "Egress", OUTSIDE, 2379, False),
        ("gateway", "penstock-gateway", "Egress", AGENT, 8082, False),
        ("trial", "etcd", "Ingress", AGENT, "client", True),
        ("trial", "etcd", "Ingress", CONTROL_PLANE, "client", True),
        ("trial", "etcd", "Ingress", STRANGER, "client", False),
        ("trial", "etcd", "Egress", OUTSIDE, 2379, False),
        ("trial", "valkey", "Ingress", AGENT, "redis", True),
        ("trial", "valkey", "Ingress", CONTROL_PLANE, "redis", False),
    ],
)
def test_pods_reach_what_they_need_and_nothing_else(
    value_set: str, name: str, direction: str, peer: Endpoint, port: int | str, allowed: bool
) -> None:
    policies = [policy["spec"] for policy in of_kind(render(value_set), "NetworkPolicy")]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in policies
    labels = pod_labels(workloads(render(value_set))[name])
    assert allowed == any(
        allows(rule, peer, port)
        for policy in policies
        if selects(policy["podSelector"], labels)
        for rule in policy.get(direction.lower(), ())
    )


@pytest.mark.parametrize(
    ("value_set", "name", "drain_s"),
    [
        ("control-planes", "penstock-control-plane", DRAIN_S),
        ("first-region", "penstock-agent", MIN_DEFAULT_GRACE_S + CLOSE_S),
        ("gateway", "penstock-gateway", MIN_DEFAULT_GRACE_S),
    ],
)
def test_pods_are_not_killed_before_requests_have_ended(value_set: str, name: str, drain_s: float) -> None:
    workload = workloads(render(value_set))[name]
    before_s = container(workload)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_spec(workload)["terminationGracePeriodSeconds"] >= before_s + drain_s + 10


def test_only_a_hung_process_fails_the_liveness_probe_and_only_after_a_minute(objects: list[Object]) -> None:
    for name, workload in workloads(objects).items():
        probe = container(workload)["livenessProbe"]
        if name.startswith("penstock-") and name != "penstock-gateway":
            assert probe["httpGet"]["path"] == "/livez"
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 60


def test_pods_are_spread_over_nodes_and_zones() -> None:
    for value_set, name in (
        ("control-planes", "penstock-control-plane"),
        ("first-region", "penstock-agent"),
        ("gateway", "penstock-gateway"),
    ):
        constraints = pod_spec(workloads(render(value_set))[name])["topologySpreadConstraints"]
        assert [(each["topologyKey"], each["whenUnsatisfiable"]) for each in constraints] == [
            ("kubernetes.io/hostname", "DoNotSchedule"),
            ("topology.kubernetes.io/zone", "ScheduleAnyway"),
        ]
    nodes = workloads(render("on-nodes"))["penstock-agent"]
    assert nodes["kind"] == "DaemonSet"
    assert "topologySpreadConstraints" not in pod_spec(nodes)
    budgets = {budget["metadata"]["name"] for budget in of_kind(render("on-nodes"), "PodDisruptionBudget")}
    assert "penstock-agent" not in budgets


def test_a_gateway_selects_each_agent_by_the_name_that_the_agent_advertises() -> None:
    agent = workloads(render("gateway"))["penstock-agent"]
    (config,) = (each for each in of_kind(render("gateway"), "ConfigMap") if "haproxy.cfg" in each["data"])
    routes = {each["spec"]["hostnames"][0]: each for each in of_kind(render("gateway-api"), "TLSRoute")}
    for ordinal in range(agent["spec"]["replicas"]):
        pod = f"penstock-agent-{ordinal}"
        fields = {"metadata.name": pod, "status.podIP": "10.0.0.1"}
        name = environment(container(agent), fields)["PENSTOCK_AGENT_ADVERTISE_PEER_SERVER_NAME"]
        assert f"use_backend {pod} if {{ req.ssl_sni -i {name} }}" in config["data"]["haproxy.cfg"]
        assert f"server agent {pod}.agents.penstock.svc.cluster.local:8081 " in config["data"]["haproxy.cfg"]
        by_route = workloads(render("gateway-api"))["penstock-agent"]
        name = environment(container(by_route), fields)["PENSTOCK_AGENT_ADVERTISE_PEER_SERVER_NAME"]
        assert routes[name]["spec"]["rules"][0]["backendRefs"] == [{"name": pod, "port": 8081}]


def test_dashboards_and_rules_are_those_of_the_repository() -> None:
    generated = ROOT / "dashboards" / "generated"
    boards = {
        name: json.loads(text)
        for each in of_kind(render("gateway-api"), "ConfigMap")
        if each["metadata"]["labels"].get("grafana_dashboard")
        for name, text in each["data"].items()
    }
    assert boards == {f"penstock-{file.name}": json.loads(file.read_text()) for file in generated.glob("*.json")}
    rules = yaml.safe_load((generated / "rules.yaml").read_text())
    (rule,) = of_kind(render("gateway-api"), "PrometheusRule")
    assert rule["spec"] == rules
    (config_map,) = (
        each for each in of_kind(render("trial"), "ConfigMap") if each["metadata"]["name"] == "penstock-rules"
    )
    assert yaml.safe_load(config_map["data"]["penstock-rules.yaml"]) == rules


def test_metrics_have_the_jobs_and_labels_of_the_rules() -> None:
    (monitor,) = of_kind(render("gateway-api"), "PodMonitor")
    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"
    agent = workloads(render("gateway-api"))["penstock-agent"]
    assert selects(monitor["spec"]["selector"], pod_labels(agent))
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in container(agent)["ports"]}
    assert {each["targetLabel"] for each in endpoint["relabelings"]} == {"site", "agent"}
    assert f'up{{job="{pod_labels(agent)["app.kubernetes.io/name"]}"}}' in (
        ROOT / "dashboards" / "generated" / "rules.yaml"
    ).read_text().replace("'", "")

"""The shipped manifests of the endpoint picker agree with each other and with the agent."""

from __future__ import annotations

from typing import Any

import yaml
from kubernetes_validate import validate

from tests.support.paths import ROOT

FILE = ROOT / "deploy" / "gateways" / "inference-pool.yaml"
ISTIO_FILE = FILE.with_name("istio.yaml")
BUILT_IN = ("Service", "NetworkPolicy")


def documents() -> dict[str, Any]:
    """The objects of the file, by kind."""
    found = [each for each in yaml.safe_load_all(FILE.read_text()) if each]
    return {each["kind"]: each for each in found}


def test_the_pool_reaches_the_pickers_of_the_agents() -> None:
    objects = documents()
    pool = objects["InferencePool"]["spec"]
    reference, picker, policy = pool["endpointPickerRef"], objects["Service"], objects["NetworkPolicy"]["spec"]
    assert reference["failureMode"] == "FailClose"
    assert reference["name"] == picker["metadata"]["name"]
    ports = {reference["port"]["number"], picker["spec"]["ports"][0]["port"]}
    assert ports == {policy["ingress"][0]["ports"][0]["port"]}
    assert policy["podSelector"]["matchLabels"] == picker["spec"]["selector"]
    backend = objects["HTTPRoute"]["spec"]["rules"][0]["backendRefs"][0]
    assert (backend["kind"], backend["name"]) == ("InferencePool", objects["InferencePool"]["metadata"]["name"])


def test_pool_picker_and_route_are_in_one_namespace() -> None:
    """The API has no reference to a picker of another namespace, and excludes Services of type ExternalName."""
    objects = documents()
    assert len({each["metadata"]["namespace"] for each in objects.values()}) == 1
    assert objects["Service"]["spec"].get("type", "ClusterIP") == "ClusterIP"
    assert objects["Service"]["spec"]["selector"]


def test_the_built_in_objects_are_valid() -> None:
    for kind, document in documents().items():
        if kind in BUILT_IN:
            validate(document, "1.32", strict=True)


def test_the_rule_for_istio_names_the_service_that_the_pool_reaches() -> None:
    objects = documents()
    rule, picker = yaml.safe_load(ISTIO_FILE.read_text()), objects["Service"]["metadata"]
    assert rule["spec"]["host"] == f"{picker['name']}.{picker['namespace']}.svc.cluster.local"
    assert rule["metadata"]["namespace"] == objects["HTTPRoute"]["spec"]["parentRefs"][0]["namespace"]

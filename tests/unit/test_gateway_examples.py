"""The shipped manifests of the endpoint picker agree with each other and with the agent."""

from __future__ import annotations

from typing import Any

import yaml
from kubernetes_validate import validate

from tests.support.paths import ROOT

FILE = ROOT / "deploy" / "gateways" / "inference-pool.yaml"
ISTIO_FILE = FILE.with_name("istio.yaml")
BUILT_IN = ("Service", "NetworkPolicy")


def documents() -> dict[tuple[str, str], Any]:
    """The objects of the file, by kind and namespace."""
    found = [each for each in yaml.safe_load_all(FILE.read_text()) if each]
    return {(each["kind"], each["metadata"]["namespace"]): each for each in found}


def test_the_pool_reaches_the_pickers_of_the_agents() -> None:
    objects = documents()
    pool = objects["InferencePool", "engines"]["spec"]
    reference, alias = pool["endpointPickerRef"], objects["Service", "engines"]
    picker, policy = objects["Service", "penstock"], objects["NetworkPolicy", "penstock"]["spec"]
    assert reference["failureMode"] == "FailClose"
    assert reference["name"] == alias["metadata"]["name"]
    assert alias["spec"]["externalName"].startswith(f"{picker['metadata']['name']}.penstock.svc")
    ports = {reference["port"]["number"], alias["spec"]["ports"][0]["port"], picker["spec"]["ports"][0]["port"]}
    assert ports == {policy["ingress"][0]["ports"][0]["port"]}
    assert policy["podSelector"]["matchLabels"] == picker["spec"]["selector"]
    backend = objects["HTTPRoute", "engines"]["spec"]["rules"][0]["backendRefs"][0]
    assert (backend["kind"], backend["name"]) == (
        "InferencePool",
        objects["InferencePool", "engines"]["metadata"]["name"],
    )


def test_the_built_in_objects_are_valid() -> None:
    for (kind, _), document in documents().items():
        if kind in BUILT_IN:
            validate(document, "1.32", strict=True)


def test_the_rule_for_istio_names_the_service_that_the_pool_reaches() -> None:
    objects = documents()
    rule = yaml.safe_load(ISTIO_FILE.read_text())
    assert rule["spec"]["host"] == objects["Service", "engines"]["spec"]["externalName"]
    parent = objects["HTTPRoute", "engines"]["spec"]["parentRefs"][0]
    assert rule["metadata"]["namespace"] == parent["namespace"]

"""The examples of autoscalers are well-formed, and query a metric and labels that the leader exports."""

from __future__ import annotations

import re

import yaml
from prometheus_client import CollectorRegistry

from control_plane.planning.capacity_metrics import LABELS, CapacityMetrics
from tests.support.paths import ROOT

EXAMPLES = ROOT / "deploy" / "autoscaling"
METRIC = "penstock_desired_endpoints"


def test_the_example_from_zero_keeps_the_replicas_without_a_recommendation() -> None:
    scaled, authentication = yaml.safe_load_all((EXAMPLES / "keda-from-zero.yaml").read_text())
    (trigger,) = scaled["spec"]["triggers"]
    assert (trigger["metricType"], trigger["metadata"]["targetValue"]) == ("AverageValue", "1")
    assert (scaled["spec"]["minReplicaCount"], trigger["metadata"]["activationTargetValue"]) == (0, "0")
    assert "fallback" not in scaled["spec"], "KEDA would scale to zero after an error"
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]


def test_both_query_one_region_and_model_and_keep_the_replicas_without_a_response() -> None:
    registry = CollectorRegistry()
    CapacityMetrics(registry)
    assert METRIC in {family.name for family in registry.collect()}
    keda = yaml.safe_load((EXAMPLES / "keda.yaml").read_text())
    (trigger,) = keda["spec"]["triggers"]
    assert re.findall(r'(\w+)="', trigger["metadata"]["query"]) == list(LABELS)
    assert METRIC in trigger["metadata"]["query"]
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("AverageValue", "1")
    assert keda["spec"]["fallback"]["behavior"] == "currentReplicas"
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    hpa = yaml.safe_load((EXAMPLES / "hpa.yaml").read_text())
    (metric,) = (each["external"] for each in hpa["spec"]["metrics"])
    assert metric["metric"]["name"] == METRIC
    assert list(metric["metric"]["selector"]["matchLabels"]) == list(LABELS)
    assert metric["target"] == {"type": "AverageValue", "averageValue": "1"}

"""Upgrades of the Helm chart: what changes between versions, and what Kubernetes does not permit to change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, VALUE_SETS, Object, helm, render, values_of
from tests.support.paths import ROOT

FIXED = ROOT / "tests" / "integration" / "helm_fixed_fields.yaml"
"""What Kubernetes does not permit to change of each object that a release has installed."""


def fixed_fields(objects: list[Object]) -> dict[str, Any]:
    """The fields of objects that an upgrade cannot change, by kind, namespace and name."""
    found: dict[str, Any] = {}
    for each in objects:
        key = "/".join((each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]))
        spec = each.get("spec", {})
        match each["kind"]:
            case "Deployment" | "DaemonSet":
                found[key] = {"selector": spec["selector"]}
            case "StatefulSet":
                names = ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates")
                found[key] = {name: spec[name] for name in names if name in spec}
            case "Service":
                found[key] = {"clusterIP": spec.get("clusterIP")}
            case "RoleBinding":
                found[key] = {"roleRef": each["roleRef"]}
    return found


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_fields_that_cannot_change_are_those_of_the_first_release(value_set: str) -> None:
    """A change here breaks `helm upgrade`: rename the object, and describe its migration in docs/upgrading.md."""
    assert fixed_fields(render(value_set)) == yaml.safe_load(FIXED.read_text())[value_set]


@pytest.fixture(scope="module")
def next_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with the next version."""
    copy = tmp_path_factory.mktemp("next") / "penstock"
    shutil.copytree(CHART, copy)
    file = copy / "Chart.yaml"
    file.write_text(file.read_text().replace("ersion: 0.", "ersion: 99."))
    return copy


def differences(old: Any, new: Any, path: str = "") -> set[str]:
    """The paths of fields that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {found for key in old | new for found in differences(old.get(key), new.get(key), f"{path}/{key}")}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return {found for index, (a, b) in pairs for found in differences(a, b, f"{path}/{index}")}
    return set() if old == new else {path}


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_a_new_version_changes_labels_and_the_image_alone(value_set: str, next_chart: Path) -> None:
    """Pods are replaced for the image, not for the version of the chart: etcd of a trial is not restarted."""
    old, new = (
        {(each["kind"], each["metadata"]["name"]): each for each in render(value_set, chart=chart)}
        for chart in (CHART, next_chart)
    )
    assert old.keys() == new.keys()
    labels = {"/metadata/labels/app.kubernetes.io/version", "/metadata/labels/helm.sh/chart"}
    for key, each in old.items():
        changed = differences(each, new[key])
        image = {"/spec/template/spec/containers/0/image"}
        ours = key[1] in ("penstock-agent", "penstock-control-plane") and "template" in each.get("spec", {})
        by_digest = value_set == "gateway-api"
        assert changed == labels | (image if ours and not by_digest else set()), key


def test_a_change_of_settings_replaces_the_pods_and_one_of_endpoints_does_not() -> None:
    def pods(*options: str) -> Any:
        return [each["spec"]["template"] for each in render("first-region", *options) if each["kind"] == "Deployment"]

    assert pods("--set=agent.settings.warm_up_s=10") != pods()
    assert pods("--set=agent.endpoints[0].slots=8") == pods()


def test_the_package_renders_as_the_folder(tmp_path: Path) -> None:
    packaged = helm("package", CHART, "--destination", tmp_path)
    assert packaged.returncode == 0, packaged.stderr
    (archive,) = tmp_path.glob("penstock-*.tgz")
    assert helm("lint", "--strict", archive, *values_of("gateway-api")).returncode == 0
    assert render("gateway-api", chart=archive) == render("gateway-api")

"""The Terraform: formatted, valid, its own tests green, and what it computes is what the daemons take.

Parsing needs no Terraform; the rest skips where the binary is not on PATH. Nothing is downloaded and nothing is
written to the tree.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml

from control_plane.policy.kinds.regions import RegionDocument
from control_plane.settings import load_settings as load_control_plane_settings
from regional_agent.config.settings import AgentSettings, load_settings
from regional_agent.endpoints.endpoint_file import parse_endpoints
from tests.support.paths import ROOT

TERRAFORM_DIR = ROOT / "terraform"
FILES = sorted(TERRAFORM_DIR.rglob("*.tf"))
ROOTS = ("modules/topology", "examples/five-regions")

needs_terraform = pytest.mark.skipif(shutil.which("terraform") is None, reason="no terraform on PATH")


def parse(path: Path) -> dict[str, Any]:
    """A file as python-hcl2 reads it."""
    with path.open(encoding="utf-8") as file:
        return dict(hcl2.load(file))


def unquoted(text: str) -> str:
    """python-hcl2 8 keeps the quotes of labels and texts."""
    return text.strip('"')


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TERRAFORM_DIR)))
def test_every_file_parses_and_needs_no_provider(path: Path) -> None:
    parsed = parse(path)
    assert parsed
    assert not {"provider", "resource", "data"} & parsed.keys()
    for block in parsed.get("terraform", []):
        assert "required_providers" not in block


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TERRAFORM_DIR)))
def test_inputs_and_outputs_are_described_and_hold_no_secret(path: Path) -> None:
    parsed = parse(path)
    for block in (*parsed.get("variable", []), *parsed.get("output", [])):
        for name, body in block.items():
            assert len(body["description"]) > 15, f"{path.name}: {name} has no description"
            assert "sensitive" not in body, f"{path.name}: {name}: secrets do not pass through here"
            assert not re.search(r"password|secret|token", unquoted(name))


def test_the_readme_lists_every_input_and_output() -> None:
    readme = (TERRAFORM_DIR / "modules/topology/README.md").read_text(encoding="utf-8")
    for kind, file in (("variable", "variables.tf"), ("output", "outputs.tf")):
        declared = {
            unquoted(name) for block in parse(TERRAFORM_DIR / "modules/topology" / file)[kind] for name in block
        }
        section = readme.split("## Inputs")[1 if kind == "variable" else 0]
        section = readme.split("## Outputs")[1] if kind == "output" else section.split("## Outputs")[0]
        assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == declared


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the Terraform tree, so that state and locks stay out of the real one."""
    return Path(shutil.copytree(TERRAFORM_DIR, tmp_path_factory.mktemp("terraform") / "terraform"))


def terraform(workspace: Path, root: str, *arguments: str) -> str:
    """Run one command in a root of the copy, offline and with no configuration of the user; returns its output."""
    nothing = workspace.parent / "empty.tfrc"
    nothing.touch()
    environment = {
        **os.environ,
        "TF_CLI_CONFIG_FILE": str(nothing),
        "TF_DATA_DIR": str(workspace.parent / root.replace("/", "-")),
        "TF_IN_AUTOMATION": "1",
        "TF_INPUT": "0",
        "CHECKPOINT_DISABLE": "1",
    }
    ran = subprocess.run(
        ["terraform", f"-chdir={workspace / root}", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@needs_terraform
def test_everything_is_formatted(workspace: Path) -> None:
    terraform(workspace, ".", "fmt", "-check", "-diff", "-recursive")


@needs_terraform
@pytest.mark.parametrize("root", ROOTS)
def test_it_is_valid_and_its_own_tests_pass(workspace: Path, root: str) -> None:
    terraform(workspace, root, "init", "-backend=false", "-no-color")
    terraform(workspace, root, "validate", "-no-color")
    passed = re.search(r"Success! (\d+) passed, 0 failed", terraform(workspace, root, "test", "-no-color"))
    assert passed
    assert int(passed[1]) > 0


@pytest.fixture(scope="module")
def fleet(workspace: Path) -> dict[str, Any]:
    """What the example computes."""
    root = "examples/five-regions"
    terraform(workspace, root, "init", "-no-color")
    terraform(workspace, root, "apply", "-auto-approve", "-no-color")
    return {name: output["value"] for name, output in json.loads(terraform(workspace, root, "output", "-json")).items()}


def settings_from(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AgentSettings:
    """Start-up settings of an agent with exactly this environment."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load_settings()


@needs_terraform
def test_agents_take_the_environment_that_they_are_given(
    fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {f"PENSTOCK_AGENT_{field.upper()}" for field in AgentSettings.model_fields}
    for region, agents in fleet["agents"].items():
        for name, agent in agents.items():
            assert agent["environment"].keys() <= known
            settings = settings_from(agent["environment"], monkeypatch)
            assert (settings.region, settings.name) == (region, name)
            assert len(settings.etcd_endpoints) == 3
            assert len(settings.control_plane_urls) == 2
            assert len(settings.trusted_proxies) == 1
            assert settings.advertise_peer_url == f"https://{agent['host']}:8081"


@needs_terraform
def test_control_planes_take_the_environment_that_they_are_given(
    fleet: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    for name, control_plane in fleet["control_planes"].items():
        for variable, value in {**control_plane["environment"], "PENSTOCK_POLICY_DIR": str(tmp_path)}.items():
            monkeypatch.setenv(variable, value)
        settings = load_control_plane_settings()
        assert (settings.name, len(settings.etcd_endpoints)) == (name, 3)


@needs_terraform
def test_control_planes_reach_each_other(fleet: dict[str, Any]) -> None:
    """A follower forwards requests to the leader, which may be in any of their regions."""
    regions = {control_plane["region"] for control_plane in fleet["control_planes"].values()}
    allowed = {(flow["from"], flow["to"]) for flow in fleet["firewall_rules"].values()}
    assert {(f"control-plane@{a}", f"control-plane@{b}") for a in regions for b in regions} <= allowed


@needs_terraform
def test_agents_take_the_endpoints_that_they_are_given(fleet: dict[str, Any]) -> None:
    counts = {
        region: len(parse_endpoints(text.encode(), Path("endpoints.yaml")))
        for region, text in fleet["endpoints_files"].items()
    }
    assert counts == {"eu-de": 6, "eu-es": 7, "eu-gb": 6, "us-east": 8, "jp-tok": 4}


@needs_terraform
def test_the_policy_bundle_takes_the_regions(fleet: dict[str, Any]) -> None:
    regions = [RegionDocument(**document) for document in yaml.safe_load_all(fleet["policy_regions_file"])]
    assert {region.name: region.country for region in regions} == {
        "eu-de": "DE",
        "eu-es": "ES",
        "eu-gb": "GB",
        "us-east": "US",
        "jp-tok": "JP",
    }


@needs_terraform
def test_every_host_that_is_spoken_of_has_a_name(fleet: dict[str, Any]) -> None:
    named = {host for hosts in fleet["dns_names"].values() for host in hosts.values()}
    spoken_of = set(re.findall(r"[a-z0-9.-]+\.penstock\.example\.internal", json.dumps(fleet)))
    assert spoken_of == named


@needs_terraform
def test_prometheus_takes_the_scrape_configuration(fleet: dict[str, Any], tmp_path: Path) -> None:
    promtool = shutil.which(os.environ.get("PROMTOOL", "promtool"))
    if promtool is None:
        pytest.skip("no promtool on PATH or in PROMTOOL")
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump({"scrape_configs": fleet["prometheus_scrape_configs"]}))
    ran = subprocess.run([promtool, "check", "config", str(path)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr

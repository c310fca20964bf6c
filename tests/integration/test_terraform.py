"""The Terraform is formatted and valid, passes its own tests, and computes settings that the daemons accept.

Parsing and the checks of references need no Terraform; the rest skips where the binary is not on PATH. Nothing is
downloaded and nothing is written to the tree, so that what uses a provider is parsed and checked for references, and
not validated.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane.policy.catalogue import build_catalogue
from control_plane.policy.documents import read_documents
from control_plane.policy.kinds import KINDS
from control_plane.settings import load_settings as load_control_plane_settings
from penstock.policy.kinds.regions import Region
from regional_agent.config.settings import AgentSettings, load_settings
from regional_agent.endpoints.endpoint_file import parse_endpoints
from tests.support.paths import ROOT
from tests.support.terraform_modules import cycle, dependencies, parse, problems, read_module

TERRAFORM_DIR = ROOT / "terraform"
FILES = sorted(TERRAFORM_DIR.rglob("*.tf"))
FOLDERS = sorted({path.parent for path in FILES})
ROOTS = ("modules/topology", "modules/aws/rules", "examples/five-regions")
"""What needs no provider and has tests of its own."""

needs_terraform = pytest.mark.skipif(shutil.which("terraform") is None, reason="no terraform on PATH")


def unquoted(text: str) -> str:
    """python-hcl2 8 keeps the quotes of labels and texts."""
    return text.strip('"')


def test_the_roots_need_no_provider() -> None:
    for path in (path for root in ROOTS for path in (TERRAFORM_DIR / root).glob("*.tf")):
        parsed = parse(path)
        assert not {"provider", "resource", "data"} & parsed.keys()
        for block in parsed.get("terraform", []):
            assert "required_providers" not in block


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(TERRAFORM_DIR)))
def test_references_and_inputs_of_calls_are_valid(folder: Path) -> None:
    assert list(problems(read_module(folder))) == []


@pytest.mark.parametrize("example", sorted((TERRAFORM_DIR / "examples").iterdir()), ids=lambda path: path.name)
def test_there_are_no_cyclic_dependencies(example: Path) -> None:
    graph = dependencies(read_module(example))
    given = {f"var.{name}" for name in read_module(example).variables}
    assert set().union(*graph.values()) - graph.keys() <= given, "every node of the graph was found"
    assert cycle(graph) == []


def test_the_checks_of_references_find_defects(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "main.tf").write_text(
        'variable "size" {}\nvariable "unused" { default = 1 }\n'
        'resource "aws_vpc" "one" { cidr_block = var.size }\n'
        'output "id" { value = aws_vpc.two.id }\noutput "size" { value = var.size }\n'
    )
    (tmp_path / "main.tf").write_text(
        "locals { a = module.inner.size }\n"
        'module "inner" {\n  source = "./inner"\n  length = "${local.a}-${var.none}-${module.inner.name}"\n}\n'
    )
    assert list(problems(read_module(tmp_path / "inner"))) == [
        "aws_vpc.two is not declared",
        "var.unused is not used",
    ]
    assert list(problems(read_module(tmp_path))) == [
        "module.inner.name is not declared",
        "var.none is not declared",
        "module inner: length is no variable of it",
        "module inner: size is required",
    ]
    (tmp_path / "main.tf").write_text(
        'locals { a = module.inner.size }\nmodule "inner" {\n  source = "./inner"\n  size = local.a\n}\n'
    )
    read_module.cache_clear()
    assert "local.a" in cycle(dependencies(read_module(tmp_path)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TERRAFORM_DIR)))
def test_inputs_and_outputs_are_described_and_hold_no_secret(path: Path) -> None:
    parsed = parse(path)
    for block in (*parsed.get("variable", []), *parsed.get("output", [])):
        for name, body in block.items():
            assert len(body["description"]) > 10, f"{path.name}: {name} has no description"
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


def terraform(workspace: Path, root: str, *arguments: str, stdin: str | None = None) -> str:
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
        input=stdin,
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
def test_a_machine_receives_its_files_and_its_environment(tmp_path: Path) -> None:
    template = TERRAFORM_DIR / "modules/aws/machine/cloud-config.yaml.tftpl"
    values = {
        "environment": {"PENSTOCK_AGENT_NAME": "agent-1", "PENSTOCK_AGENT_ZONE": ""},
        "files": {"/etc/penstock/endpoints.yaml": "- name: a\n"},
        "fetched_files": {"/run/penstock-identity/": "arn:identity", "/run/penstock-admin-token": "arn:admin"},
        "unit": {"name": "penstock-agent", "user": "penstock-agent", "command": "/opt/penstock/bin/penstock-agent"},
        "mount_point": "/var/lib/etcd",
    }
    expression = f'jsonencode(templatefile("{template}", {json.dumps(values)}))'
    (tmp_path / "empty").mkdir()
    rendered = json.loads(json.loads(terraform(tmp_path, "empty", "console", stdin=expression)))
    document = yaml.safe_load(rendered)
    files = {file["path"]: file for file in document["write_files"]}
    assert files["/etc/penstock/unit.env"]["content"] == "PENSTOCK_AGENT_NAME=agent-1\nPENSTOCK_AGENT_ZONE=\n"
    assert b64decode(files["/etc/penstock/endpoints.yaml"]["content"]) == b"- name: a\n"
    unit = files["/etc/systemd/system/penstock-agent.service.d/10-machine.conf"]["content"]
    assert "\nEnvironmentFile=/etc/penstock/unit.env\n" in unit
    assert "\nExecStart=\nExecStart=/opt/penstock/bin/penstock-agent\n" in unit
    script = tmp_path / "fetch"
    body = files["/usr/local/sbin/penstock-fetch-secrets"]["content"]
    for place in ("/run/", "-o penstock-agent -g penstock-agent "):
        body = body.replace(place, f"{tmp_path}/run/" if place == "/run/" else "")
    script.write_text(body)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "aws").write_text(
        '#!/bin/bash\n[ $4 = arn:admin ] && echo the-admin || printf \'{"tls.key": "key\\\\n", "ca.crt": "ca"}\\n\'\n'
    )
    (tools / "jq").write_text(JQ)
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    ran = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stderr) == (0, "")
    written = {path.name: path for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {name: path.read_text().strip() for name, path in written.items()} == {
        "penstock-admin-token": "the-admin",
        "tls.key": "key",
        "ca.crt": "ca",
    }
    assert {path.stat().st_mode & 0o777 for path in written.values()} == {0o600}


JQ = """#!/usr/bin/env python3
import json, sys
value = json.load(sys.stdin)
print("\\n".join(value) if sys.argv[2] == "keys[]" else value[sys.argv[4]])
"""
"""What the script uses of jq."""


@needs_terraform
@pytest.mark.parametrize("root", ROOTS)
def test_the_modules_are_valid_and_their_tests_pass(workspace: Path, root: str) -> None:
    terraform(workspace, root, "init", "-backend=false", "-no-color")
    terraform(workspace, root, "validate", "-no-color")
    passed = re.search(r"Success! (\d+) passed, 0 failed", terraform(workspace, root, "test", "-no-color"))
    assert passed
    assert int(passed[1]) > 0


@pytest.fixture(scope="module")
def fleet(workspace: Path) -> dict[str, Any]:
    """The outputs of the example."""
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
def test_agents_accept_their_environment(fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_control_planes_accept_their_environment(
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
def test_agents_accept_their_endpoints(fleet: dict[str, Any]) -> None:
    counts = {
        region: len(parse_endpoints(text.encode(), Path("endpoints.yaml")))
        for region, text in fleet["endpoints_files"].items()
    }
    assert counts == {"eu-de": 6, "eu-es": 7, "eu-gb": 6, "us-east": 8, "jp-tok": 4}


@needs_terraform
def test_the_policy_bundle_accepts_the_regions(fleet: dict[str, Any]) -> None:
    documents, unread = read_documents("regions.yaml", fleet["policy_regions_file"])
    catalogue, errors = build_catalogue(documents, KINDS)
    assert unread + errors == []
    assert {region.name: region.country for _, region in catalogue.of(Region)} == {
        "eu-de": "DE",
        "eu-es": "ES",
        "eu-gb": "GB",
        "us-east": "US",
        "jp-tok": "JP",
    }


@needs_terraform
def test_every_host_in_use_has_a_name(fleet: dict[str, Any]) -> None:
    named = {host for hosts in fleet["dns_names"].values() for host in hosts.values()}
    spoken_of = set(re.findall(r"[a-z0-9.-]+\.penstock\.example\.internal", json.dumps(fleet)))
    assert spoken_of == named


@needs_terraform
def test_prometheus_accepts_the_scrape_configuration(fleet: dict[str, Any], tmp_path: Path) -> None:
    promtool = shutil.which(os.environ.get("PROMTOOL", "promtool"))
    if promtool is None:
        pytest.skip("no promtool on PATH or in PROMTOOL")
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump({"scrape_configs": fleet["prometheus_scrape_configs"]}))
    # The certificates in its configuration are on the machine of Prometheus.
    ran = subprocess.run(
        [promtool, "check", "config", "--syntax-only", str(path)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr

"""The configuration files of both daemons: the committed examples, and what `--check-config` finds."""

# A row of a table is one line.
# ruff: noqa: E501

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from adapters import release as installed
from adapters.configuration.config_check import can_write_in, version_line
from adapters.configuration.settings_loader import load_with_origins
from control_plane.cli.main import app as penstock
from control_plane.settings import ControlPlaneSettings
from regional_agent.cli import app as agent
from regional_agent.config.settings import AgentSettings
from tests.support.identities import CONTROL_PLANE, agent_id, control_plane_id, write_identity
from tests.support.paths import ROOT

NOBODY = 65534
EXAMPLES = ROOT / "deploy" / "config"


def uncommented(path: Path, model: type[BaseModel]) -> str:
    """The example with every setting that is commented out."""
    return re.sub(rf"^# (?=({'|'.join(model.model_fields)}): )", "", path.read_text(), flags=re.MULTILINE)


def test_the_examples_are_valid_and_complete(tmp_path: Path) -> None:
    folder = {"X_POLICY_DIR": str(tmp_path)}
    load_with_origins(ControlPlaneSettings, "X_", config=EXAMPLES / "control-plane.yaml", environment=folder)
    load_with_origins(AgentSettings, "X_", config=EXAMPLES / "agent.yaml", environment={})
    (tmp_path / "all.yaml").write_text(uncommented(EXAMPLES / "agent.yaml", AgentSettings))
    load_with_origins(AgentSettings, "X_", config=tmp_path / "all.yaml", environment={})
    for name, model in (("control-plane", ControlPlaneSettings), ("agent", AgentSettings)):
        assert set(yaml.safe_load(uncommented(EXAMPLES / f"{name}.yaml", model))) == set(model.model_fields)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that both daemons need, and configuration files that refer to the directory."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    write_identity(tmp_path / "agent", agent_id("eu", "agent-1"))
    write_identity(tmp_path / "cp", control_plane_id())
    (tmp_path / "token").write_text("0" * 32)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "endpoints.yaml").write_text("[]")
    (tmp_path / "policy").mkdir()
    bundle = ROOT / "policies" / "examples" / "smallest" / "bundle.yaml"
    (tmp_path / "policy" / "bundle.yaml").write_text(bundle.read_text())
    (tmp_path / "agent.yaml").write_text(
        "region: eu\nname: agent-1\ntraffic_listen: 127.0.0.1:0\npeer_listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\n"
        "etcd_endpoints: [127.0.0.1:1]\nendpoints_file: endpoints.yaml\nidentity_dir: agent\nstate_dir: a/b/state\n"
    )
    (tmp_path / "cp.yaml").write_text(
        f"name: {CONTROL_PLANE}\nlisten: 127.0.0.1:0\netcd_endpoints: 127.0.0.1:1\npolicy_dir: policy\n"
        "identity_dir: cp\nadmin_token_file: token\n"
    )
    return tmp_path


def check_agent(*options: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(agent, ["--config", "agent.yaml", "--check-config", *options])
    return result.exit_code, result.stderr.splitlines()


def check_control_plane() -> tuple[int, list[str]]:
    result = CliRunner().invoke(penstock, ["serve", "--config", "cp.yaml", "--check-config"])
    return result.exit_code, result.stderr.splitlines()


def test_an_agents_configuration_is_checked_without_a_connection(here: Path) -> None:
    assert check_agent() == (0, ["the configuration is valid"])
    assert not (here / "a").exists()
    (here / "endpoints.yaml").write_text("- name: gpu-1\n")
    (here / "other").write_text("not a certificate")
    (here / "empty").touch(mode=0o600)
    with (here / "agent.yaml").open("a") as file:
        file.write(
            "etcd_ca_file: other\nredis_url: redis://127.0.0.1:1\nredis_password_file: empty\nregistration_token_file: none\n"
        )
        file.write("access_log_file: token/access.log\n")
    (here / "agent" / "region.key").write_text("short")
    (here / "agent" / "region.key").chmod(0o600)
    code, lines = check_agent()
    assert code == 2
    starts = [
        "other: no PEM certificates of authorities",
        "endpoints.yaml:1: url: missing; add it",
        "endpoints.yaml:1: models: missing; add it",
        "endpoints.yaml:1: slots: missing; add it",
        "agent/region.key: not 1 to 3 lines of 64 hexadecimal",
        "empty: the file of the password for Redis is empty",
        "none: cannot read the registration token",
        "token: cannot be written; name a file in another",
    ]
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts


@contextmanager
def without_privileges() -> Iterator[None]:
    """Drop the privileges of root, for which every directory is accessible."""
    real, effective, saved = os.getresuid()
    if effective == 0:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(real, effective, saved)


def test_a_directory_below_an_inaccessible_one_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "locked" / "state").mkdir(parents=True)
    (tmp_path / "locked").chmod(0)
    with without_privileges():
        assert not can_write_in(tmp_path / "locked" / "state")
    (tmp_path / "locked").chmod(0o700)
    assert can_write_in(tmp_path / "locked" / "state")


def test_a_control_planes_configuration_is_checked_without_a_connection(here: Path) -> None:
    assert check_control_plane() == (0, ["the configuration is valid"])
    (here / "policy" / "more.yaml").write_text("apiVersion: penstock/v1\nkind: Regoin\n")
    write_identity(here / "cp", control_plane_id("another"))
    (here / "token").chmod(0o644)
    code, lines = check_control_plane()
    assert code == 2
    starts = [
        "penstock serve: cp/tls.crt: identifies spiffe://test/control-plane/another, but this process is",
        "penstock serve: token: the admin token is accessible to every user",
        "penstock serve: policy/more.yaml:2: kind: is not a kind of policy document; did you mean Region?",
    ]
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts


REDIS = "redis_url: redis://127.0.0.1:1\n"

FILES_OF_AGENTS = [
    ("agent/tls.key", ""),
    ("agent/tls.crt", ""),
    ("agent/ca.crt", ""),
    ("agent/revoked", ""),
    ("agent/region.key", REDIS),
    ("endpoints.yaml", ""),
    ("x", f"{REDIS}region_key_file: x\n"),
    ("x", f"{REDIS}redis_password_file: x\n"),
    ("x", f"{REDIS}redis_ca_file: x\n"),
    ("x", f"{REDIS}redis_certificate_file: x\nredis_key_file: agent/tls.key\n"),
    ("x", f"{REDIS}redis_certificate_file: agent/tls.crt\nredis_key_file: x\n"),
    ("x", "etcd_ca_file: x\n"),
    ("x", "etcd_ca_file: agent/ca.crt\netcd_certificate_file: x\netcd_key_file: agent/tls.key\n"),
    ("x", "etcd_ca_file: agent/ca.crt\netcd_certificate_file: agent/tls.crt\netcd_key_file: x\n"),
    ("x", "admin_api_keys_file: x\n"),
    ("x", "admin_certificate_file: x\nadmin_key_file: agent/tls.key\n"),
    ("x", "admin_certificate_file: agent/tls.crt\nadmin_key_file: x\n"),
    ("x", "traffic_certificate_file: x\ntraffic_key_file: agent/tls.key\n"),
    ("x", "traffic_certificate_file: agent/tls.crt\ntraffic_key_file: x\n"),
    ("x", "traffic_certificate_file: agent/tls.crt\ntraffic_key_file: agent/tls.key\ntraffic_client_ca_file: x\n"),
    ("x", "upstream_ca_file: x\n"),
    ("x", "registration_token_file: x\n"),
    ("x", "webhook_key_file: x\n"),
    ("x", "wake_token_file: x\n"),
    ("x", "quality_token_file: x\n"),
    ("x", "geoip_file: x\n"),
]

OIDC = "oidc_issuer: https://a.test\noidc_audience: a\noidc_roles: {a: operator}\noidc_jwks_url: https://a.test/k\noidc_client_id: a\n"

FILES_OF_CONTROL_PLANES = [
    ("cp/tls.key", ""),
    ("cp/tls.crt", ""),
    ("cp/ca.crt", ""),
    ("cp/revoked", ""),
    ("token", ""),
    ("policy/bundle.yaml", ""),
    ("x", "api_keys_file: x\n"),
    ("x", "tls_certificate_file: x\ntls_key_file: cp/tls.key\n"),
    ("x", "tls_certificate_file: cp/tls.crt\ntls_key_file: x\n"),
    ("x", "control_plane_ca_file: x\n"),
    ("x", "etcd_ca_file: x\n"),
    ("x", "etcd_ca_file: cp/ca.crt\netcd_certificate_file: x\netcd_key_file: cp/tls.key\n"),
    ("x", "etcd_ca_file: cp/ca.crt\netcd_certificate_file: cp/tls.crt\netcd_key_file: x\n"),
    ("x", f"{OIDC}oidc_client_secret_file: x\n"),
    ("x", "geoip_file: x\n"),
]


def put_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize(("file", "settings"), FILES_OF_AGENTS)
def test_a_fifo_in_place_of_a_file_of_an_agent_is_named(here: Path, file: str, settings: str) -> None:
    with (here / "agent.yaml").open("a") as config:
        config.write(settings)
    put_fifo(here / file)
    code, lines = check_agent()
    assert code == 2
    assert any(re.match(rf"{file}: .*a FIFO, not a regular file", line) for line in lines), lines


@pytest.mark.parametrize(("file", "settings"), FILES_OF_CONTROL_PLANES)
def test_a_fifo_in_place_of_a_file_of_a_control_plane_is_named(here: Path, file: str, settings: str) -> None:
    with (here / "cp.yaml").open("a") as config:
        config.write(settings)
    put_fifo(here / file)
    code, lines = check_control_plane()
    assert code == 2
    reason = "is not a regular file" if file.startswith("policy") else "a FIFO, not a regular file"
    assert any(re.match(rf"penstock serve: {file}: .*{reason}", line) for line in lines), lines


def test_every_setting_that_names_a_file_is_tried_with_a_fifo() -> None:
    for model, tried in ((AgentSettings, FILES_OF_AGENTS), (ControlPlaneSettings, FILES_OF_CONTROL_PLANES)):
        names = {name for name in model.model_fields if name.endswith("_file")}
        # Written and not read; not checked, since a webhook needs a repository; named in the configuration above.
        names -= {"access_log_file", "policy_webhook_secret_file", "endpoints_file", "admin_token_file"}
        assert {name for name in names if not any(f"{name}: x" in settings for _, settings in tried)} == set()


def test_a_configuration_file_that_is_a_fifo_is_refused(here: Path) -> None:
    for file, check in (("agent.yaml", check_agent), ("cp.yaml", check_control_plane)):
        put_fifo(here / file)
        code, lines = check()
        assert code == 2
        assert "a FIFO, not a regular file; name a readable file" in lines[0]


def test_the_secret_of_the_page_is_checked(here: Path) -> None:
    with (here / "cp.yaml").open("a") as file:
        file.write("oidc_issuer: https://login.example.com\noidc_audience: penstock\noidc_roles: {sre: operator}\n")
        file.write("oidc_jwks_url: https://login.example.com/keys\noidc_client_id: page\n")
        file.write("oidc_client_secret_file: oidc.secret\n")
    start = "penstock serve: oidc.secret: "
    assert check_control_plane()[1][0].startswith(f"{start}cannot read the OIDC client secret: No such file")
    (here / "oidc.secret").touch(mode=0o600)
    (here / "oidc.secret").write_bytes(b"\xff" * 32)
    assert check_control_plane() == (
        2,
        [f"{start}the OIDC client secret is not UTF-8; copy it from the provider again"],
    )
    (here / "oidc.secret").write_text("0" * 32)
    assert check_control_plane()[0] == 0


def test_the_settings_in_effect_are_printed_with_their_source(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_AGENT_REDIS_URL", "redis://:hush@127.0.0.1:1")
    result = CliRunner().invoke(agent, ["--config", "agent.yaml", "--print-config"])
    assert result.exit_code == 0
    assert 'region: "eu"  # file agent.yaml:1\n' in result.stdout
    assert 'redis_url: "**********"  # environment PENSTOCK_AGENT_REDIS_URL\n' in result.stdout
    assert "limits: {}  # default\n" in result.stdout
    assert "hush" not in result.output


@pytest.mark.parametrize(
    ("app", "arguments", "begin"),
    [(agent, ["--version"], "penstock-agent 0."), (penstock, ["--version"], "penstock 0."), (penstock, ["serve", "--version"], "penstock 0.")],
)  # fmt: skip
def test_the_version_is_printed(app: Any, arguments: list[str], begin: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout[: len(begin)]) == (0, begin)


def test_a_source_tree_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(installed, "version", version)
    installed.release.cache_clear()
    assert version_line("penstock").startswith("penstock (not installed) (Python 3.")
    installed.release.cache_clear()

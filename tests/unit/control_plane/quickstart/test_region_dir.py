"""The directory of a quickstart: files that the daemons accept, and later runs that keep edits."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import yaml

from adapters.configuration.settings_loader import load_with_origins
from control_plane.config_check import config_problems
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.quickstart import region_dir as region_dir_module
from control_plane.quickstart.places import Place
from control_plane.quickstart.region_dir import (
    Engine,
    RegionDir,
    UnusableDirectory,
    add_engines,
    engine_urls,
    models_served,
    open_region_dir,
    require_same,
    write_region_dir,
)
from control_plane.settings import PREFIX, ControlPlaneSettings, load_settings
from penstock.routes.route_table import RouteMatch
from regional_agent.config.config_check import config_problems as agent_config_problems
from regional_agent.config.settings import load_settings as load_agent_settings
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_file import parse_endpoints

HERE = Place("DE", 52.5, 13.37)
VLLM = Engine("http://127.0.0.1:8000", ("m",))


@pytest.fixture
def region_dir(tmp_path: Path) -> RegionDir:
    return write_region_dir(tmp_path / "new", "local", HERE, [VLLM])


def test_the_control_plane_accepts_its_settings(region_dir: RegionDir) -> None:
    loaded = load_with_origins(
        ControlPlaneSettings, PREFIX, config=region_dir.control_plane_settings, environment={}
    ).settings
    assert config_problems(loaded) == []


def test_a_second_change_of_its_policy_waits_for_seconds(region_dir: RegionDir) -> None:
    rollout = compile_bundle(read_folder(region_dir.policy)).rollout
    assert rollout.shadow_s + rollout.watch_s <= 10.0


def test_the_directory_may_be_moved(region_dir: RegionDir, tmp_path: Path) -> None:
    moved = region_dir._replace(path=tmp_path / "moved")
    region_dir.path.rename(moved.path)
    assert open_region_dir(moved.path) == moved
    assert config_problems(load_settings(config=moved.control_plane_settings)) == []
    agent = load_agent_settings(config=moved.agent_settings)
    assert agent_config_problems(agent) == []
    assert agent.state_dir == moved.path / "state"


def test_secrets_are_readable_by_the_owner_only(region_dir: RegionDir) -> None:
    for secret in (
        region_dir.api_key,
        region_dir.admin_token,
        region_dir.agents_key,
        region_dir.path / "authority" / "ca.key",
    ):
        assert secret.stat().st_mode & 0o077 == 0


def test_a_later_run_finds_the_directory_and_keeps_edits(region_dir: RegionDir) -> None:
    assert open_region_dir(region_dir.path) == region_dir
    edited = region_dir.endpoints.read_text().replace("slots: 32", "slots: 8")
    region_dir.endpoints.write_text(edited)
    add_engines(region_dir, [VLLM, Engine("http://127.0.0.1:8001", ("m", "other"))])
    entries = yaml.safe_load(region_dir.endpoints.read_text())
    assert [(entry["name"], entry["url"], entry["slots"]) for entry in entries] == [
        ("engine-1", "http://127.0.0.1:8000", 8),
        ("engine-2", "http://127.0.0.1:8001", 32),
    ]
    assert set(compile_bundle(read_folder(region_dir.policy)).models) == {"m", "other"}
    assert models_served(region_dir) == ["m", "other"]


def test_a_known_engine_gets_its_further_models_while_the_file_has_no_comments(region_dir: RegionDir) -> None:
    add_engines(region_dir, [Engine(VLLM.url, ("m", "new"))])
    assert [entry["models"] for entry in yaml.safe_load(region_dir.endpoints.read_text())] == [["m", "new"]]
    commented = region_dir.endpoints.read_text() + "# ours\n"
    region_dir.endpoints.write_text(commented)
    add_engines(region_dir, [Engine(VLLM.url, ("newest",))])
    assert region_dir.endpoints.read_text() == commented
    assert set(compile_bundle(read_folder(region_dir.policy)).models) == {"m", "new"}


def test_an_engine_may_have_a_path_and_require_a_key(region_dir: RegionDir, tmp_path: Path) -> None:
    key = tmp_path / "engine.key"
    engines = [Engine("https://[::1]:443/serve/a", ("m",), str(key)), Engine("http://gpu:80/serve/b", ("m",))]
    add_engines(region_dir, engines)
    add_engines(region_dir, [Engine(engines[0].url, ("new",))])
    assert [engine.url for engine in engines] == engine_urls(region_dir)[1:]
    _, first, second = parse_endpoints(region_dir.endpoints.read_bytes(), region_dir.endpoints)
    assert isinstance(first, EndpointSpec)
    assert isinstance(second, EndpointSpec)
    assert (str(first.address), first.base_path, first.credential_file) == ("[::1]:443", "/serve/a", str(key))
    assert (second.base_path, second.credential_file, first.models) == ("/serve/b", "", ("m", "new"))


def test_the_policy_has_the_apis_that_an_engine_serves(region_dir: RegionDir, tmp_path: Path) -> None:
    engines = [VLLM._replace(presets=("anthropic", "vllm")), Engine("http://127.0.0.1:1", ("n",), "", ("ollama",))]
    written = write_region_dir(tmp_path / "other", "local", HERE, engines)
    served, plain = (compile_bundle(read_folder(found.policy)).route_table for found in (written, region_dir))
    for path in (b"/v1/chat/completions", b"/v1/messages", b"/api/chat", b"/tokenize"):
        assert isinstance(served.find(b"POST", path), RouteMatch)
        assert isinstance(plain.find(b"POST", path), RouteMatch) is (path == b"/v1/chat/completions")


def test_a_later_run_does_not_take_the_name_or_address_of_another_region(region_dir: RegionDir) -> None:
    require_same(region_dir, None)
    require_same(region_dir, "local", "127.0.0.1")
    with pytest.raises(UnusableDirectory, match="region local, not eu-de"):
        require_same(region_dir, "eu-de")
    with pytest.raises(UnusableDirectory, match=r"host 127\.0\.0\.1, not 10\.0\.0\.5"):
        require_same(region_dir, "local", "10.0.0.5")


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(UnusableDirectory, match="Not a directory; name a directory with --dir"):
        open_region_dir(tmp_path / "thesis.txt")
    with pytest.raises(UnusableDirectory, match="is not empty"):
        open_region_dir(tmp_path)
    assert open_region_dir(tmp_path / "new") is None


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_directory_that_could_not_be_completed_is_written_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(region_dir_module, "write_ports", fails)
        with pytest.raises((UnusableDirectory, KeyboardInterrupt)) as caught:
            write_region_dir(tmp_path / "new", "local", HERE, [VLLM])
    assert not isinstance(caught.value, UnusableDirectory) or "No space left on device" in str(caught.value)
    assert open_region_dir(tmp_path / "new") is None
    write_region_dir(tmp_path / "new", "local", HERE, [VLLM])
    assert open_region_dir(tmp_path / "new") is not None


def test_an_address_of_another_machine_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnusableDirectory, match=r"198\.51\.100\.77 is no address of this machine"):
        write_region_dir(tmp_path / "new", "local", HERE, [VLLM], "198.51.100.77")
    assert not (tmp_path / "new").exists()


def test_a_name_that_no_policy_may_have_is_refused_before_anything_is_written(
    tmp_path: Path, region_dir: RegionDir
) -> None:
    with pytest.raises(PolicyRefused, match=r"models\.yaml"):
        write_region_dir(tmp_path / "other", "local", HERE, [Engine("http://127.0.0.1:1", ("/models/m.gguf",))])
    assert not (tmp_path / "other").exists()
    before = region_dir.endpoints.read_text()
    with pytest.raises(PolicyRefused, match=r"models-2\.yaml"):
        add_engines(region_dir, [Engine("http://127.0.0.1:1", ("/models/m.gguf",))])
    assert region_dir.endpoints.read_text() == before

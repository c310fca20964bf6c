"""A model that cannot be served does not keep an engine's other models from being served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from control_plane.cli.commands.quickstart_command import _engines
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.quickstart import engine_models
from control_plane.quickstart.engine_models import UnusableEngine
from control_plane.quickstart.places import Place
from control_plane.quickstart.region_dir import Engine, RegionDir, add_engines, write_region_dir
from control_plane.quickstart.servable_models import left_out
from penstock.fleet.endpoint_report import MAX_MODELS
from regional_agent.endpoints.endpoint_fields import MAX_MODELS as MAX_MODELS_OF_AN_ENTRY

URL = "http://127.0.0.1:8000"
NAMES = ["/models/m.gguf", "a b", "x" * 129, "", ":latest"]
"""Names that no policy has."""


def listing(monkeypatch: pytest.MonkeyPatch, *models: str) -> None:
    monkeypatch.setattr(engine_models, "models_of", lambda *_: list(models))
    monkeypatch.setattr(engine_models, "presets_of", lambda *_: [])


def engines(region_dir: RegionDir | None = None, **more: Any) -> list[Engine]:
    return _engines([URL], None, None, region_dir, **more)


@pytest.fixture
def region_dir(tmp_path: Path) -> RegionDir:
    return write_region_dir(tmp_path / "new", "local", Place("DE", 52.5, 13.37), [Engine(URL, ("m", "chat:latest"))])


def test_the_other_models_are_served_and_each_left_out_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listing(monkeypatch, *NAMES, "org/m:8b")
    assert [engine.models for engine in engines()] == [("org/m:8b",)]
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == len(NAMES)
    for name, line in zip(NAMES, shown, strict=True):
        assert line.startswith(f"{URL}: {name!r} is not served: its name is not well-formed; use 1 to 128 letters")
        assert line.endswith("; an engine's --served-model-name or --alias gives a model another name")


def test_an_engine_without_any_model_that_can_be_served_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch, "\x1b[2J", *NAMES)
    with pytest.raises(UnusableEngine, match=r"'/models/m\.gguf' is not served: .*; use 1 to 128 letters"):
        engines()


def test_a_long_list_is_cut_at_what_an_endpoint_may_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAX_MODELS == MAX_MODELS_OF_AN_ENTRY
    listing(monkeypatch, "a b", *(f"m{number}" for number in range(100)))
    assert engines()[0].models == tuple(f"m{number}" for number in range(MAX_MODELS))
    shown = capsys.readouterr().err.splitlines()
    assert shown[1] == f"{URL}: 'm64' is not served: an endpoint has at most 64 models; choose them with --model"
    assert shown[-1] == f"{URL}: and 17 further models are not served"


def test_a_name_that_already_means_another_model_of_the_policy_is_left_out(
    monkeypatch: pytest.MonkeyPatch, region_dir: RegionDir, capsys: pytest.CaptureFixture[str]
) -> None:
    listing(monkeypatch, "chat", "m", "new")
    assert engines(region_dir)[0].models == ("m", "new")
    assert "'chat' is not served: models.yaml:" in capsys.readouterr().err
    before = compile_bundle(read_folder(region_dir.policy))
    add_engines(region_dir, [Engine("http://127.0.0.1:1", ("new:latest", "new", "m:latest", "other:latest"))])
    policy = compile_bundle(read_folder(region_dir.policy))
    assert policy.models.keys() - before.models == {"new:latest", "new", "m:latest", "other:latest"}
    assert {name: named.versions[0].model for name, named in policy.versions.items()} == {
        "chat": "chat:latest",
        "other": "other:latest",
    }


def test_a_region_joins_with_the_models_that_the_fleet_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listing(monkeypatch, "other", "m")
    assert engines(fleet=("m",))[0].models == ("m",)
    assert "'other' is not served: the fleet's policy does not have it; add it at the" in capsys.readouterr().err
    assert left_out(["m"], None) == {}

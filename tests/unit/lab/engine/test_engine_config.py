"""The engines file: defaults that follow from the hardware, and a one-line error for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.engine.engine_config import ConfigError, EnginesConfig, load_engines_config
from lab.engine.models import MODELS
from tests.support.paths import ROOT

ENGINE = {"name": "a", "model": "llama-3.1-8b", "accelerator": "h100"}


def load(tmp_path: Path, *engines: dict[str, Any], **fields: Any) -> EnginesConfig:
    path = tmp_path / "engines.json"
    path.write_text(json.dumps({"region": "eu-de", "witness_dir": "w", "endpoints": engines, **fields}))
    return load_engines_config(path)


def test_yaml_with_defaults_from_the_hardware(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(
        "region: eu-de\nwitness_dir: out/witness\nendpoints:\n"
        "- {name: a, model: llama-3.1-8b, accelerator: h100}\n"
        "- {name: b, model: llama-3.1-70b, accelerator: h100, max_num_seqs: 32, cold_start_s: 2, time_scale: 4}\n"
    )
    config = load_engines_config(path)
    small, large = config.endpoints
    assert (config.region, config.host, config.witness_dir) == ("eu-de", "127.0.0.1", Path("out/witness"))
    assert (small.max_model_len, small.max_num_seqs, small.time_scale, small.port) == (131_072, 256, 1.0, 0)
    assert small.cold_start_s == small.deployment.load_s
    assert large.deployment.tensor_parallel == 4
    assert (large.max_num_seqs, large.cold_start_s, large.time_scale) == (32, 2.0, 4.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accelerator": "h99"}, "endpoints[0].accelerator: 'h99' is not known; choose one of h100, a100"),
        ({"model": "gpt-4"}, "endpoints[0].model: 'gpt-4' is not known; choose one of llama-3.1-8b"),
        (
            {"model": "llama-3.1-70b", "tensor_parallel": 1},
            "endpoints[0].tensor_parallel: llama-3.1-70b does not fit",
        ),
        (
            {"accelerator": "l4", "max_model_len": 131_072},
            "endpoints[0].max_model_len: 131072 tokens do not fit",
        ),
        ({"name": "No Name"}, "$.endpoints[0].name"),
        ({"port": 70_000}, "$.endpoints[0].port"),
        ({"time_scale": 0}, "$.endpoints[0].time_scale"),
        ({"max_num_seqs": 0}, "$.endpoints[0].max_num_seqs"),
        ({"max_seqs": 1}, "unknown field `max_seqs`"),
    ],
)
def test_an_invalid_engine_is_named_with_its_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {**ENGINE, **change})
    assert str(tmp_path / "engines.json") in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_are_unique(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"endpoints\[1\].name: 'a' is taken"):
        load(tmp_path, ENGINE, ENGINE)


def test_an_engine_and_a_region_are_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\$.endpoints"):
        load(tmp_path)
    with pytest.raises(ConfigError, match=r"\$.region"):
        load(tmp_path, ENGINE, region=None)


@pytest.mark.parametrize("content", [b"", b"[", b"a: [\n b: {", b"\xff\xfe\x00", b"- 1", b"!!python/object:os.x {}"])
def test_other_files_are_a_one_line_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "engines.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_engines_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_engines_config(tmp_path / "none.yaml")
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * 1_000_001)
    with pytest.raises(ConfigError, match="larger than"):
        load_engines_config(huge)


def test_all_models_are_documented() -> None:
    reported = (ROOT / "docs" / "lab-engine.md").read_text()
    assert [name for name in MODELS if f"`{name}`" not in reported] == []

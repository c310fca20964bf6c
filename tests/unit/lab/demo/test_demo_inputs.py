"""The inputs of the demo, with and without files: the same scenario, in regions near the clients."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from lab.demo.demo_workload import near_share
from lab.demo.inputs import SURGE_REGION_SHARE, gather
from lab.geoip import SITES, write_geoip
from lab.planet.topology import IMAGE_MODEL
from lab.traces.trace import TraceError
from lab.wan.matrix import MatrixError
from penstock.policy.kinds.models import CostUnit
from tests.support.paths import SHARED_DATA

DATA = SHARED_DATA


def test_without_inputs_the_scenario_is_in_frankfurt() -> None:
    inputs = gather(None, None, None, 1.0, Random(1))
    assert inputs.scenario.lost_region == inputs.scenario.surge_region == "eu-de"
    assert near_share(inputs.topology, "eu-de") == pytest.approx(SURGE_REGION_SHARE)
    assert "generated" in inputs.workload
    assert "No trace says where its clients were" in inputs.geography
    assert any(ask.planned.id.startswith("pulse") for ask in inputs.asks)
    assert inputs.policy.models[IMAGE_MODEL].cost.unit is CostUnit.MEGAPIXEL_STEP
    assert len({ask.planned.id for ask in inputs.asks}) == len(inputs.asks)


def test_with_a_database_the_scenario_is_near_its_clients(tmp_path: Path) -> None:
    iberia_and_japan = [site for site in SITES if site.country in ("ES", "PT", "JP", "US")]
    write_geoip(tmp_path / "some.mmdb", iberia_and_japan)
    inputs = gather(None, tmp_path / "some.mmdb", None, 1.0, Random(1))
    assert inputs.scenario.lost_region == "eu-es"
    assert near_share(inputs.topology, "eu-es") == pytest.approx(SURGE_REGION_SHARE)
    assert "some.mmdb" in inputs.geography


def test_without_clients_near_the_eu_another_region_is_the_main_one(tmp_path: Path) -> None:
    write_geoip(tmp_path / "japan.mmdb", [site for site in SITES if site.country == "JP"])
    inputs = gather(None, tmp_path / "japan.mmdb", None, 1.0, Random(1))
    assert inputs.scenario.lost_region == "jp-tok"


def test_measured_round_trips_replace_those_of_the_bundle(tmp_path: Path) -> None:
    regions = ("eu-de", "eu-es", "eu-gb", "us-east", "jp-tok")
    lines = [f"{a},{b},{1 if a == b else 77}" for a in regions for b in regions]
    (tmp_path / "rtt.csv").write_text("\n".join(["from,to,rtt_ms", *lines]))
    inputs = gather(None, None, tmp_path / "rtt.csv", 1.0, Random(1))
    assert inputs.matrix.between("eu-de", "jp-tok") == 77
    assert "rtt.csv" in inputs.network
    (tmp_path / "rtt.csv").write_text("from,to,rtt_ms\neu-de,eu-de,1\n")
    with pytest.raises(MatrixError):
        gather(None, None, tmp_path / "rtt.csv", 1.0, Random(1))


def test_a_short_trace_is_named_in_the_error(tmp_path: Path) -> None:
    trace = tmp_path / "short.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    with pytest.raises(TraceError, match=r"short\.csv: has 1 requests"):
        gather(trace, None, None, 1.0, Random(1))


@pytest.mark.skipif(not DATA.exists(), reason="the public traces are not at hand")
@pytest.mark.parametrize("name", ["azure-llm-2023-conv.csv", "azure-llm-2023-code.csv", "mooncake-conversation.jsonl"])
def test_real_traces_suffice_for_the_scenario(name: str) -> None:
    inputs = gather(DATA / "traces" / name, None, None, 1.0, Random(1))
    assert f"successive real requests of {name}" in inputs.workload
    generated = gather(None, None, None, 1.0, Random(1))
    assert len(inputs.asks) == len(generated.asks)
    for phase in inputs.scenario.phases:
        assert sum(phase.covers(ask.planned.at_s) for ask in inputs.asks) > 20


def test_the_same_seed_gives_the_same_inputs() -> None:
    first, again = (gather(None, None, None, 1.0, Random(5)) for _ in range(2))
    assert msgspec.json.encode(first.asks) == msgspec.json.encode(again.asks)

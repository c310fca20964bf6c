"""The description of the demo fleet: every listener has its own port, and every process gets the same addresses."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from random import Random

import pytest

from adapters.servers.errors import PortTaken
from lab.engine.engine_config import load_engines_config
from lab.planet.bundle import load_bundle, matrix_of
from lab.planet.configs import FleetFiles, agent_environment, endpoints_file, engines_file, wan_file, write_json
from lab.planet.planet_ports import assign_ports
from lab.planet.topology import agent_port, demo_planet, entry_link, peer_link
from lab.wan.wan_config import plan_links, read_config
from regional_agent.config.settings import load_settings
from regional_agent.endpoints.endpoint_file import parse_endpoints

PLANET = demo_planet()
PORTS = {name: 10_000 + index for index, name in enumerate(PLANET.port_names())}
MATRIX = matrix_of(load_bundle())


def test_every_listener_has_a_distinct_name() -> None:
    names = PLANET.port_names()
    assert len(set(names)) == len(names)


def test_the_planet_has_two_regions_in_the_eu_and_one_with_two_agents() -> None:
    assert {"eu-de", "eu-es"} < set(PLANET.region_names)
    assert len(PLANET.region("us-east").agents) == 2
    assert set(PLANET.serving("llama-3.1-8b")) == set(PLANET.region_names)
    assert {"eu-de", "eu-es"} < set(PLANET.serving("llama-3.1-70b")) < set(PLANET.region_names)
    assert {"eu-de", "eu-es"} < set(PLANET.serving("sdxl")) < set(PLANET.region_names)


def test_engines_and_agents_get_the_same_engines(tmp_path: Path) -> None:
    for region in PLANET.regions:
        path = write_json(tmp_path / "engines.yaml", engines_file(PLANET, region, PORTS, tmp_path / "witness"))
        engines = load_engines_config(path).endpoints
        path = write_json(tmp_path / "endpoints.yaml", endpoints_file(region, PORTS))
        endpoints = parse_endpoints(path.read_bytes(), path)
        assert [(e.name, (e.served_model_name,), e.port, e.max_num_seqs) for e in engines] == [
            (e.name, e.models, e.address.port, e.slots) for e in endpoints
        ]


def test_the_wan_joins_every_site_and_region_to_every_agent(tmp_path: Path) -> None:
    path = write_json(tmp_path / "wan.json", wan_file(PLANET, PORTS, MATRIX))
    links = {link.name: link for link in plan_links(read_config(path), MATRIX)}
    hamburg = links[entry_link("Hamburg", "eu-de", "a")]
    assert hamburg.target_port == PORTS[agent_port("eu-de", "a", "traffic")]
    assert 0 < hamburg.rtt_ms < 10
    peer = links[peer_link("eu-de", "us-east", "b")]
    assert peer.target_port == PORTS[agent_port("us-east", "b", "peer")]
    assert peer.rtt_ms == pytest.approx(MATRIX.between("eu-de", "us-east"), abs=0.1)
    assert len(links) == 6 * len(PLANET.sites) + 5 * 4 + 4 + 5


def test_agents_accept_their_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region = PLANET.region("us-east")
    environment = agent_environment(
        PLANET, region, "b", PORTS, FleetFiles(tmp_path, tmp_path, tmp_path, tmp_path / "geo.mmdb")
    )
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.traffic_listen.port == PORTS[agent_port("us-east", "b", "traffic")]
    assert set(settings.peer_urls) == set(PLANET.region_names) - {"us-east"}
    assert len(settings.control_plane_urls) == 2
    assert json.loads(environment["PENSTOCK_AGENT_PEER_URLS"])["eu-de"] == [
        f"https://127.0.0.1:{PORTS[peer_link('us-east', 'eu-de', 'a')]}"
    ]


def test_ports_are_a_free_block_below_those_of_outgoing_connections() -> None:
    ports = assign_ports(["a", "b", "c"], None, Random(1))
    first = ports["a"]
    assert ports == {"a": first, "b": first + 1, "c": first + 2}
    assert 10_000 <= first < 32_000


def test_a_used_port_is_named_with_its_process() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port} \(for b\).*--port-base"):
            assign_ports(["b"], port, Random(1))


def test_a_block_past_the_last_port_is_refused() -> None:
    with pytest.raises(PortTaken, match="give a lower --port-base"):
        assign_ports(["a", "b"], 65_535, Random(1))

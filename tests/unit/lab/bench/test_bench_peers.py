"""The settings of peers: every endpoint, no limits; a peer that is not installed is reported."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from adapters.servers.errors import MissingBinary
from lab.bench.peers import envoy, haproxy, inference_routers, nginx
from lab.bench.peers.envoy import Envoy
from lab.bench.peers.haproxy import Haproxy
from lab.bench.peers.inference_routers import AT_THEIR_BEST, SGLANG_ROUTER, VLLM_ROUTER
from lab.bench.peers.nginx import Nginx
from lab.bench.peers.peer import READY_PATH, ROOM_FOR_STREAMS, Launch, Peer
from lab.bench.router.contestant import start_peers

BACKENDS = [11001, 11002]


def test_nginx_balances_by_connections_over_every_backend() -> None:
    reported = nginx.configuration(9000, BACKENDS, as_root=False)
    assert "listen 127.0.0.1:9000" in reported
    assert "least_conn;" in reported
    assert [f"server 127.0.0.1:{port};" in reported for port in BACKENDS] == [True, True]
    assert f"location = {READY_PATH}" in reported
    assert reported.count("{") == reported.count("}")
    assert "user root" not in reported


def test_nginx_started_by_root_keeps_its_worker_root() -> None:
    assert "user root;" in nginx.configuration(9000, BACKENDS, as_root=True)


def test_haproxy_balances_by_connections_over_every_backend() -> None:
    reported = haproxy.configuration(9000, BACKENDS)
    assert "bind 127.0.0.1:9000" in reported
    assert "balance leastconn" in reported
    assert [line.split()[2] for line in reported.splitlines() if line.strip().startswith("server ")] == [
        f"127.0.0.1:{port}" for port in BACKENDS
    ]


def test_envoy_balances_by_requests_over_every_backend_and_limits_nothing() -> None:
    reported = envoy.configuration(9000, BACKENDS)["static_resources"]
    assert reported["listeners"][0]["address"]["socket_address"]["port_value"] == 9000
    cluster = reported["clusters"][0]
    assert cluster["lb_policy"] == "LEAST_REQUEST"
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert [endpoint["endpoint"]["address"]["socket_address"]["port_value"] for endpoint in endpoints] == BACKENDS
    assert set(cluster["circuit_breakers"]["thresholds"][0].values()) == {ROOM_FOR_STREAMS}


def test_envoy_at_its_best_compares_all_endpoints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Envoy, "program", lambda self: tmp_path / "envoy")
    (written,) = Envoy(full_scan=True).launch(tmp_path, 9000, BACKENDS).files.values()
    (policy,) = json.loads(written)["static_resources"]["clusters"][0]["load_balancing_policy"]["policies"]
    assert policy["typed_extension_config"]["typed_config"]["selection_method"] == "FULL_SCAN"
    (written,) = Envoy().launch(tmp_path, 9000, BACKENDS).files.values()
    assert "FULL_SCAN" not in written


def test_haproxy_queues_what_is_beyond_the_limit_of_a_server() -> None:
    servers = [line for line in haproxy.configuration(9000, BACKENDS, 3).splitlines() if "server engine" in line]
    assert [line.endswith(" maxconn 3") for line in servers] == [True, True]
    assert (Haproxy().name, Haproxy(3).name) == ("haproxy", "haproxy-maxconn")


def test_inference_routers_start_with_the_policy_that_they_are_named_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(inference_routers, "find_script", lambda name, distribution: str(tmp_path / name))
    policies = {}
    for router in AT_THEIR_BEST:
        argv = router.launch(tmp_path, 9000, BACKENDS).argv
        policies[router.name] = argv[argv.index("--policy") + 1]
        assert ("launch" in argv) == router.name.startswith(("sglang", "smg"))
        assert argv[-2:] == ("http://127.0.0.1:11001", "http://127.0.0.1:11002")
    assert policies == {
        "sglang-cache-aware": "cache_aware",
        "sglang-power-of-two": "power_of_two",
        "smg-cache-aware": "cache_aware",
        "vllm-cache-aware": "cache_aware",
        "vllm-consistent-hash": "consistent_hash",
    }


@pytest.mark.parametrize(
    "peer",
    [Nginx(), Haproxy(), Envoy(), VLLM_ROUTER, SGLANG_ROUTER, *AT_THEIR_BEST],
    ids=lambda peer: peer.name,
)
def test_a_peer_that_is_not_installed_names_its_package(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr(nginx, "_BESIDE_PATH", str(tmp_path / "nginx"))
    with pytest.raises(MissingBinary, match="install"):
        peer.version()


class NotInstalled:
    """A peer that is not installed."""

    name = "absent"
    settings = ()

    def version(self) -> str:
        raise MissingBinary("absent not found: install it")

    def launch(self, directory: Path, port: int, backends: object) -> Launch:
        raise AssertionError("started although it is not installed")


class EndsAtOnce(NotInstalled):
    """A peer that cannot run here."""

    name = "broken"

    def version(self) -> str:
        return "1"

    def launch(self, directory: Path, port: int, backends: object) -> Launch:
        return Launch(("sh", "-c", "echo no such instruction; exit 3"), {}, "/health")


def test_a_peer_that_does_not_start_is_reported_as_missing(tmp_path: Path) -> None:
    with ExitStack() as running:
        contestants, missing = start_peers([NotInstalled(), EndsAtOnce()], tmp_path, BACKENDS, None, running)
    assert contestants == []
    assert missing["absent"] == "absent not found: install it"
    assert "ended with code 3" in missing["broken"]
    assert "no such instruction" in missing["broken"]

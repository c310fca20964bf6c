"""A Prometheus server on loopback."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters.servers.errors import MissingBinary
from adapters.servers.free_ports import LOOPBACK
from adapters.servers.process import ServerProcess
from adapters.servers.readiness import http_ok


class PrometheusServer(ServerProcess):
    """A Prometheus server, which stores its data, configuration and log in `directory`.

    Args:
        directory: created if it does not exist.
        port: loopback port.
        scrape_configs: value of `scrape_configs` in the configuration file.
        rule_files: paths of the rule files.
        interval_s: interval (s) of scrapes and of rule evaluations.

    Raises:
        MissingBinary: neither the environment variable PROMETHEUS nor PATH provides Prometheus.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int,
        scrape_configs: Sequence[Mapping[str, Any]],
        rule_files: Sequence[Path],
        interval_s: int,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.url = f"http://{LOOPBACK}:{port}"
        config = {
            "global": {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"},
            "rule_files": [str(path.resolve()) for path in rule_files],
            "scrape_configs": list(scrape_configs),
        }
        # JSON is valid YAML.
        (directory / "prometheus.yml").write_text(json.dumps(config, indent=1), encoding="utf-8")
        super().__init__(
            "prometheus",
            [
                str(find_prometheus()),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={LOOPBACK}:{port}",
            ],
            log_path=directory / "prometheus.log",
            ready=http_ok(self.url + "/-/ready"),
            ports=(port,),
        )


def find_prometheus() -> Path:
    """Return the program that the environment variable PROMETHEUS names, else `prometheus` on PATH.

    Raises:
        MissingBinary: the program does not exist.
    """
    named = os.environ.get("PROMETHEUS", "prometheus")
    found = shutil.which(named)
    if found is None:
        raise MissingBinary(f"{named} not found: install Prometheus (Debian: prometheus), or set PROMETHEUS")
    return Path(found)

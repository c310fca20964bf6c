"""A Prometheus server on loopback."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.servers.errors import MissingBinary
from lab.servers.free_ports import LOOPBACK
from lab.servers.process import ServerProcess
from lab.servers.readiness import http_ok


class PrometheusServer(ServerProcess):
    """One Prometheus; its data, configuration and log live in `directory`.

    Args:
        directory: made if it is missing.
        port: loopback port.
        scrape_configs: as `scrape_configs` of its configuration file.
        rule_files: paths of rules.
        interval_s: time (s) between two scrapes, and between two evaluations of the rules.

    Raises:
        MissingBinary: Prometheus is neither on PATH nor named by PROMETHEUS.
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
        # JSON is YAML too.
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
    """The program that PROMETHEUS names, else the one on PATH.

    Raises:
        MissingBinary: there is none.
    """
    named = os.environ.get("PROMETHEUS", "prometheus")
    found = shutil.which(named)
    if found is None:
        raise MissingBinary(f"{named} not found: install Prometheus (Debian: prometheus), or name it in PROMETHEUS")
    return Path(found)

"""Runs fake engines as processes for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from lab.witness import Findings, Witness

PROGRAM = Path(sys.executable).with_name("penstock-lab")

Connect = Callable[[str], httpx.AsyncClient]
"""Returns an HTTP client of an engine, by name."""


class EngineProcess:
    """One running `penstock-lab engines`."""

    def __init__(self, popen: subprocess.Popen[str], urls: Mapping[str, str], witness_dir: Path) -> None:
        self.popen = popen
        self.urls = urls
        self.witness_dir = witness_dir

    def findings(self) -> Findings:
        """Findings of the witness files so far."""
        return Witness(self.witness_dir).read()[0]

    def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout=100)


@contextmanager
def running_engines(directory: Path, *engines: Mapping[str, Any], region: str = "eu-de") -> Iterator[EngineProcess]:
    """Run engines until the block ends. By default engines load immediately and run at ten times the speed."""
    common = {"model": "llama-3.1-8b", "accelerator": "h100", "cold_start_s": 0, "time_scale": 10}
    config = directory / f"engines-{region}.json"
    witness_dir = directory / "witness"
    endpoints = [{**common, **engine} for engine in engines]
    config.write_text(json.dumps({"region": region, "witness_dir": str(witness_dir), "endpoints": endpoints}))
    popen = subprocess.Popen(
        [PROGRAM, "engines", "--config", config], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        assert popen.stdout is not None
        lines = [json.loads(popen.stdout.readline()) for _ in engines]
        yield EngineProcess(popen, {line["endpoint"]: line["url"] for line in lines}, witness_dir)
    finally:
        popen.kill()
        popen.wait()
        popen.stdout.close()

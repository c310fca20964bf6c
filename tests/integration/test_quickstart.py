"""`penstock quickstart` starts a region in front of an engine, serves a request, and stops its processes."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import httpx

from adapters.servers.binaries import find_script
from tests.support.engines import running_engines


def test_a_region_serves_after_one_command_and_stops_cleanly(tmp_path: Path) -> None:
    with running_engines(tmp_path, {"name": "gpu-1"}) as engines:
        argv = [find_script("penstock"), "quickstart", "--engine", engines.urls["gpu-1"]]
        argv += ["--dir", str(tmp_path / "region")]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        shown = ""
        try:
            for line in process.stdout:
                shown += line
                if line.startswith("print("):
                    break
            key = re.search(r"API key\s+(\S+)", shown)
            base = re.search(r"base URL\s+(\S+)", shown)
            assert key is not None, shown
            assert base is not None, shown
            answer = httpx.post(
                f"{base[1]}/chat/completions",
                headers={"Authorization": f"Bearer {key[1]}"},
                json={"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
                timeout=60.0,
            )
            assert answer.status_code == 200, answer.text
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.communicate(timeout=60.0)[0]
        assert process.returncode == 0, rest
        for name in ("agent.log", "control-plane.log"):
            assert "Traceback" not in (tmp_path / "region" / "logs" / name).read_text()

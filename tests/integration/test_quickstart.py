"""`penstock quickstart` starts a region in front of an engine, serves a request, and stops its processes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from itertools import islice
from pathlib import Path

import httpx
import pytest

from adapters.files.authority_files import load_authority, renew_identity
from adapters.servers.process import find_script
from control_plane.quickstart.places import Place
from control_plane.quickstart.region_dir import Engine, open_region_dir, write_region_dir
from tests.support.engines import running_engines
from tests.support.guides import Terminal, blocks
from tests.support.quickstarts import chat, key_in, page_in, running
from tests.support.wait import pauses


def test_a_region_serves_after_one_command_and_stops_cleanly(tmp_path: Path) -> None:
    tagged = {"name": "gpu-2", "served_model_name": "mistral:latest"}
    with running_engines(tmp_path, {"name": "gpu-1"}, tagged) as engines:
        urls = (f"--engine={url}" for url in engines.urls.values())
        with running("quickstart", *urls, "--dir", str(tmp_path / "region")) as shown:
            for model in ("llama-3.1-8b", "mistral", "mistral:latest"):
                assert chat(shown, key_in(shown), model).status_code == 200
            (models,) = (line for line in shown.splitlines() if line.startswith("  models "))
            assert models.split()[1:] == ["llama-3.1-8b,", "mistral:latest"]
            page = httpx.get(page_in(shown), follow_redirects=True)
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            found = open_region_dir(tmp_path / "region")
            assert found is not None
            keys = ("--token-file", str(found.admin_token), "--agents-key-file", str(found.agents_key))
            argv = [find_script("penstock"), "jobs", "--url", found.api_url, *keys, "-o", "json"]
            # Once the control plane has the first report of the agent.
            for pause_s in islice(pauses(), 100):
                if json.loads(subprocess.check_output(argv)):
                    break
                time.sleep(pause_s)
            assert set(json.loads(subprocess.check_output(argv))) == {"local/local-1"}
        for name in ("agent.log", "control-plane.log"):
            assert "Traceback" not in (tmp_path / "region" / "logs" / name).read_text()


@pytest.mark.long
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    with running_engines(tmp_path, {"name": "gpu-1"}) as engines:
        directory = tmp_path / "penstock-quickstart"
        with (
            running("quickstart", "--engine", engines.urls["gpu-1"], "--dir", str(directory)) as shown,
            Terminal(tmp_path) as terminal,
        ):
            found = open_region_dir(directory)
            assert found is not None
            terminal.ports |= {"8400": found.ports["api"], "8080": found.ports["traffic"]}
            _, context, look, tenant, _ = blocks("quickstart.md")
            terminal.run(context)
            # Before the first report, no region is healthy.
            terminal.until("penstock status | grep -q 'local.*healthy'")
            assert "→ local (home)" in terminal.run(look)
            models = terminal.run(tenant)
            assert "good: no forbidden region" in models
            assert '"id":"llama-3.1-8b"' in models.replace(" ", "")
            assert chat(shown, terminal.run("echo $key").strip()).status_code == 200


def test_a_signal_ends_a_start_that_waits_for_an_engine_that_it_names(tmp_path: Path) -> None:
    engine = Engine("http://127.0.0.1:9", ("m",))
    written = write_region_dir(tmp_path / "region", "local", Place("DE", 50.0, 8.0), [engine])
    renew_identity(load_authority(written.authority), written.path / "agent", lifetime_s=86_400.0)
    # The engine does not run: an earlier run knows its models.
    argv = [find_script("penstock"), "quickstart", "--engine", "http://127.0.0.1:9"]
    process = subprocess.Popen(
        [*argv, "--dir", str(tmp_path / "region")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    assert next(process.stdout) == "renewed the certificates of agent\n"
    for line in process.stdout:
        if line.startswith("waiting"):
            break
    assert "no endpoint is ready; engines: http://127.0.0.1:9; log: " in line
    assert next(process.stdout).startswith("what each lacks: penstock endpoints --url http://127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=30.0)[0]
    assert process.returncode == 0
    assert "stopped" in rest


@pytest.mark.long
def test_a_second_region_joins_by_an_invitation(tmp_path: Path) -> None:
    first, invitation = str(tmp_path / "first"), str(tmp_path / "eu-fr.invitation")
    with running_engines(tmp_path, {"name": "gpu-1"}) as engines:
        engine = ("--engine", engines.urls["gpu-1"])
        with running("quickstart", *engine, "--region", "eu-de", "--dir", first, "--host", "127.0.0.2") as shown:
            where = ("--host", "127.0.0.3", "--place", "FR", "--dir", first, "--file", invitation)
            subprocess.run([find_script("penstock"), "invite", "eu-fr", *where], check=True)
            with running("join", invitation, *engine, "--dir", str(tmp_path / "second")) as joined:
                assert "  models    llama-3.1-8b\n" in joined
                answer = chat(joined, key_in(shown))
                assert (answer.status_code, answer.headers["x-penstock-region"]) == (200, "eu-fr")

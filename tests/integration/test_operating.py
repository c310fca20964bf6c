"""`penstock` as an operator runs it: its real executable against a real control plane on a real etcd."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from control_plane.status import Status
from lab.geoip import write_geoip
from lab.servers.etcd import EtcdServer
from penstock.explain import Explanation, Standing
from penstock.steer import Advice
from tests.control_planes import PLANET, TOKEN, Agents, ControlPlaneServer, Operator, control_planes
from tests.reports import MODEL, offered

HAMBURG = "198.18.1.7"
EU = ("eu-de", "eu-es")


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Shell:
    """Runs `penstock` with contexts of its own and nothing in the environment."""

    def __init__(self, directory: Path, server: ControlPlaneServer) -> None:
        self.server = server
        self.token_file = directory / "operator.token"
        self.token_file.write_text(TOKEN)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.environment |= {"PENSTOCK_CONFIG": str(directory / "contexts.yaml"), "COLUMNS": "220"}

    async def __call__(self, *arguments: str) -> Done:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from control_plane.cli import main; main()",
            *arguments,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert b"Traceback" not in err, err.decode()
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def penstock(own_etcd: EtcdServer, tmp_path: Path) -> AsyncIterator[Shell]:
    """A fleet whose regions report, planned for, and a context that names it."""
    geoip = tmp_path / "geo.mmdb"
    write_geoip(geoip)
    settings = {"POLICY_DIR": str(PLANET), "GEOIP_FILE": str(geoip)}
    with control_planes("a", tmp_path, own_etcd.endpoint, policy_settings=settings) as (server,):
        async with Agents([server.url]) as agents, Operator() as operator:
            agents.demand = {"eu-de": (offered(10.0, *EU),)}
            await operator.until(server, lambda status: any(arc.origin == "eu-de" for arc in status.arcs))
            shell = Shell(tmp_path, server)
            added = await shell("context", "add", "tests", "--url", server.url, "--token-file", str(shell.token_file))
            assert added.code == 0, added.err
            yield shell


async def test_looking_at_a_fleet(penstock: Shell) -> None:
    status = await penstock("status", "-o", "json")
    assert msgspec.json.decode(status.out, type=Status).leading
    table = await penstock("status")
    assert "leader a (epoch" in table.out
    assert "eu-de 100% (home)" in table.out

    explained = await penstock(
        "explain", "--origin", "eu-de", "--model", MODEL, "--tenant", "personal", "--ip", HAMBURG, "-o", "json"
    )
    explanation = msgspec.json.decode(explained.out, type=Explanation)
    assert explanation.chosen is not None
    assert explanation.chosen.region == "eu-de"
    standing = {one.region: one.standing for one in explanation.regions}
    assert {name for name, one in standing.items() if one is Standing.FORBIDDEN} == {"eu-gb", "jp-tok", "us-east"}
    shown = await penstock("explain", "--origin", "us-east", "--model", MODEL, "--tenant", "personal", "--ip", HAMBURG)
    assert "eea-clients-stay-in-eu (residency.yaml:" in shown.out
    assert "→ refused, misdirected" in shown.out
    assert "as a knows it" in shown.out

    steered = await penstock("steer", HAMBURG, "--tenant", "personal", "--model", MODEL, "-o", "json")
    assert [entry.region for entry in msgspec.json.decode(steered.out, type=Advice).entries] == ["eu-de", "eu-es"]
    nowhere = await penstock("steer", "192.0.2.1", "--tenant", "personal")
    assert "refused, location_unknown" in nowhere.out

    mistyped = await penstock("explain", "--origin", "us-est", "--model", MODEL, "--tenant", "personal")
    assert mistyped.code == 2
    assert "did you mean us-east?" in mistyped.err
    penstock.token_file.write_text("f" * 16)
    stranger = await penstock("steer", HAMBURG)
    assert stranger.code == 2
    assert "the token is refused" in stranger.err
    penstock.server.stop()
    nobody = await penstock("explain", "--origin", "us-east", "--model", MODEL)
    assert nobody.code == 1
    assert "no control plane answers" in nobody.err


async def test_explaining_without_any_fleet(tmp_path: Path) -> None:
    shell = Shell(tmp_path, None)  # type: ignore[arg-type]
    key = tmp_path / "key"
    key.write_text("demo-personal\n")
    bundle = ("--policy", str(PLANET))
    request = ("--origin", "eu-de", "--model", MODEL)
    explained = await shell("explain", *bundle, *request, "--key-file", str(key), "--country", "DE", "-o", "json")
    assert msgspec.json.decode(explained.out, type=Explanation).asked.tenant == "personal"
    shown = await shell("explain", *bundle, *request, "--tenant", "personal", "--country", "DE")
    assert "offline: residency and distance alone" in shown.out
    full = await shell(
        "explain", *bundle, *request, "--tenant", "eu-personal", "--tried", "eu-de=saturated", "--overflow"
    )
    assert "→ refused, saturated" in full.out
    for wrong in (
        (*bundle, "--origin", "eu-de"),
        (*bundle, *request, "--ip", HAMBURG),
        (*bundle, *request, "--tried", "eu-de=tired"),
        (*bundle, *request, "--tried", "eu-d"),
        (*bundle, *request, "--tenant", "open", "--key-file", str(key)),
        (*bundle, *request, "--key-file", str(shell.token_file)),
        (*bundle, *request, "--key-file", "/nowhere"),
    ):
        assert (await shell("explain", *wrong)).code == 2
    (tmp_path / "bad").mkdir()
    assert (await shell("explain", "--policy", str(tmp_path / "bad"), *request)).code == 1

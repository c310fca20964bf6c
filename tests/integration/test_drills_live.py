"""Drills on real control planes and etcd: one of the policy's schedule, then one of an operator at the command line."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adapters.store.signed_store import SignedStore
from lab.servers.etcd import EtcdServer
from tests.support.cli import run
from tests.support.control_planes import PLANET, TOKEN, ControlPlaneServer, ObedientAgents, Operator, control_planes
from tests.support.wait import found

FAST = """\
apiVersion: penstock/v1
kind: Failover
hold_down_s: 1.0
failback_ramp_s: 1.0
"""
AT_ONCE = """\
apiVersion: penstock/v1
kind: Spillover
target_utilisation: 0.8
step_per_s: 1.0
"""
SCHEDULE = """\
apiVersion: penstock/v1
kind: Drill
name: takeover
exercise: control_plane_failover
starts_at: {now}
"""


def policy(directory: Path) -> Path:
    """The planet's policy, quicker, with a drill that is due now."""
    folder = directory / "policy"
    shutil.copytree(PLANET, folder)
    (folder / "failover.yaml").write_text(FAST)
    (folder / "spillover.yaml").write_text(AT_ONCE)
    (folder / "drills.yaml").write_text(SCHEDULE.format(now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")))
    return folder


def command(tmp_path: Path, servers: list[ControlPlaneServer], *arguments: str) -> Any:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    urls = [part for server in servers for part in ("--url", server.url)]
    result = run("drill", *arguments, *urls, "--token-file", str(token), "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def test_a_scheduled_failover_and_an_evacuation(
    own_etcd: EtcdServer, store: SignedStore, operator: Operator, tmp_path: Path
) -> None:
    with control_planes("ab", tmp_path, own_etcd.endpoint, policy(tmp_path)) as servers:
        async with ObedientAgents(store, [server.url for server in servers]):
            at = servers[0].url

            async def over() -> Any:
                items = (await operator.http.get(f"{at}/v1/drills")).json()["items"]
                return items[0] if items and items[0]["phase"] in ("done", "aborted", "refused") else None

            taken_over = await found(over)
            assert taken_over.items() >= {"phase": "done", "schedule": "takeover", "rpo": 0}.items()
            assert taken_over["rto_s"] > 0.0
            leader, _ = await operator.leader_among(servers)
            evacuated = await asyncio.to_thread(
                command, tmp_path, servers, "evacuate", "jp-tok", "--hold", "1s", "--reason", "a test"
            )
            phases = [step["phase"] for step in evacuated["steps"]]
            assert phases == ["prepared", "evacuating", "holding", "returning", "done"]
            assert evacuated["rto_s"] > 0.0
            assert evacuated["return_s"] >= 1.0
            assert (evacuated["number"], evacuated["rpo"]) == (2, 0)
            assert evacuated["requests"] > 0
            entries = (await operator.http.get(f"{leader.url}/v1/audit")).json()["items"][::-1]
            # When the sweep removes the drain is no matter of the drill.
            actions = [entry["action"] for entry in entries if entry["action"] != "override.expire"]
            assert actions == [
                "drill.stepping_down",
                "drill.done",
                "drill.prepared",
                "override.drain",
                *(f"drill.{phase}" for phase in ("evacuating", "holding", "returning")),
                "override.lift",
                "drill.done",
            ]

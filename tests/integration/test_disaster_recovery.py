"""etcd is lost and restored from a backup: the fleet keeps its overrides, its audit log and growing epochs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random

from typer.testing import CliRunner, Result

from adapters.etcd.etcd_store import EtcdStore
from adapters.store import keys
from adapters.store.config_store import Put
from adapters.store.signed_store import SignedStore
from control_plane.cli.main import app
from lab.server_starting import start_etcd
from regional_agent.config.active_config import ActiveConfig
from tests.support.control_planes import Agents, ControlPlaneServer, Operator, control_planes
from tests.support.identities import control_plane_id, control_plane_keyring, write_identity
from tests.support.paths import PLANET
from tests.support.reports import offered
from tests.support.wait import until, until_async

EU = ("eu-de", "eu-es")


async def penstock(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


def configuration(directory: Path, etcd: str, fleet: int = 0) -> str:
    """A control plane's configuration file, which names an identity of its own."""
    directory.mkdir()
    (directory / "token").touch(mode=0o600)
    write_identity(directory / "identity", control_plane_id(), fleet)
    (directory / "config.yaml").write_text(
        f"name: cp-1\nlisten: 127.0.0.1:0\netcd_endpoints: {etcd}\npolicy_dir: {PLANET}\n"
        f"identity_dir: {directory / 'identity'}\nadmin_token_file: {directory / 'token'}\n"
    )
    return str(directory / "config.yaml")


async def is_drained(operator: Operator, server: ControlPlaneServer, region: str) -> bool:
    """Drain a region; false if a new leader refuses with 503."""
    body = {"kind": "drain", "region": region, "expires_in_s": "none", "reason": "a test"}
    response = await operator.http.post(f"{server.url}/v1/overrides", json=body)
    assert response.status_code in (201, 503), response.text
    return response.status_code == 201


async def test_the_fleet_recovers_after_etcd_was_lost_and_restored(tmp_path: Path) -> None:
    etcd = await asyncio.to_thread(start_etcd, tmp_path / "etcd")
    config, file = configuration(tmp_path / "own", etcd.endpoint), str(tmp_path / "fleet.backup")
    store = SignedStore(EtcdStore((etcd.endpoint,), call_timeout_s=20), control_plane_keyring())
    agent = ActiveConfig("eu-de", store, tmp_path / "agent", Random(1), lambda policy: None)
    try:
        result = await penstock("backup", file, "--config", config)
        assert (result.exit_code, "the store has no fleet" in result.stderr) == (1, True)
        # The store has a history, so that epochs exceed those of an empty store.
        for number in range(300):
            await store.commit([], [Put(keys.ROOT + "history", str(number).encode())])
        agent.start()
        async with Operator() as operator:
            with control_planes("a", tmp_path, etcd.endpoint) as (server,):
                async with Agents([server.url]) as agents:
                    agents.demand = {"eu-de": (offered(10.0, *EU),)}
                    _, epoch = await operator.leader_among([server])
                    await until(lambda: agent.plan is not None and agent.plan.epoch == epoch > 300)
                    await until_async(lambda: is_drained(operator, server, "eu-gb"))
                    result = await penstock("backup", file, "--config", config)
                    assert result.exit_code == 0, result.output
                    result = await penstock("restore", file, "--config", config, "--force")
                    assert (result.exit_code, "a control plane uses the store" in result.stderr) == (1, True)

            etcd.kill()
            shutil.rmtree(tmp_path / "etcd" / "data")
            (tmp_path / "etcd" / "data").mkdir(mode=0o700)
            await asyncio.to_thread(etcd.restart)

            foreign_config = configuration(tmp_path / "stranger", etcd.endpoint, fleet=1)
            result = await penstock("restore", file, "--config", foreign_config)
            assert (result.exit_code, "of another fleet" in result.stderr) == (1, True)
            for _ in range(2):
                result = await penstock("restore", file, "--config", config, "--dry-run")
                assert (result.exit_code, "would restore" in result.stdout) == (0, True), result.output
            result = await penstock("restore", file, "--config", config)
            assert result.exit_code == 0, result.output
            result = await penstock("restore", file, "--config", config)
            assert (result.exit_code, "restore with --force" in result.stderr) == (1, True)

            with control_planes("b", tmp_path, etcd.endpoint) as (server,):
                # These agents do not report applied plans, so only the restored epoch base makes the new epochs larger.
                async with Agents([server.url]) as agents:
                    agents.demand = {"eu-de": (offered(10.0, *EU),)}
                    _, anew = await operator.leader_among([server])
                    assert anew < 300
                    await until(lambda: agent.plan is not None and agent.plan.epoch > epoch)
                    assert not agent.refused
                    overrides = (await operator.http.get(f"{server.url}/v1/overrides")).json()["items"]
                    assert [entry["override"]["region"] for entry in overrides] == ["eu-gb"]
                    result = await penstock(
                        "audit", "verify", "--url", server.url, "--token-file", str(tmp_path / "b/admin.token")
                    )
                    assert result.exit_code == 0, result.output
    finally:
        await agent.stop()
        await store.close()
        etcd.kill()

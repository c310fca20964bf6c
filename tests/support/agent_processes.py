"""Whole agents as separate processes: `penstock-agent` on real etcd and Redis, for tests that need a process."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import msgspec

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.servers.process import ServerProcess, find_script
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Put
from adapters.store.signed_store import SignedStore
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from regional_agent.upstream.address import Address
from tests.support.admin_keys import ADMIN_HEADERS, write_admin_keys
from tests.support.identities import agent_id, control_plane_keyring, write_identity
from tests.support.planet import MODEL
from tests.support.wait import PATIENCE_S


class AgentProcess(ServerProcess):
    """`penstock-agent` on free ports, or on the ports of the agent that it takes over from."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        region: str,
        etcd_endpoint: str,
        redis_url: str | None,
        endpoints_file: Path,
        listens: Mapping[str, Address] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Create an agent; it is not started.

        Args:
            directory: directory for log, certificate and state.
            listens: listen addresses of `traffic`, `peer` and `admin`; a missing address selects a free port.
            settings: additional settings, by field name in capitals.
        """
        directory.mkdir(parents=True, exist_ok=True)
        identity_dir = write_identity(directory / "identity", agent_id(region, name))
        where = {face: (listens or {}).get(face, Address("127.0.0.1", 0)) for face in ("traffic", "peer", "admin")}
        all_settings = {
            "REGION": region,
            "NAME": name,
            **{f"{face.upper()}_LISTEN": str(address) for face, address in where.items()},
            "ETCD_ENDPOINTS": etcd_endpoint,
            "REDIS_URL": redis_url or "",
            "ENDPOINTS_FILE": str(endpoints_file),
            "IDENTITY_DIR": str(identity_dir),
            "STATE_DIR": str(directory / "state"),
            "ADMIN_API_KEYS_FILE": str(write_admin_keys(directory / "admin-keys.yaml")),
            **(settings or {}),
        }
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        super().__init__(
            name,
            [find_script("penstock-agent")],
            log_path=directory / f"{name}.log",
            ready=self._serves,
            env=environment | {f"PENSTOCK_AGENT_{key}": value for key, value in all_settings.items()},
        )

    def faces(self) -> dict[str, Address]:
        """Listen addresses of the newest start; empty before the agent listens."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            for line in log:
                if line.startswith(b'{"agent"'):
                    said = json.loads(line)
                    faces = [face for face in ("traffic", "peer", "admin", "picker") if face in said]
                    return {face: Address.parse(said[face].replace("grpc", "http")) for face in faces}
        return {}

    def status(self) -> dict[str, Any]:
        """Response of `/status` at the admin listener."""
        found: dict[str, Any] = self.ask("/status").json()
        return found

    def ask(self, path: str) -> httpx.Response:
        """Response of the admin listener to a GET request with a key."""
        return httpx.get(f"http://{self.faces()['admin']}{path}", headers=ADMIN_HEADERS, timeout=10.0)

    def _serves(self) -> bool:
        faces = self.faces()
        try:
            return bool(faces) and httpx.get(f"http://{faces['admin']}/readyz", timeout=1.0).status_code == 200
        except httpx.HTTPError:
            return False


def write_endpoints(file: Path, engines: Sequence[Address], slots: int, queue: int = 0) -> Path:
    """Write an endpoints file for engines of the test fleet's model, named gpu-0 and so on."""
    specs = [
        {
            "name": f"gpu-{n}",
            "url": f"http://{address}",
            "models": [MODEL],
            "slots": slots,
            "queue": queue,
            "engine": "http",
        }
        for n, address in enumerate(engines)
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".new")
    beside.write_bytes(msgspec.yaml.encode(specs))
    beside.replace(file)
    return file


@asynccontextmanager
async def agents_in(
    directory: Path,
    etcd: EtcdServer,
    engines: Mapping[str, Sequence[Address]],
    slots: Mapping[str, int],
    settings: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> AsyncIterator[dict[str, AgentProcess]]:
    """Start an agent in each region of `engines`, without Redis, and wait until all are ready.

    Args:
        directory: has a folder for each region.
        engines: the engines of each region.
        slots: of each engine, by region.
        settings: of the agents, by region.
    """
    agents: dict[str, AgentProcess] = {}
    try:
        for region, addresses in engines.items():
            agents[region] = AgentProcess(
                "a",
                directory / region,
                region=region,
                etcd_endpoint=etcd.endpoint,
                redis_url=None,
                endpoints_file=write_endpoints(directory / region / "endpoints.yaml", addresses, slots[region]),
                settings=settings.get(region, {}),
            )
            agents[region].start()
        for agent in agents.values():
            await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
        yield agents
    finally:
        for agent in agents.values():
            await asyncio.to_thread(agent.kill)


async def publish(
    etcd: EtcdServer, policy: Policy, generation: int = 1, shares: Mapping[str, Mapping[str, float]] | None = None
) -> None:
    """Put a policy in force, with plans in which every region serves its own requests.

    Args:
        shares: the shares of serving regions, by origin, for origins whose requests other regions serve too.
    """
    everywhere = residency_class(frozenset(policy.regions)).name
    store = SignedStore(EtcdStore([etcd.endpoint], call_timeout_s=20), control_plane_keyring())
    await store.commit((), (Put(keys.policy(policy.digest()), encode(policy)),))
    for region in policy.regions:
        arcs = tuple(
            Arc(server, share, ArcReason.HOME if server == region else ArcReason.SPILLOVER)
            for server, share in (shares or {}).get(region, {region: 1.0}).items()
        )
        classes = tuple(ClassPlan(model, everywhere, arcs, ()) for model in policy.models)
        plan = RegionPlan(region, 1, generation, policy.digest(), 0.0, classes)
        await store.commit((), (Put(keys.plan(region), encode(plan)),))
    await store.close()

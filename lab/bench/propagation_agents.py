"""A process of minimal agents: each follows its region's plan in etcd as a full agent does, and reports the time.

Run as `python -m lab.bench.propagation_agents ENDPOINT IDENTITY_DIR DIRECTORY REGION...`, with one agent per region.
For every policy that an agent applies, the process prints a line with the time (Unix, s), the digest and the number of
the agent. For every API key that is known or revoked at an agent, it prints such a line with the identifier of the key
and its state.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from random import Random

import structlog
import uvloop

from adapters.etcd.etcd_store import EtcdStore
from adapters.files.identity_files import IdentityFiles
from adapters.store.signed_store import SignedStore
from penstock.policy.policy import Policy
from penstock.wire.identity import ProcessRole
from regional_agent.config.active_config import ActiveConfig

TENANT = "bench"
"""The tenant whose keys are reported."""

KNOWN = "known"
REVOKED = "revoked"

CHECK_S = 0.005
"""Interval (s) at which it is checked whether tenants have changed: the resolution of the times."""


async def apply(endpoint: str, identity_dir: Path, directory: Path, regions: list[str]) -> None:
    """Follow the store until standard input ends."""
    keyring = IdentityFiles(identity_dir, ProcessRole.CONTROL_PLANE, "bench").keyring
    agents = []
    for at, region in enumerate(regions):
        store = SignedStore(EtcdStore((endpoint,)), keyring)
        config = ActiveConfig(region, store, directory / str(at), Random(at), partial(_in_force, str(at)))
        config.start()
        agents.append((config, store))
    background = [asyncio.create_task(_watch_keys([config for config, _ in agents]))]
    await asyncio.to_thread(sys.stdin.read)
    background[0].cancel()
    for config, store in agents:
        await config.stop()
        await store.close()


async def _watch_keys(configs: list[ActiveConfig]) -> None:
    """Report the state of each key of the tenant TENANT, by the tenants that the agents use for requests."""
    versions, reported = [0] * len(configs), set[tuple[int, str]]()
    while True:
        for agent, config in enumerate(configs):
            if config.tenants.version == versions[agent]:
                continue
            versions[agent] = config.tenants.version
            record = config.tenants.find_tenant(TENANT)
            for key in () if record is None else record.keys:
                state = f"{key.id}:{KNOWN if key.revoked_at is None else REVOKED}"
                if (agent, state) not in reported:
                    reported.add((agent, state))
                    print(time.time(), state, agent, flush=True)
        await asyncio.sleep(CHECK_S)


def _in_force(agent: str, policy: Policy) -> None:
    at = time.time()
    print(at, policy.digest(), agent, flush=True)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    uvloop.run(apply(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))

"""A process of minimal agents: each follows its region's plan in etcd as a full agent does, and reports the time.

Run as `python -m lab.bench.propagation_agents ENDPOINT IDENTITY_DIR DIRECTORY REGION...`, with one agent per region.
For every policy that an agent applies, the process prints a line with the time (Unix, s), the digest and the number of
the agent.
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


async def apply(endpoint: str, identity_dir: Path, directory: Path, regions: list[str]) -> None:
    """Follow the store until standard input ends."""
    sessions = IdentityFiles(identity_dir, ProcessRole.CONTROL_PLANE, "bench").sessions
    agents = []
    for at, region in enumerate(regions):
        store = SignedStore(EtcdStore((endpoint,)), sessions)
        config = ActiveConfig(region, store, directory / str(at), Random(at), partial(_in_force, str(at)))
        config.start()
        agents.append((config, store))
    await asyncio.to_thread(sys.stdin.read)
    for config, store in agents:
        await config.stop()
        await store.close()


def _in_force(agent: str, policy: Policy) -> None:
    at = time.time()
    print(at, policy.digest(), agent, flush=True)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    uvloop.run(apply(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))

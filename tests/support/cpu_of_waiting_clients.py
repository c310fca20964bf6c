"""Program that measures the CPU use of a process with two informers and a registration while etcd does not respond."""

from __future__ import annotations

import asyncio
import os
import sys
from random import Random

import uvloop

from adapters.etcd.etcd_store import EtcdStore
from adapters.store.informer import Informer
from adapters.store.lease import Registration
from tests.support.running import running

SETTLE_S = 1.0
MEASURE_S = 3.0


async def share_of_a_core(endpoint: str) -> float:
    """CPU time of this process divided by elapsed time."""
    store, rng = EtcdStore([endpoint]), Random(1)
    async with (
        running(Informer(store, "/plans/", rng=rng)),
        running(Informer(store, "/policies/", rng=rng)),
        running(Registration(store, "/agents/a", b"", ttl_s=5, rng=rng)),
    ):
        await asyncio.sleep(SETTLE_S)
        before = os.times()
        await asyncio.sleep(MEASURE_S)
        after = os.times()
    await store.close()
    used_s = after.user + after.system - before.user - before.system
    return used_s / (after.elapsed - before.elapsed)


if __name__ == "__main__":
    print(uvloop.run(share_of_a_core(sys.argv[1])))

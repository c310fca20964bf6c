import asyncio
import time

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer


async def test_a_call_that_is_cancelled_as_it_completes_is_cancelled(etcd_server: EtcdServer) -> None:
    store = EtcdStore([f"127.0.0.1:{etcd_server.client_port}"])
    await store.get("/nothing")
    call = asyncio.create_task(store.get("/nothing"))
    await asyncio.sleep(0)
    time.sleep(1.0)  # noqa: ASYNC251 (the answer comes meanwhile, and waits for the event loop)
    call.cancel()
    await asyncio.wait({call}, timeout=10)
    assert call.cancelled()
    await store.close()

"""The agent as a process: build what it knows, open its three faces, and leave without losing a request."""

from __future__ import annotations

import asyncio
import signal
from random import Random
from typing import Any

import msgspec
import structlog

from control_plane.client.fleet_key import load_fleet_key
from regional_agent.carry.carrier import Carrier
from regional_agent.carry.limits import Limits
from regional_agent.carry.listener import Application, Listener
from regional_agent.carry.upstream import Address, UpstreamPool
from regional_agent.knowing import Knowing
from regional_agent.metrics import AgentMetrics
from regional_agent.road import Road
from regional_agent.services import AdminService, PeerService, TrafficService
from regional_agent.settings import AgentSettings

log = structlog.get_logger()

LARGEST_ADMIN_BODY_BYTES = 64 * 1024

SHUTDOWN_GRACE_S = 30.0
"""How long streams may go on after SIGTERM, in seconds."""


async def serve(settings: AgentSettings) -> None:
    """Run one agent until SIGTERM or SIGINT, then drain and return."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)

    metrics = AgentMetrics()
    pool = UpstreamPool()
    key = load_fleet_key(settings.fleet_key_file)
    rng = Random()
    async with Knowing(settings, key=key, pool=pool, metrics=metrics, rng=rng) as knowing:
        road = Road(settings.region, knowing, key, rng, loop.time)
        limits = Limits()
        via = f"1.1 {settings.name}.{settings.region}.penstock".encode()
        carrier = Carrier(road, pool, metrics, limits, via=via)
        carrier.start()
        admin_limits = msgspec.structs.replace(limits, largest_body_bytes=LARGEST_ADMIN_BODY_BYTES)
        admin_service = AdminService(carrier, knowing, lambda: _status(settings, knowing, carrier))
        faces: dict[str, tuple[Address, Application, Limits]] = {
            "traffic": (settings.traffic_listen, TrafficService(road, carrier, knowing), limits),
            "peer": (settings.peer_listen, PeerService(road, carrier, knowing), limits),
            "admin": (settings.admin_listen, admin_service, admin_limits),
        }
        listeners: dict[str, Listener] = {}
        where: dict[str, str] = {}
        for name, (listen, service, bounds) in faces.items():
            listeners[name] = Listener(service, bounds, trusts=knowing.locator.trusts)
            host, port = await listeners[name].start(listen.host, listen.port)
            where[name] = f"http://{host}:{port}"
        await knowing.announce(peer_url=where["peer"], admin_url=where["admin"])
        print(msgspec.json.encode({"agent": settings.name, "region": settings.region, **where}).decode(), flush=True)
        log.info("serving", **where)

        await stop.wait()
        log.info("draining", grace_s=SHUTDOWN_GRACE_S, in_flight=sum(carrier.in_flight().values()))
        await knowing.withdraw()
        for name in ("traffic", "peer"):
            listeners[name].stop_accepting()
        cut = sum(await asyncio.gather(*(listeners[name].drain(SHUTDOWN_GRACE_S) for name in ("traffic", "peer"))))
        listeners["admin"].stop_accepting()
        await listeners["admin"].drain(0.0)
        carrier.stop()
        pool.close()
        log.info("stopped", cut=cut)


def _status(settings: AgentSettings, knowing: Knowing, carrier: Carrier) -> dict[str, Any]:
    return {
        "region": settings.region,
        "agent": settings.name,
        "in_flight": dict(carrier.in_flight()),
        **knowing.status(),
    }

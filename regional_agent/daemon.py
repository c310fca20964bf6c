"""The agent as a process: build what it knows, open its three faces, and leave without losing a request."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import structlog

from adapters.fleet_key import load_fleet_key
from regional_agent.config.file_descriptors import raise_limit, shares_of
from regional_agent.config.settings import PREFIX, AgentSettings, BadSettings
from regional_agent.http.limits import Limits
from regional_agent.http.listen_port import is_served
from regional_agent.http.listener import Listener, drain_all
from regional_agent.http.request_sequence import Application
from regional_agent.http.tls_contexts import ClientTls, Reloadable, ServerTls, keep_reloading
from regional_agent.proxy.access_log import AccessLog
from regional_agent.proxy.proxy import Proxy
from regional_agent.readiness import Readiness
from regional_agent.routing.locate import Locator
from regional_agent.runtime import AgentRuntime
from regional_agent.services import AdminService, PeerService, TrafficService
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool

log = structlog.get_logger()

ADMIN_LIMITS = Limits(max_body_bytes=64 * 1024, max_connections=1024)
"""Operators and scrapers send little, and must get through whatever clients do."""

NEW_OBJECTS_PER_COLLECTION = 20_000
"""How many more objects than at the last collection make Python look for garbage in cycles."""

SHUTDOWN_GRACE_S = 30.0
"""How long streams may go on after SIGTERM, in seconds."""


SETTLE_S = 10.0
"""A new agent waits at most this long (s) to know what it needs before it takes a port that another one serves."""

SETTLE_LOOK_S = 0.02


async def serve(settings: AgentSettings) -> None:
    """Run one agent until SIGTERM or SIGINT, then drain and return.

    Raises:
        BadSettings, BadSecret, BadEndpointFile, BadGeoDatabase, BadTlsFiles: it cannot start with what it was given.
    """
    stop = _told_to_stop()
    tls = _Tls(settings)
    limits = _limits(settings.limits)
    metrics = AgentMetrics()
    pool, peer_pool = UpstreamPool(tls.to_upstreams), UpstreamPool(tls.to_peers)
    key = load_fleet_key(settings.fleet_key_file)
    rng = Random()
    access_log = _access_log(settings, rng)
    async with AgentRuntime(settings, key=key, pool=pool, peer_pool=peer_pool, metrics=metrics, rng=rng) as runtime:
        via = f"1.1 {settings.name}.{settings.region}.penstock".encode()
        carrier = Proxy(
            runtime.router,
            pool,
            metrics,
            runtime.tally,
            settings.limits,
            via=via,
            rng=rng,
            peer_pool=peer_pool,
            access_log=access_log,
        )
        carrier.start()
        reloading = asyncio.create_task(keep_reloading(tls.parts))
        admission, readiness = runtime.admission, runtime.readiness
        admin = AdminService(
            carrier,
            readiness,
            runtime.registrations,
            runtime.explaining,
            update_metrics=runtime.state_metrics.update,
            status=lambda: {
                "region": settings.region,
                "agent": settings.name,
                "in_flight": dict(carrier.in_flight()),
                **runtime.status(),
            },
        )
        traffic = TrafficService(admission, carrier, runtime.config, readiness)
        peer = PeerService(admission, carrier, runtime.responder)
        listeners, where = await _listening(
            _Face("admin", settings.admin_listen, admin, None),
            _Face("traffic", settings.traffic_listen, traffic, tls.traffic),
            _Face("peer", settings.peer_listen, peer, tls.peer),
            limits=limits,
            locator=runtime.locator,
            readiness=readiness,
        )
        _settle_memory()
        await runtime.announce(peer_url=where["peer"], admin_url=where["admin"])
        print(msgspec.json.encode({"agent": settings.name, "region": settings.region, **where}).decode(), flush=True)
        log.info("serving", **where)

        await stop.wait()
        log.info("draining", grace_s=SHUTDOWN_GRACE_S, in_flight=sum(carrier.in_flight().values()))
        await runtime.withdraw()
        cut = await drain_all([listeners["traffic"], listeners["peer"]], SHUTDOWN_GRACE_S)
        listeners["admin"].stop_accepting()
        await listeners["admin"].drain(0.0)
        reloading.cancel()
        carrier.stop()
        pool.close()
        peer_pool.close()
        if access_log is not None:
            await asyncio.to_thread(access_log.close)
        log.info("stopped", cut=cut)


def _told_to_stop() -> asyncio.Event:
    """Set by SIGTERM or SIGINT from now on."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    return stop


class _Face(NamedTuple):
    """One of the addresses that an agent answers at."""

    name: str
    listen: Address
    service: Application
    tls: ServerTls | None


async def _listening(
    *faces: _Face, limits: Mapping[str, Limits], locator: Locator, readiness: Readiness
) -> tuple[dict[str, Listener], dict[str, str]]:
    """A listener for each face, by name, and its URL.

    Raises:
        BadSettings: an address cannot be listened on.
    """
    listeners: dict[str, Listener] = {}
    where: dict[str, str] = {}
    for name, listen, service, tls in faces:
        listener = listeners[name] = Listener(
            service, limits[name], tls=tls, trusts=locator.trusts, location_header=locator.header
        )
        try:
            if name != "admin" and is_served(listen.host, listen.port):
                await _wait_until_warmed_up(readiness)
            host, port = await listener.start(listen.host, listen.port)
        except OSError as error:
            raise BadSettings(
                f"{PREFIX}{name.upper()}_LISTEN: cannot listen on {listen}: {error.strerror}; "
                "choose another address or port"
            ) from None
        where[name] = f"{'http' if tls is None else 'https'}://{Address(host, port)}"
    return listeners, where


async def _wait_until_warmed_up(readiness: Readiness) -> None:
    """Leave clients to the agent that serves them until this one can; not for ever, for that one may be ill."""
    try:
        async with asyncio.timeout(SETTLE_S):
            while not readiness.has_warmed_up():  # noqa: ASYNC110 (many things have to have happened)
                await asyncio.sleep(SETTLE_LOOK_S)
    except TimeoutError:
        log.warning("takes the port over without being ready", because=readiness.not_ready_reason())


def _limits(limits: Limits) -> dict[str, Limits]:
    """The limits of each face; no more connections than there are descriptors for."""
    descriptors = raise_limit()
    shares = shares_of(descriptors)
    bounded = {}
    for face, most in shares._asdict().items():
        wanted = ADMIN_LIMITS if face == "admin" else limits
        most = min(wanted.max_connections, most)
        # Peers are few, and one of them may have to send what a whole region cannot serve.
        of_address = wanted.max_connections_per_address or (most if face == "peer" else None)
        bounded[face] = msgspec.structs.replace(wanted, max_connections=most, max_connections_per_address=of_address)
    if shares.traffic < limits.max_connections:
        log.warning(
            "fewer connections than the limits allow; raise the hard limit of open files (ulimit -Hn) for more",
            open_files=descriptors,
            **{face: one.max_connections for face, one in bounded.items()},
        )
    return bounded


def _settle_memory() -> None:
    """What is there when an agent begins to serve stays: the collector need not walk through it again and again.

    Requests leave no cycles behind, so it need not look after every 700 objects either, as it does by default; by far
    most of what it would look at then are requests in flight.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_PER_COLLECTION)


class _Tls:
    """Every certificate that the settings name."""

    def __init__(self, settings: AgentSettings) -> None:
        self.traffic = _server_tls(
            settings.traffic_certificate_file, settings.traffic_key_file, settings.traffic_client_ca_file
        )
        self.peer = _server_tls(settings.peer_certificate_file, settings.peer_key_file, settings.peer_ca_file)
        self.to_upstreams = ClientTls(settings.upstream_ca_file)
        self.to_peers = ClientTls(settings.peer_ca_file, settings.peer_certificate_file, settings.peer_key_file)
        parts = (self.traffic, self.peer, self.to_upstreams, self.to_peers)
        self.parts: list[Reloadable] = [part for part in parts if part is not None]


def _server_tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    return ServerTls(certificate, key, client_ca) if certificate is not None and key is not None else None


def _access_log(settings: AgentSettings, rng: Random) -> AccessLog | None:
    file = settings.access_log_file
    if file is None:
        return None
    try:
        return AccessLog(file, settings.access_log_share, rng)
    except OSError as error:
        raise BadSettings(
            f"{PREFIX}ACCESS_LOG_FILE: {file}: {error.strerror}; name a file in a directory of ours"
        ) from None

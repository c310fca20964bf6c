"""The agent process: builds the runtime, opens the listeners, and drains without losing a request."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import NamedTuple

import msgspec
import structlog

from adapters.access.api_keys import ApiKeys
from adapters.access.key_access import KeyAccess
from adapters.configuration.settings_loader import BadSettings
from adapters.descriptor_limit import raise_descriptor_limit
from adapters.files.certificate_expiry import CertificateExpiry
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, IdentityFiles, load_region_keys
from adapters.files.secret_reload import SecretFile
from adapters.files.watched_files import Watched, keep_checking
from adapters.logs import print_line
from adapters.loop_errors import report_loop_error
from adapters.service_manager import ServiceManager
from adapters.tls_contexts import ClientTls, ServerTls
from penstock.policy.policy import Policy
from penstock.routes.timeouts import longest_total_s
from penstock.wire.identity import ProcessRole
from penstock.wire.peer_keys import Keyring
from regional_agent.agent_tls import AgentTls
from regional_agent.background_tasks import keep_running
from regional_agent.config.file_descriptors import shares_of
from regional_agent.config.settings import PREFIX, AgentSettings
from regional_agent.http.body_limits import BodyLimits
from regional_agent.http.client_connection import Application
from regional_agent.http.drain import Drainable, drain_all
from regional_agent.http.limits import Limits
from regional_agent.http.listen_port import is_served
from regional_agent.http.listener import Listener
from regional_agent.jobs.agent_jobs import AgentJobs
from regional_agent.jobs.webhooks.webhook_keys import read_webhook_keys
from regional_agent.peers.server_certificates import AgentCertificateCheck, ControlPlaneCertificateCheck
from regional_agent.picker.conversation import PickerParts
from regional_agent.picker.early_ends import EarlyEnds
from regional_agent.picker.picker_server import PickerServer, PickerTls
from regional_agent.proxy.outcome_recorder import OutcomeRecorder
from regional_agent.proxy.proxy import Proxy
from regional_agent.readiness import Readiness
from regional_agent.requests.client_location import Locator
from regional_agent.result_cache.result_cache import AgentResultCache
from regional_agent.result_cache.stored_bodies import StoredBodies
from regional_agent.runtime import AgentCredentials, AgentRuntime
from regional_agent.services.admin_service import AdminPages, AdminService
from regional_agent.services.peer_service import PeerService
from regional_agent.services.traffic_service import TrafficService
from regional_agent.telemetry.access_log import AccessLog, LogSigner
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.tracing.span_exporter import SpanExporter
from regional_agent.telemetry.tracing.tracer import Tracer
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool, UpstreamPools
from regional_agent.versions.shadow_requests import RequestCopies

log = structlog.get_logger()

ADMIN_LIMITS = Limits(max_body_bytes=64 * 1024, max_connections=1024)
"""Limits of the admin listener: its requests are small, and client load must not exclude operators."""

NEW_OBJECTS_PER_COLLECTION = 20_000
"""Number of new container objects that triggers a run of the cyclic garbage collector."""

MIN_DEFAULT_GRACE_S = 600.0
"""Minimum of the default of `shutdown_grace_s` (s)."""

CLOSE_S = 30.0
"""Time (s) for which the agent may run after the grace: to hand over the ports, and to close connections and logs."""

TAKEOVER_WAIT_S = 10.0
"""Maximum time (s) that a new agent waits for its own readiness before it listens on a port of another agent."""

TAKEOVER_CHECK_S = 0.02
"""Interval (s) between two checks of the readiness of an agent that waits to take over a port."""


async def serve(settings: AgentSettings, traffic_socket: socket.socket | None = None) -> None:
    """Run one agent until SIGTERM or SIGINT, then drain and return.

    Args:
        settings: settings of the agent.
        traffic_socket: socket that the supervisor has bound and that the workers of this host share; None binds a new
            socket.

    Raises:
        BadSettings, BadSecret, BadEndpointFile, BadGeoDatabase, BadTlsFiles: a setting or a file that it names is
        invalid.
    """
    asyncio.get_running_loop().set_exception_handler(report_loop_error)
    stop, hurry = _stop_signals()
    service_manager = ServiceManager.from_environment()
    if settings.allow_plaintext:
        links = sorted(settings.allow_plaintext)
        log.warning("connections may be unencrypted", links=links, setting=f"{PREFIX}ALLOW_PLAINTEXT")
    prefix = settings.etcd_prefix
    identity = IdentityFiles(settings.identity_dir, ProcessRole.AGENT, settings.name, settings.region, prefix=prefix)
    tls = AgentTls(settings, identity)
    limits = _limits_by_listener(settings.limits)
    metrics = AgentMetrics(settings.max_tenant_series, settings.max_endpoint_series)
    metrics.certificates = CertificateExpiry(
        {
            "identity": settings.identity_dir / CERTIFICATE,
            "authority": settings.identity_dir / AUTHORITIES,
            "traffic": settings.traffic_certificate_file,
            "admin": settings.admin_certificate_file,
            "etcd": settings.etcd_certificate_file,
            "redis": settings.redis_certificate_file,
        }
    )
    region_key = None
    if settings.redis_url is not None:
        region_key = SecretFile(settings.region_key_path, partial(load_region_keys, prefix=prefix))
    moved_s = settings.max_moved_s
    pool = UpstreamPool(tls.to_upstreams, max_moved_s=moved_s)
    peer_pool = UpstreamPool(tls.to_peers, verify=AgentCertificateCheck(identity.keyring), max_moved_s=moved_s)
    verify = ControlPlaneCertificateCheck(identity.keyring)
    control_plane_pool = UpstreamPool(tls.to_control_planes, verify=verify, max_moved_s=moved_s)
    rng = Random()
    access_log = _access_log(settings, rng, identity.keyring)
    exporter = _span_exporter(settings, metrics, tls.to_upstreams, rng)
    admin_keys = ApiKeys(settings.admin_api_keys_file) if settings.admin_api_keys_file is not None else None
    access = KeyAccess(admin_keys, identity.keyring, key_setting=f"{PREFIX}ADMIN_API_KEYS_FILE")
    pools = UpstreamPools(pool, peer_pool, control_plane_pool)
    metrics.connections.pools = {"endpoints": pool, "peers": peer_pool, "control_planes": control_plane_pool}
    async with AgentRuntime(
        settings,
        AgentCredentials(
            identity.keyring, region_key.secret if region_key is not None else None, redis_tls=tls.to_redis
        ),
        pools,
        metrics,
        rng,
    ) as runtime:
        via = f"1.1 {settings.name}.{settings.region}.penstock".encode()
        tracer = _tracer(settings, exporter, rng)
        recorder = OutcomeRecorder(settings.region, metrics, runtime.tally, access_log, tracer, runtime.ledger)
        recorder.versions = runtime.versions
        proxy = Proxy(runtime.router, pools, recorder, settings.limits, via=via, rng=rng)
        proxy.start()
        webhook_keys = None
        if settings.webhook_key_file is not None:
            webhook_keys = SecretFile(settings.webhook_key_file, read_webhook_keys)
            runtime.reloaded_files.append(("webhook_key", webhook_keys.files))
        keys = None if webhook_keys is None else webhook_keys.secret
        jobs = AgentJobs(runtime.agent, runtime.config, runtime.client_requests, proxy, rng, keys)
        jobs.start()
        runtime.reports.jobs = jobs.worker.report
        runtime.reloaded_files += [("identity", identity), ("admin_api_keys", access)]
        runtime.reloaded_files += [("tls", files) for files in tls.files]
        if region_key is not None:
            runtime.reloaded_files.append(("region_key", region_key.files))
        secrets = [part.files for part in (region_key, admin_keys, webhook_keys) if part is not None]
        watched: list[Watched] = [identity, *tls.files, *secrets, metrics.certificates, *runtime.watched_files]
        background = [keep_running("files", partial(keep_checking, watched))]
        background.append(keep_running("event loop delay", metrics.loop_delay.measure))
        if exporter is not None:
            background.append(keep_running("export of spans", exporter.run))
        readiness = runtime.readiness
        admin = AdminService(
            proxy,
            readiness,
            access,
            runtime.registrations,
            AdminPages(
                runtime.explain_service,
                runtime.update_metrics,
                lambda: {
                    "region": settings.region,
                    "agent": settings.name,
                    "in_flight": dict(proxy.in_flight()),
                    **runtime.status(),
                    "jobs": jobs.status(),
                    **runtime.exchanges.status(),
                },
            ),
        )
        traffic = TrafficService(
            runtime.client_requests, proxy, runtime.config, readiness, runtime.endpoints, jobs.routes
        )
        purges, bodies = runtime.config.cache_purges, StoredBodies(jobs.stores, rng)
        background.append(keep_running("large kept responses", bodies.run))
        traffic.keep_results(
            AgentResultCache(runtime.client_requests, proxy, runtime.exchanges.results, lambda: purges.purges, bodies)
        )
        copies = traffic.copies = RequestCopies(proxy, runtime.config, rng, settings.quality_token_file)
        peer = PeerService(runtime.forwarded_requests, proxy, runtime.config, runtime.responder, runtime.object_queries)
        listeners, urls = await _open_listeners(
            _ServiceListener("admin", settings.admin_listen, admin, tls.admin),
            _ServiceListener("traffic", settings.traffic_listen, traffic, tls.traffic, traffic_socket),
            _ServiceListener("peer", settings.peer_listen, peer, tls.peer),
            limits=limits,
            locator=runtime.locator,
            readiness=readiness,
        )
        metrics.connections.listeners = {name: listener.counts for name, listener in listeners.items()}
        served: list[Drainable] = [jobs, listeners["traffic"], listeners["peer"]]
        if settings.picker_listen is not None:
            picker_tls = None
            if tls.picker is not None:
                picker_tls = PickerTls(tls.picker, lambda: identity.keyring.identity.trust)
            picker, address = await _start_picker(settings, proxy, traffic, listeners["traffic"], picker_tls, readiness)
            served.append(picker)
            metrics.connections.listeners |= {"picker": picker.counts}
            urls["picker"] = f"{'grpc' if tls.picker is None else 'grpcs'}://{address}"
        _freeze_garbage_collector()
        admin_url = _reachable(urls["admin"], settings.advertise_peer_url)
        await runtime.announce(peer_url=urls["peer"], admin_url=admin_url, to_peers=tls.to_peers)
        print_line(msgspec.json.encode({"agent": settings.name, "region": settings.region, **urls}).decode())
        log.info("serving", **urls)
        await service_manager.ready()
        background.append(asyncio.create_task(service_manager.keep_watchdog(), name="watchdog"))

        await stop.wait()
        grace_s = shutdown_grace_s(settings, runtime.config.policy)
        log.info("draining", grace_s=grace_s, in_flight=sum(proxy.in_flight().values()))
        print_line(msgspec.json.encode({"stopping": settings.name, "within_s": grace_s + CLOSE_S}).decode())
        await service_manager.stopping(grace_s + CLOSE_S)
        await runtime.withdraw()
        await copies.stop()
        cut = await drain_all(served, grace_s, proxy.shut_down, hurry)
        listeners["admin"].stop_accepting()
        await listeners["admin"].drain(0.0)
        for task in background:
            task.cancel()
        proxy.stop()
        pool.close()
        peer_pool.close()
        control_plane_pool.close()
        if exporter is not None:
            await exporter.close()
        if access_log is not None:
            await asyncio.to_thread(access_log.close)
        log.info("stopped", cut=cut)


def shutdown_grace_s(settings: AgentSettings, policy: Policy | None) -> float:
    """Return the maximum time (s) for which requests may continue after SIGTERM."""
    if settings.shutdown_grace_s is not None:
        return settings.shutdown_grace_s
    limits = [] if policy is None else [model.timeouts for model in policy.models.values()]
    limits += [] if policy is None else [route.timeouts for route in policy.routes]
    return max(MIN_DEFAULT_GRACE_S, longest_total_s(limits, settings.limits.request_timeout_s))


def _stop_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return an event that is set by SIGTERM and SIGINT, and one that is set by a second SIGINT.

    A second SIGTERM has no effect: at Ctrl-C, a worker receives SIGINT from the terminal and SIGTERM from its
    supervisor.
    """
    stop, hurry, interrupted = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def interrupt() -> None:
        (hurry if interrupted.is_set() else stop).set()
        interrupted.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    return stop, hurry


class _ServiceListener(NamedTuple):
    """A service, and the address and certificate of its listener."""

    name: str
    listen: Address
    service: Application
    tls: ServerTls | None
    bound: socket.socket | None = None


async def _open_listeners(
    *services: _ServiceListener, limits: Mapping[str, Limits], locator: Locator, readiness: Readiness
) -> tuple[dict[str, Listener], dict[str, str]]:
    """Open a listener for each service. Returns the listeners and their URLs, both by name.

    Raises:
        BadSettings: an address cannot be bound.
    """
    listeners: dict[str, Listener] = {}
    urls: dict[str, str] = {}
    for name, listen, service, tls, bound in services:
        listener = listeners[name] = Listener(
            service,
            limits[name],
            tls=tls,
            trusts=locator.trusts,
            location_header=locator.header,
            for_processes=name == "peer",
        )
        try:
            if bound is not None or (name != "admin" and is_served(listen.host, listen.port)):
                await _wait_before_takeover(readiness)
            host, port = await listener.start(listen.host, listen.port, bound)
        except OSError as error:
            raise BadSettings(
                f"{PREFIX}{name.upper()}_LISTEN: cannot listen on {listen}: {error.strerror}; "
                "choose another address or port"
            ) from None
        urls[name] = f"{'http' if tls is None else 'https'}://{Address(host, port)}"
    return listeners, urls


async def _start_picker(
    settings: AgentSettings,
    proxy: Proxy,
    traffic: TrafficService,
    listener: Listener,
    tls: PickerTls | None,
    readiness: Readiness,
) -> tuple[PickerServer, Address]:
    """Start the endpoint picker, whose requests share the memory of `listener`; returns its address, too.

    Raises:
        BadSettings: the address cannot be bound.
    """
    state, listen = listener.state, settings.picker_listen
    assert listen is not None
    body_limits = BodyLimits(state.limits, state.bodies, traffic)
    parts = PickerParts(
        proxy,
        traffic,
        state.limits,
        state.bodies,
        body_limits,
        state.to_upstream,
        state.location_header,
        state.trusts,
        settings.picker_forwards,
        EarlyEnds(proxy.metrics.end_not_reported),
    )
    server = PickerServer(parts, readiness.not_ready_reason, tls)
    try:
        return server, await server.start(listen)
    except OSError as error:
        raise BadSettings(
            f"{PREFIX}PICKER_LISTEN: cannot listen on {listen}: {error.strerror}; choose another address or port"
        ) from None


def _reachable(admin_url: str, peer_url: str | None) -> str:
    """Return the URL of the admin listener, with the host of `peer_url` (if set) in place of a wildcard address."""
    scheme, _, address = admin_url.partition("://")
    host, _, port = address.rpartition(":")
    if peer_url is not None and host in ("0.0.0.0", "[::]"):
        return f"{scheme}://{Address(Address.parse(peer_url).host, int(port))}"
    return admin_url


async def _wait_before_takeover(readiness: Readiness) -> None:
    """Wait until this agent can serve the clients of the agent whose port it takes over, at most TAKEOVER_WAIT_S."""
    try:
        async with asyncio.timeout(TAKEOVER_WAIT_S):
            while not readiness.has_warmed_up():  # noqa: ASYNC110 (depends on several parts)
                await asyncio.sleep(TAKEOVER_CHECK_S)
    except TimeoutError:
        log.warning("taking over the port without being ready", reason=readiness.not_ready_reason())


def _limits_by_listener(limits: Limits) -> dict[str, Limits]:
    """Return the limits of each listener; connections are bounded by the available file descriptors."""
    descriptors = raise_descriptor_limit()
    shares = shares_of(descriptors)
    bounded = {}
    for name, share in shares._asdict().items():
        wanted = ADMIN_LIMITS if name == "admin" else limits
        connections = min(wanted.max_connections, share)
        bounded[name] = msgspec.structs.replace(wanted, max_connections=connections)
        if name == "peer":
            # One peer may forward the whole overflow of a region.
            per_address = wanted.max_connections_per_address or connections
            bounded[name] = msgspec.structs.replace(bounded[name], max_connections_per_address=per_address)
    if shares.traffic < limits.max_connections:
        log.warning(
            "connections limited by file descriptors; raise the hard limit of open files (ulimit -Hn)",
            open_files=descriptors,
            **{name: each.max_connections for name, each in bounded.items()},
        )
    return bounded


def _freeze_garbage_collector() -> None:
    """Exclude the objects created at the start from garbage collection, and collect less often.

    The start-up objects live as long as the process. Requests create no reference cycles, and with the default
    threshold of 700 objects the collector would mainly traverse requests in flight.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_PER_COLLECTION)


def _span_exporter(settings: AgentSettings, metrics: AgentMetrics, tls: ClientTls, rng: Random) -> SpanExporter | None:
    if settings.otlp_endpoint is None:
        return None
    resource = {
        "service.namespace": "penstock",
        "service.name": "penstock-agent",
        "service.instance.id": f"{settings.region}/{settings.name}",
        "penstock.region": settings.region,
    }
    return SpanExporter(Address.parse(settings.otlp_endpoint), UpstreamPool(tls), metrics, resource, rng)


def _tracer(settings: AgentSettings, exporter: SpanExporter | None, rng: Random) -> Tracer | None:
    if exporter is None:
        return None
    return Tracer(settings.region, settings.trace_share, settings.trace_slow_s, exporter, rng)


def _access_log(settings: AgentSettings, rng: Random, keyring: Keyring) -> AccessLog | None:
    file = settings.access_log_file
    if file is None:
        return None
    try:
        return AccessLog(file, settings.access_log_share, rng, LogSigner(settings.region, settings.name, keyring))
    except OSError as error:
        raise BadSettings(
            f"{PREFIX}ACCESS_LOG_FILE: {file}: {error.strerror}; name a file in a directory that the agent may write to"
        ) from None

"""`penstock serve`: builds the control plane from its settings, runs it, and resigns leadership at shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
from functools import partial
from pathlib import Path

import httpx
import structlog
import uvicorn
import uvloop
from fastapi import FastAPI

from adapters.access.api_keys import ApiKeys
from adapters.descriptor_limit import raise_descriptor_limit
from adapters.etcd.etcd_connection import Tls, tls_to
from adapters.etcd.etcd_store import EtcdStore
from adapters.files.certificate_expiry import CertificateExpiry
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY, REMEDY, IdentityFiles
from adapters.files.secret_file import BadSecret, read_file, read_secret
from adapters.files.secret_reload import SecretFile
from adapters.files.watched_files import Watched, keep_checking
from adapters.garbage_collection import uncollected
from adapters.geoip_lookup import GeoIpLookup
from adapters.loop_errors import report_loop_error
from adapters.loopback import is_loopback
from adapters.object_store.store_opening import open_store
from adapters.service_manager import ServiceManager
from adapters.store.members import Member
from adapters.store.signed_store import SignedStore
from adapters.tls_contexts import ClientTls, ServerTls
from control_plane.api.serving.forwarded_for import behind_proxies, is_proxy
from control_plane.api.serving.http_server import HttpServer
from control_plane.api.serving.open_connections import OpenConnections, limits_within
from control_plane.audit.audit_retention import AuditRetention
from control_plane.auth.admin_token import load_admin_token
from control_plane.auth.authentication import Access
from control_plane.auth.code_flow import CodeFlow, OidcClient
from control_plane.auth.jwks import Jwks
from control_plane.auth.oidc import Oidc, OidcTrust
from control_plane.auth.oidc_provider import OidcProvider
from control_plane.daemon import ControlPlane
from control_plane.policy.folder import FolderReader
from control_plane.policy.source.readers import BundleReader
from control_plane.policy.source.repository import RepositoryReader
from control_plane.policy.source.webhook_secret import load_webhook_secret
from control_plane.settings import DROP_AUDIT, PREFIX, REDIRECT_PATH, ControlPlaneSettings, HostPort
from penstock.wire.identity import ProcessRole

DRAIN_S = 2
"""Time (s) that requests in progress have to complete at shutdown."""

MIN_CLIENT_SECRET_BYTES = 16

_log = structlog.get_logger(__name__)


class CannotListen(Exception):
    """The listen address cannot be bound; the message contains the reason and the remedy."""


def serve(settings: ControlPlaneSettings) -> None:
    """Run a control plane until SIGTERM or SIGINT.

    Raises:
        BadSecret, BadApiKeys: a secret file is invalid.
        BadTlsFiles: the API's certificate or key, or the authorities' file, is invalid.
        BadGeoDatabase: the GeoIP database is invalid.
        CannotListen: the address is in use or not local.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: ControlPlaneSettings) -> None:
    asyncio.get_running_loop().set_exception_handler(report_loop_error)
    if settings.allow_plaintext:
        links = sorted(settings.allow_plaintext)
        _log.warning("connections may be unencrypted", links=links, setting=f"{PREFIX}ALLOW_PLAINTEXT")
    prefix = settings.etcd_prefix
    identity = IdentityFiles(settings.identity_dir, ProcessRole.CONTROL_PLANE, settings.name, prefix=prefix)
    http = httpx.AsyncClient()
    admin_token = SecretFile(settings.admin_token_file, load_admin_token)
    oidc = _oidc(settings, http)
    api_keys = ApiKeys(settings.api_keys_file) if settings.api_keys_file is not None else None
    access = Access(admin_token.secret, api_keys, oidc, identity.keyring)
    api_tls, peer_tls = tls_of_api(settings), tls_to_peers(settings)
    for tls in (api_tls, peer_tls):
        if tls is not None:
            tls.presented.follow(identity)
    webhook_secret = None
    if settings.policy_webhook_secret_file is not None:
        webhook_secret = SecretFile(settings.policy_webhook_secret_file, load_webhook_secret)
    geoip = GeoIpLookup(settings.geoip_file)
    listener = _listen(settings.listen)
    scheme = "https" if api_tls is not None else "http"
    url = settings.advertise_url or f"{scheme}://{HostPort(settings.listen.host, listener.getsockname()[1])}"
    sign_in = _sign_in(settings, oidc, http, url) if oidc is not None else None
    etcd = EtcdStore(settings.etcd_endpoints, tls=tls_to_etcd(settings))
    store = SignedStore(etcd, identity.keyring, prefix=settings.etcd_prefix)
    with uncollected():
        control_plane = ControlPlane(
            store,
            Member(settings.name, url),
            keyring=identity.keyring,
            policy_reader=_reader(settings),
            leader_lease_s=settings.leader_lease_s,
            tls=peer_tls,
        )
        control_plane.metrics.certificates = CertificateExpiry(
            {
                "identity": settings.identity_dir / CERTIFICATE,
                "authority": settings.identity_dir / AUTHORITIES,
                "api": settings.tls_certificate_file,
                "etcd": settings.etcd_certificate_file,
            }
        )
        if settings.audit_retention_days is not None:
            archive = settings.audit_archive
            opened = None if archive is None or archive == DROP_AUDIT else partial(open_store, archive)
            retention_s = settings.audit_retention_days * 86_400.0
            control_plane.audit_retention = AuditRetention(control_plane.audit, settings.name, retention_s, opened)
        browser_secret = read_file(settings.identity_dir / PRIVATE_KEY, "private key", REMEDY)
        app = control_plane.create_api(
            access,
            geoip,
            webhook_secret=webhook_secret.secret if webhook_secret is not None else None,
            browser_secret=browser_secret,
            sign_in=sign_in,
        )
        # Generates the OpenAPI description, which takes 0.1 s, or seconds on a busy machine, before the first request.
        app.openapi()
    descriptors = raise_descriptor_limit()
    connections = OpenConnections(
        limits_within(descriptors),
        asyncio.get_running_loop().time,
        trusts=partial(is_proxy, settings.trusted_proxies),
    )
    server = HttpServer(_http(settings, app), connections, tls=api_tls)
    parts = (api_tls, peer_tls, admin_token, webhook_secret, api_keys)
    watched: list[Watched] = [identity, *(part.files for part in parts if part is not None)]
    watched.append(control_plane.metrics.certificates)
    if etcd.files is not None:
        watched.append(etcd.files)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    leading = await control_plane.start()
    serving = asyncio.create_task(server.serve(listener), name="http server")
    stopping = asyncio.create_task(stop.wait(), name="signal")
    background = [
        asyncio.create_task(geoip.keep_reloading(), name="geoip"),
        asyncio.create_task(keep_checking(watched), name="files"),
        asyncio.create_task(control_plane.metrics.internal.loop_delay.measure(), name="event loop delay"),
    ]
    _log.info("listening", name=settings.name, url=url)
    service_manager = ServiceManager.from_environment()
    await service_manager.ready()
    background.append(asyncio.create_task(service_manager.keep_watchdog(), name="watchdog"))
    try:
        done, _ = await asyncio.wait({leading, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await service_manager.stopping()
        await control_plane.stop()
        server.stop()
        await asyncio.wait({serving})
        for task in (stopping, *background):
            task.cancel()
        await http.aclose()
        await store.close()
    for task in done - {stopping}:
        # Both tasks run until shutdown unless they fail; a process that cannot lead or serve must be restarted.
        task.result()
        raise RuntimeError(f"the {task.get_name()} ended")
    _log.info("stopped", name=settings.name)


def _http(settings: ControlPlaneSettings, app: FastAPI) -> uvicorn.Config:
    """Create the configuration of the API server."""
    return uvicorn.Config(
        behind_proxies(app, [str(network) for network in settings.trusted_proxies]),
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
        # By default uvicorn trusts the forwarding headers of every client on this machine.
        proxy_headers=False,
    )


def _oidc(settings: ControlPlaneSettings, http: httpx.AsyncClient) -> Oidc | None:
    """Create the authentication by tokens of the identity provider; None if the settings name no provider."""
    if not (settings.oidc_issuer and settings.oidc_audience and settings.oidc_jwks_url):
        return None
    trust = OidcTrust(
        issuer=settings.oidc_issuer,
        audience=settings.oidc_audience,
        roles=settings.oidc_roles,
        role_claim=settings.oidc_role_claim,
        regions_claim=settings.oidc_regions_claim,
        name_claim=settings.oidc_name_claim,
    )
    return Oidc(trust, Jwks(settings.oidc_jwks_url, http))


def _sign_in(settings: ControlPlaneSettings, oidc: Oidc, http: httpx.AsyncClient, url: str) -> CodeFlow | None:
    """Create the sign-in of the page at the identity provider; None without `oidc_client_id`."""
    if settings.oidc_client_id is None:
        return None
    secret_file = settings.oidc_client_secret_file
    secret = load_client_secret(secret_file) if secret_file is not None else None
    redirect_url = settings.oidc_redirect_url or f"{url}{REDIRECT_PATH}"
    client = OidcClient(settings.oidc_client_id, redirect_url, secret, settings.oidc_scopes)
    return CodeFlow(client, OidcProvider(oidc.issuer, http), oidc.for_audience(client.client_id), http)


def load_client_secret(path: Path) -> str:
    """Return the secret of the page as a client of the identity provider.

    Raises:
        BadSecret: the file cannot be used.
    """
    secret = read_secret(path, "OIDC client secret", min_bytes=MIN_CLIENT_SECRET_BYTES)
    try:
        return secret.decode()
    except UnicodeDecodeError:
        raise BadSecret(f"{path}: the OIDC client secret is not UTF-8; copy it from the provider again") from None


def tls_of_api(settings: ControlPlaneSettings) -> ServerTls | None:
    """Return the TLS configuration of the HTTP API; None for plain HTTP: on loopback, or by `allow_plaintext`."""
    own = settings.identity_dir
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    if certificate is None or key is None:
        may_be_plain = is_loopback(settings.listen.host) or "api" in settings.allow_plaintext
        if may_be_plain and not settings.require_client_certificate:
            return None
        certificate, key = own / CERTIFICATE, own / PRIVATE_KEY
    return ServerTls(certificate, key, own / AUTHORITIES, require_client=settings.require_client_certificate)


def tls_to_peers(settings: ControlPlaneSettings) -> ClientTls:
    """Return the TLS configuration of connections to the other control planes."""
    own, ca_file = settings.identity_dir, settings.control_plane_ca_file
    further_ca = own / AUTHORITIES if ca_file is None else None
    return ClientTls(ca_file, own / CERTIFICATE, own / PRIVATE_KEY, further_ca=further_ca)


def tls_to_etcd(settings: ControlPlaneSettings) -> Tls | None:
    """Return the TLS files of connections to etcd; None for connections without TLS."""
    return tls_to(
        settings.etcd_endpoints,
        ca=settings.etcd_ca_file,
        certificate=settings.etcd_certificate_file,
        key=settings.etcd_key_file,
        identity_dir=settings.identity_dir,
        allow_plaintext="etcd" in settings.allow_plaintext,
    )


def _reader(settings: ControlPlaneSettings) -> BundleReader:
    """Create the policy reader; the settings have exactly one of the two sources."""
    if settings.policy_repository is None:
        assert settings.policy_dir is not None
        return FolderReader(settings.policy_dir)
    return RepositoryReader(
        settings.policy_repository.get_secret_value(),
        settings.policy_ref,
        settings.policy_path,
        poll_s=settings.policy_poll_s,
        ahead=True,
    )


def _listen(address: HostPort) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=512)
    except OSError as error:
        # Python appends the address as a tuple to the error text; the message below names it already.
        reason = str(error.strerror).partition(" (while")[0]
        raise CannotListen(f"cannot listen on {address}: {reason}; choose another address or port") from None

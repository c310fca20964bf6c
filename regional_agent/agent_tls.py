"""The TLS files of an agent: of its listeners, of the endpoint picker, and of its connections."""

from __future__ import annotations

from pathlib import Path

from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY, IdentityFiles
from adapters.loopback import is_loopback
from adapters.tls_contexts import ClientTls, ServerTls
from regional_agent.config.settings import AgentSettings


class AgentTls:
    """The TLS contexts of all listeners and connection pools."""

    def __init__(self, settings: AgentSettings, identity: IdentityFiles | None) -> None:
        """Read the files.

        Args:
            identity: no other certificate is presented in place of this one; None for a check of the files.

        Raises:
            BadTlsFiles: a file is unusable.
        """
        own = settings.identity_dir
        certificate, key, authorities = own / CERTIFICATE, own / PRIVATE_KEY, own / AUTHORITIES
        self.traffic = _traffic_tls(settings)
        self.peer = None if "peers" in settings.allow_plaintext else ServerTls(certificate, key, authorities)
        self.admin = _admin_tls(settings)
        self.picker = _picker_tls(settings, certificate, key, authorities)
        self.to_upstreams = ClientTls(settings.upstream_ca_file, further_ca=authorities)
        self.to_control_planes = ClientTls(settings.upstream_ca_file, certificate, key, further_ca=authorities)
        self.to_peers = ClientTls(authorities, certificate, key, check_hostname=False)
        redis_pair = settings.redis_certificate_file, settings.redis_key_file
        if redis_pair == (None, None):
            redis_pair = certificate, key
        further_ca = authorities if settings.redis_ca_file is None else None
        self.to_redis = ClientTls(settings.redis_ca_file, *redis_pair, further_ca=further_ca, alpn=())
        parts: tuple[ServerTls | ClientTls | None, ...] = (
            self.traffic,
            self.peer,
            self.admin,
            self.to_upstreams,
            self.to_control_planes,
            self.to_peers,
            self.to_redis,
            self.picker,
        )
        self.files = [part.files for part in parts if part is not None]
        for part in parts:
            if part is not None and identity is not None:
                part.presented.follow(identity)


def _traffic_tls(settings: AgentSettings) -> ServerTls | None:
    certificate, key = settings.traffic_certificate_file, settings.traffic_key_file
    if certificate is None or key is None:
        return None
    return ServerTls(certificate, key, settings.traffic_client_ca_file)


def _admin_tls(settings: AgentSettings) -> ServerTls | None:
    """Return the TLS files of the admin listener; None if it serves plain HTTP.

    Without a configured certificate, and unless client certificates are required, the listener serves plain HTTP on a
    loopback address or if `allow_plaintext` has `admin`.
    """
    certificate, key, own = settings.admin_certificate_file, settings.admin_key_file, settings.identity_dir
    if certificate is None or key is None:
        may_be_plain = is_loopback(settings.admin_listen.host) or "admin" in settings.allow_plaintext
        if may_be_plain and not settings.admin_require_certificate:
            return None
        certificate, key = own / CERTIFICATE, own / PRIVATE_KEY
    return ServerTls(certificate, key, own / AUTHORITIES, require_client=settings.admin_require_certificate)


def _picker_tls(settings: AgentSettings, certificate: Path, key: Path, authorities: Path) -> ServerTls | None:
    """Return the TLS files of the endpoint picker; None if there is none, or it serves without TLS."""
    listen = settings.picker_listen
    if listen is None or is_loopback(listen.host) or "picker" in settings.allow_plaintext:
        return None
    return ServerTls(certificate, key, authorities, alpn=["h2"])

"""What the parts of an agent derive from its settings."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from random import Random

from adapters.configuration.settings_loader import BadSettings
from adapters.etcd.etcd_connection import Tls, tls_to
from adapters.files.secret_file import read_secret
from adapters.files.watched_files import WatchedFiles
from penstock.health.outlier_ejection import EjectionRules
from penstock.wire.region_key import RegionKeys
from regional_agent.config.settings import PREFIX, AgentSettings
from regional_agent.endpoints.endpoint import OutlierDetection
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.shared_load.redis_script import RedisAddress, RegionRedis


def make_state_dir(state_dir: Path) -> None:
    """Create the state directory; raises BadSettings."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSettings(
            f"{PREFIX}STATE_DIR: {state_dir}: {error.strerror}; name a directory that the agent may create"
        ) from None


def redis_password(file: Path) -> WatchedFiles[bytes | None]:
    """Return the password for Redis in a file; None as long as the file was never usable."""
    return WatchedFiles((file,), lambda: read_secret(file, "password for Redis", min_bytes=1), fallback=None)


def region_redis(
    settings: AgentSettings,
    keys: RegionKeys | None,
    tls: Callable[[], ssl.SSLContext] | None,
    password: WatchedFiles[bytes | None] | None,
) -> RegionRedis | None:
    """Return the Redis of the region; None if the settings name none. Raises ValueError if it lacks `keys`."""
    if settings.redis_url is None:
        return None
    if keys is None:
        raise ValueError("agents that share load through Redis need the key of their region")
    address = RedisAddress(settings.redis_url.get_secret_value(), tls, password)
    return RegionRedis(address, keys, settings.region)


def tls_to_etcd(settings: AgentSettings) -> Tls | None:
    """Return the TLS files for connections to etcd; None for connections without TLS."""
    return tls_to(
        settings.etcd_endpoints,
        ca=settings.etcd_ca_file,
        certificate=settings.etcd_certificate_file,
        key=settings.etcd_key_file,
        identity_dir=settings.identity_dir,
        allow_plaintext="etcd" in settings.allow_plaintext,
    )


def endpoint_settings(settings: AgentSettings, rng: Random) -> EndpointSettings:
    """Return the settings of the endpoints; `rng` adds jitter to the times of ejections."""
    rules = EjectionRules(
        server_errors_count=settings.server_errors_eject,
        base_s=settings.ejection_s,
        max_ejected_share=settings.max_ejected_share,
        suspect_after_s=settings.suspect_after_s,
    )
    return EndpointSettings(
        settings.endpoints_file,
        settings.zone,
        OutlierDetection(rules, settings.warm_up_s, rng=rng),
        settings.upstream_ca_file,
        settings.state_dir,
    )

"""Checks of a host by the configuration file of a daemon: files, certificates, clocks, and whatever it connects to."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import redis
import yaml
from cryptography import x509

from adapters.etcd.etcd_connection import Tls, tls_to
from adapters.etcd.etcd_member import member_state
from adapters.files.identity_files import CERTIFICATE
from adapters.files.plain_file import UnusableFile, read_plain_file
from adapters.files.secret_file import read_secret
from adapters.servers.errors import MissingBinary
from adapters.servers.process import find_script
from adapters.store.config_store import StoreUnavailable
from control_plane.doctor.findings import Finding, Severity, of_certificate, of_clocks, ok, problem, warning

MAX_FILE_BYTES = 256 * 1024

MAX_ENDPOINTS_BYTES = 16 * 1024 * 1024

ENGINES_AT_ONCE = 32

TIMEOUT_S = 3.0
"""Time limit of one check over the network."""

CHECK_TIMEOUT_S = 60.0
"""Time limit of the daemon's own check of its files."""

MIN_DESCRIPTORS = 65_536
"""Open files below which a busy daemon can run out of connections."""

MIN_ETCD = (3, 5, 5)
"""Older versions can lose a confirmed write when a member is killed (etcd issues 13766 and 14370)."""

ETCD_QUOTA_BYTES = 2 * 1024**3
"""Default space quota of etcd; a full database accepts no writes."""

AGENT = ("penstock-agent",)
CONTROL_PLANE = ("penstock", "serve")


def host_findings(daemon: Sequence[str], config: Path) -> list[Finding]:
    """Check what a daemon with this configuration file needs on this host. Blocks.

    Args:
        daemon: AGENT or CONTROL_PLANE.
        config: the configuration file.
    """
    name = daemon[0] if daemon is AGENT else "control plane"
    try:
        program = [find_script(daemon[0]), *daemon[1:], "--config", str(config)]
        checked = _run([*program, "--check-config"])
        printed = _run([*program, "--print-config"])
    except (MissingBinary, OSError, subprocess.TimeoutExpired) as error:
        return [problem(name, str(error), "install penstock in the environment of this command")]
    lines = [line for line in (checked.stderr or checked.stdout).splitlines() if line.strip()]
    if checked.returncode != 0:
        found = [problem(f"{name} {config}", line, "correct it") for line in lines]
    else:
        found = [ok(f"{name} {config}", "settings and files are valid")]
    found += _of_descriptors()
    if printed.returncode != 0:
        return found
    settings = yaml.safe_load(printed.stdout) or {}
    found += _of_certificates(settings)
    found += _of_etcd(settings)
    for url in settings.get("control_plane_urls") or ():
        found += [_of_address("control plane", url), *of_clock(url, time.time())]
    redis_url = _redis_url(config) if settings.get("redis_url") else None
    if redis_url is not None:
        found.append(_of_redis(redis_url, settings))
    with ThreadPoolExecutor(ENGINES_AT_ONCE) as threads:
        found += threads.map(lambda url: _of_address("engine", url), _engine_urls(settings))
    return found


def _redis_url(config: Path) -> str | None:
    """Return the address of Redis, which printed settings do not contain, as it may contain a password."""
    url = (
        os.environ.get("PENSTOCK_AGENT_REDIS_URL")
        or yaml.safe_load(read_plain_file(config, MAX_FILE_BYTES).content)["redis_url"]
    )
    return str(url) if url else None


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=CHECK_TIMEOUT_S)


def _of_certificates(settings: Mapping[str, Any]) -> Iterator[Finding]:
    files = [settings.get(f"{name}_certificate_file") for name in ("tls", "traffic", "etcd", "redis")]
    if settings.get("identity_dir"):
        files.append(str(Path(settings["identity_dir"]) / CERTIFICATE))
    for file in dict.fromkeys(filter(None, files)):
        # A file that cannot be read is a finding of --check-config.
        with suppress(UnusableFile, OSError, ValueError):
            certificate = x509.load_pem_x509_certificate(read_plain_file(Path(file), MAX_FILE_BYTES).content)
            yield from of_certificate(f"certificate {file}", certificate.not_valid_after_utc.timestamp(), time.time())


def _engine_urls(settings: Mapping[str, Any]) -> list[str]:
    """Return the URLs in the file of endpoints; none if it cannot be read, which is a finding of --check-config."""
    try:
        entries = yaml.safe_load(read_plain_file(Path(settings["endpoints_file"]), MAX_ENDPOINTS_BYTES).content) or []
        return list(dict.fromkeys(str(entry["url"]) for entry in entries if "url" in entry))
    except (UnusableFile, OSError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return []


def of_clock(url: str, now: float) -> Iterator[Finding]:
    """Compare the clock of a control plane, by the header `Date` of a response, with this machine's."""
    # The certificate is not verified, because no request with a secret is sent.
    with suppress(httpx.HTTPError, TypeError, ValueError):
        date = httpx.get(f"{url}/readyz", timeout=TIMEOUT_S, verify=False).headers.get("date")
        yield from of_clocks(url, parsedate_to_datetime(date).timestamp(), now)


def _of_redis(url: str, settings: Mapping[str, Any]) -> Finding:
    """Connect as the agent does, and authenticate."""
    found = _of_address("redis", url)
    if found.severity is not Severity.OK:
        return found
    options: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    if urlsplit(url).scheme == "rediss":
        files = ("redis_ca_file", "redis_certificate_file", "redis_key_file")
        names = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
        options |= {name: settings[file] for name, file in zip(names, files, strict=True) if settings.get(file)}
    try:
        if settings.get("redis_password_file"):
            options["password"] = read_secret(Path(settings["redis_password_file"]), "password for Redis", min_bytes=1)
        with redis.Redis.from_url(url, **options) as client:
            client.ping()
    except (redis.RedisError, OSError, UnusableFile) as error:
        remedy = "check user and password in redis_url or redis_password_file, and the certificates of both"
        return problem(found.subject, f"refuses this agent: {error}", remedy)
    return ok(found.subject, "answers")


def _of_descriptors() -> Iterator[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MIN_DESCRIPTORS:
        remedy = f"raise the limit of open files to {MIN_DESCRIPTORS}: LimitNOFILE= in the unit, or ulimit -n"
        yield warning("open files", f"the limit of this shell is {hard}", remedy)


def _of_etcd(settings: Mapping[str, Any]) -> Iterator[Finding]:
    endpoints = [str(endpoint) for endpoint in settings.get("etcd_endpoints") or ()]
    for endpoint in endpoints:
        subject = f"etcd {endpoint}"
        try:
            state = member_state(endpoint, _etcd_tls(settings, endpoints), TIMEOUT_S)
        except (StoreUnavailable, ValueError, OSError) as error:
            remedy = "check that it runs, the way to it, and that its certificate and this one are of one authority"
            yield problem(subject, str(error), remedy)
            continue
        if not state.has_leader:
            yield problem(subject, "its cluster has no leader", "start the other members: a majority must run")
        elif state.database_bytes > ETCD_QUOTA_BYTES * 0.8:
            yield warning(subject, f"its database has {state.database_bytes / 1e9:.1f} GB", "compact, defragment")
        elif tuple(int(part) for part in state.version.split("-")[0].split(".")) < MIN_ETCD:
            remedy = "upgrade: 3.5.4 and older can lose a confirmed write when a member is killed"
            yield warning(subject, f"runs version {state.version}", remedy)
        else:
            yield ok(subject, f"answers; version {state.version}, {state.database_bytes / 1e6:.0f} MB")


def _etcd_tls(settings: Mapping[str, Any], endpoints: Sequence[str]) -> Tls | None:
    def path(name: str) -> Path | None:
        return Path(settings[name]) if settings.get(name) else None

    return tls_to(
        endpoints,
        ca=path("etcd_ca_file"),
        certificate=path("etcd_certificate_file"),
        key=path("etcd_key_file"),
        identity_dir=Path(settings["identity_dir"]),
        allow_plaintext="etcd" in (settings.get("allow_plaintext") or ()),
    )


def _of_address(what: str, url: str) -> Finding:
    """Connect to the host and port of a URL, with a TLS handshake if it is encrypted; no request is sent."""
    parts = urlsplit(url)
    subject = f"{what} {parts.scheme}://{parts.hostname}:{parts.port}"
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 6379)
    try:
        with socket.create_connection((host, port), timeout=TIMEOUT_S) as connection:
            if parts.scheme in ("https", "rediss"):
                # The daemon verifies the server by its own settings; here only the handshake matters.
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                with context.wrap_socket(connection, server_hostname=host):
                    pass
    except ssl.SSLError as error:
        return problem(subject, f"TLS fails: {error.reason or error}", "check the server's certificate and port")
    except OSError as error:
        why = error.strerror or str(error) or "timed out"
        return problem(subject, f"cannot be reached: {why}", "check that it runs, and the firewall between")
    return ok(subject, "accepts connections")

"""Checks the files and directories that an agent uses: `penstock-agent --check-config`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from adapters.access.api_keys import read_api_keys
from adapters.configuration.config_check import can_write_in, problems_of
from adapters.configuration.settings_loader import BadSettings
from adapters.files.identity_files import IdentityFiles, load_region_keys
from adapters.files.plain_file import UnusableFile
from adapters.files.secret_file import read_secret
from adapters.geoip_lookup import GeoIpLookup
from adapters.tls_contexts import ClientTls
from penstock.wire.identity import ProcessRole
from regional_agent.agent_tls import AgentTls
from regional_agent.config.settings import AgentSettings
from regional_agent.config.settings_parts import tls_to_etcd
from regional_agent.endpoints.endpoint_file import parse_endpoints, read_endpoint_file
from regional_agent.endpoints.endpoint_registration import load_tokens
from regional_agent.jobs.webhooks.webhook_keys import read_webhook_keys
from regional_agent.workers.worker_settings import worker_settings


def config_problems(settings: AgentSettings) -> list[str]:
    """Return the problems of all files and directories that the settings name."""
    if settings.workers == 1:
        return _problems(settings)
    found = [_problems(worker_settings(settings, number)) for number in range(1, settings.workers + 1)]
    return list(dict.fromkeys(problem for problems in found for problem in problems))


def _problems(settings: AgentSettings) -> list[str]:
    checks: list[Callable[[], object]] = [
        lambda: IdentityFiles(settings.identity_dir, ProcessRole.AGENT, settings.name, settings.region),
        lambda: AgentTls(settings, None),
        lambda: _check_etcd_files(settings),
        lambda: parse_endpoints(read_endpoint_file(settings.endpoints_file), settings.endpoints_file),
        lambda: GeoIpLookup(settings.geoip_file),
        lambda: _check_writable(settings.state_dir, "name a directory that the agent may write to, or create"),
    ]
    if settings.redis_url is not None:
        checks.append(lambda: load_region_keys(settings.region_key_path))
    files: list[tuple[Path | None, Callable[[Path], object]]] = [
        (settings.redis_password_file, lambda path: read_secret(path, "password for Redis", min_bytes=1)),
        (settings.registration_token_file, load_tokens),
        (settings.wake_token_file, lambda path: read_secret(path, "token of wake webhooks", min_bytes=1)),
        (settings.quality_token_file, lambda path: read_secret(path, "token of quality hooks", min_bytes=1)),
        (settings.webhook_key_file, read_webhook_keys),
        (settings.admin_api_keys_file, read_api_keys),
        (settings.access_log_file, lambda path: _check_writable(path.parent, "name a file in another directory")),
    ]
    checks += [partial(check, path) for path, check in files if path is not None]
    return problems_of(checks, BadSettings, UnusableFile)


def _check_etcd_files(settings: AgentSettings) -> None:
    files = tls_to_etcd(settings)
    if files is not None:
        ClientTls(files.ca_path, files.cert_path, files.key_path)


def _check_writable(directory: Path, remedy: str) -> None:
    if not can_write_in(directory):
        raise BadSettings(f"{directory}: cannot be written; {remedy}")

"""The directory of a quickstart: written once, then used as it is.

The files are those of a production fleet: a bundle of policy files, one YAML file of settings per daemon, one directory
per certificate. Later runs add engines and models, and change nothing else, so that edits stay.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from adapters.files.authority_files import create_authority, issue_identity, load_authority
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.files.plain_file import read_plain_file
from adapters.servers.free_ports import LOOPBACK, free_ports, is_free
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.quickstart.places import Place
from control_plane.quickstart.starter_bundle import models_file, starter_bundle, trial_rollout_file
from penstock.wire.identity import ProcessRole, SpiffeId

FLEET = "quickstart"
CONTROL_PLANE = "control-plane"

MAX_FILE_BYTES = 1 << 20

SLOTS = 32
"""Requests that an engine runs at once, unless the file of endpoints says otherwise."""

_ENDPOINTS_HEAD = "# `slots`: requests that the engine runs at once, such as vLLM's --max-num-seqs.\n"

DEFAULT_PORTS = {
    "api": 8400,
    "traffic": 8080,
    "peers": 8081,
    "admin": 8082,
    "etcd": 2379,
    "etcd peers": 2380,
    "etcd health": 2381,
    "redis": 6379,
}
"""Ports of the processes; a port in use is replaced by a free one when the directory is written."""


class UnusableDirectory(Exception):
    """The directory cannot be used for a quickstart; the message states the remedy."""


class Engine(NamedTuple):
    """A model server."""

    url: str
    """`http://host:port`, and the path before that of its API, if there is one."""
    models: tuple[str, ...]
    key_file: str = ""
    """Absolute path of the file with the key that the engine requires; empty for none."""
    presets: tuple[str, ...] = ()
    """Presets of the APIs that it serves besides OpenAI's."""


class RegionDir(NamedTuple):
    """Paths and ports of a quickstart."""

    path: Path
    region: str
    ports: Mapping[str, int]
    host: str = LOOPBACK
    """Address at which other machines reach the control plane, etcd and the agent; loopback for a single machine."""

    @property
    def has_control_plane(self) -> bool:
        """Whether the control plane and etcd run here, and not at the region that this one joined."""
        return self.control_plane_settings.exists()

    @property
    def authority(self) -> Path:
        """Directory of the certificate authority."""
        return self.path / "authority"

    @property
    def etcd_identity(self) -> Path:
        """Directory of etcd's certificate; only for access from other machines."""
        return self.path / "etcd-identity"

    @property
    def policy(self) -> Path:
        """Folder of the policy bundle."""
        return self.path / "policy"

    @property
    def control_plane_settings(self) -> Path:
        """Settings of the control plane."""
        return self.path / "control-plane.yaml"

    @property
    def agent_settings(self) -> Path:
        """Settings of the agent."""
        return self.path / "agent.yaml"

    @property
    def endpoints(self) -> Path:
        """The agent's file of endpoints."""
        return self.path / "endpoints.yaml"

    @property
    def api_key(self) -> Path:
        """File with the API key of the tenant."""
        return self.path / "secrets" / "api.key"

    def read_api_key(self) -> str:
        """Return the API key of the tenant; raises OSError."""
        return _text_of(self.api_key).strip()

    @property
    def admin_token(self) -> Path:
        """File with the admin token."""
        return self.path / "secrets" / "admin.token"

    @property
    def agents_key(self) -> Path:
        """File with the operator's key for the agent's admin listener, such as for `penstock jobs`."""
        return self.path / "secrets" / "agents.key"

    @property
    def agent_keys(self) -> Path:
        """The agent's file of such keys, which has their digests."""
        return self.path / "agent-keys.yaml"

    def relative(self, path: Path) -> str:
        """Return a path from the directory, as settings name it: the directory may be moved."""
        return str(path.relative_to(self.path))

    @property
    def base_url(self) -> str:
        """URL of the OpenAI API."""
        return f"http://{LOOPBACK}:{self.ports['traffic']}/v1"

    @property
    def api_url(self) -> str:
        """URL of the control plane's API; the page for operators is at `/ui`."""
        return f"{'http' if self.host == LOOPBACK else 'https'}://{self.host}:{self.ports['api']}"

    @property
    def etcd_endpoint(self) -> str:
        """host:port of etcd."""
        return f"{self.host}:{self.ports['etcd']}"


def _text_of(file: Path) -> str:
    """Return the text of a file; raises OSError, or UnicodeDecodeError, which is a ValueError."""
    return read_plain_file(file, MAX_FILE_BYTES).content.decode()


def open_region_dir(path: Path) -> RegionDir | None:
    """Return the quickstart of a directory; None if there is none.

    Raises:
        UnusableDirectory: the directory has other files, or its settings cannot be read.
    """
    file = path / "ports.yaml"
    try:
        if not file.exists():
            if path.exists() and any(path.iterdir()):
                raise UnusableDirectory(f"{path} is not empty and has no quickstart; name another with --dir")
            return None
    except OSError as error:
        raise UnusableDirectory(f"{path}: {error.strerror}; name a directory with --dir") from None
    try:
        content = yaml.safe_load(_text_of(file))
        ports = {name: int(content[name]) for name in DEFAULT_PORTS}
        return RegionDir(path, str(content["region"]), ports, str(content["host"]))
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise UnusableDirectory(f"{file}: cannot be read ({error}); remove {path} to start anew") from None


def require_same(region_dir: RegionDir, region: str | None, host: str | None = None) -> None:
    """Refuse the name or address of another region than that of a directory; None was not given.

    Raises:
        UnusableDirectory: the directory has another region.
    """
    for option, given, written in (("region", region, region_dir.region), ("host", host, region_dir.host)):
        if given is not None and given != written:
            raise UnusableDirectory(
                f"{region_dir.path} has a region with the {option} {written}, not {given}; name a new one with --dir"
            )


def write_region_dir(
    path: Path, region: str, place: Place, engines: Sequence[Engine], host: str = LOOPBACK
) -> RegionDir:
    """Write the files of a region with one control plane and one agent.

    Args:
        host: IP address of this machine at which other machines reach it; loopback for a single machine.

    Raises:
        UnusableDirectory: the directory cannot be written, or `host` is no address of this machine.
        PolicyRefused: a name cannot be used in a policy; nothing was written.
    """
    path = path.absolute()
    found = RegionDir(path, region, choose_ports(host), host)
    key = f"psk-{secrets.token_urlsafe(32)}"
    models = list(dict.fromkeys(model for engine in engines for model in engine.models))
    presets = sorted({preset for engine in engines for preset in engine.presets})
    bundle = starter_bundle({region: place}, models, {None: sha256(key.encode()).hexdigest()}, presets)
    bundle["rollout.yaml"] = trial_rollout_file()
    compile_bundle(bundle)
    require_own(host)
    with whole(path):
        for folder in (path, found.api_key.parent, found.policy):
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        _write_secret(found.api_key, key)
        write_agents_key(found)
        _write_secret(found.admin_token, secrets.token_hex(32))
        _write_identities(found)
        for name, text in bundle.items():
            (found.policy / name).write_text(text, encoding="utf-8")
        write_yaml(found.control_plane_settings, _control_plane_settings(found))
        write_yaml(found.agent_settings, agent_settings(found, found.etcd_endpoint, found.api_url))
        add_engines(found, engines)
        # Written last: a directory without this file is not complete.
        write_ports(found)
    return found


def require_own(host: str, remedy: str = "name one with --host") -> None:
    """Raise UnusableDirectory unless servers can listen on an address of this machine."""
    if not is_free(0, host):
        raise UnusableDirectory(f"{host} is no address of this machine; {remedy}")


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Write a directory that is empty or does not exist, or leave nothing in it, so that the command can be repeated.

    Raises:
        UnusableDirectory: the directory cannot be written.
    """
    has_others = path.is_dir() and any(path.iterdir())
    try:
        yield
    except BaseException as error:
        if not has_others:
            shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise UnusableDirectory(f"{path}: cannot be written: {error.strerror}; name another with --dir") from None
        raise


def add_engines(region_dir: RegionDir, engines: Sequence[Engine]) -> None:
    """Add the engines and models that the files lack; what is there stays as it is.

    A known engine gets its further models only while the file of endpoints has the form in which it was written: a
    rewritten file would lose comments.

    Raises:
        UnusableDirectory: a file cannot be read or written.
        PolicyRefused: the policy is invalid, or a name cannot be used in it; nothing was written.
    """
    try:
        text = _text_of(region_dir.endpoints) if region_dir.endpoints.exists() else _ENDPOINTS_HEAD
        written = yaml.safe_load(text) or []
        urls = {_url_of(entry): entry for entry in written}
        names = {entry.get("name") for entry in written}
        numbers = (number for number in count(1) if f"engine-{number}" not in names)
        added: list[dict[str, Any]] = [
            {"name": f"engine-{next(numbers)}", **_place(engine), "models": list(engine.models), "slots": SLOTS}
            for engine in engines
            if engine.url not in urls
        ]
        models = [model for entry in added for model in entry["models"]]
        if text == _endpoints_text(written):
            for engine in engines:
                served = urls[engine.url]["models"] if engine.url in urls else list(engine.models)
                lacking = [model for model in engine.models if model not in served]
                served += lacking
                models += lacking
            text = _endpoints_text(written)
        # The policy of a region that joined is at the first region.
        if region_dir.has_control_plane:
            _add_models(region_dir, models)
        if models:
            region_dir.endpoints.write_text(text + (_listed(added) if added else ""), encoding="utf-8")
    except OSError as error:
        raise UnusableDirectory(f"{error.filename}: {error.strerror}; check owner and mode") from None
    except (yaml.YAMLError, AttributeError, TypeError, ValueError):
        raise UnusableDirectory(f"{region_dir.endpoints}: is no list of endpoints; see docs/endpoints.md") from None


def _place(engine: Engine) -> dict[str, str]:
    """Return the fields of an endpoint that say where the engine is, and how to get in."""
    scheme, _, rest = engine.url.partition("://")
    authority, slash, path = rest.partition("/")
    fields = {"url": f"{scheme}://{authority}", "base_path": slash + path, "credential_file": engine.key_file}
    return {name: value for name, value in fields.items() if value}


def _url_of(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('url', '')}{entry.get('base_path', '')}"


def _endpoints_text(entries: Sequence[Mapping[str, Any]]) -> str:
    return _ENDPOINTS_HEAD + (_listed(entries) if entries else "")


def _listed(entries: Sequence[Mapping[str, Any]]) -> str:
    return yaml.safe_dump(list(entries), sort_keys=False)


def _add_models(region_dir: RegionDir, models: Sequence[str]) -> None:
    policy = read_folder(region_dir.policy)
    known = compile_bundle(policy)
    lacking = list(dict.fromkeys(model for model in models if model not in known.models))
    if lacking:
        name = next(name for number in count(2) if (name := f"models-{number}.yaml") not in policy)
        text = models_file(lacking, (*known.models, *known.versions))
        compile_bundle({**policy, name: text})
        (region_dir.policy / name).write_text(text, encoding="utf-8")


def engine_urls(region_dir: RegionDir) -> list[str]:
    """Return the URLs of the endpoints.

    Raises:
        UnusableDirectory: the file cannot be read.
    """
    try:
        return [_url_of(entry) for entry in yaml.safe_load(_text_of(region_dir.endpoints)) or () if "url" in entry]
    except (OSError, yaml.YAMLError, TypeError, ValueError):
        raise UnusableDirectory(f"{region_dir.endpoints}: is no list of endpoints; see docs/endpoints.md") from None


def models_served(region_dir: RegionDir) -> list[str]:
    """Return the models of the endpoints, those of the first endpoint first.

    Raises:
        UnusableDirectory: the file has no endpoint with a model.
    """
    try:
        entries = yaml.safe_load(_text_of(region_dir.endpoints))
        entries[0]["models"][0]
        return list(dict.fromkeys(str(model) for entry in entries for model in entry["models"]))
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError):
        raise UnusableDirectory(f"{region_dir.endpoints}: has no endpoint; name engines with --engine") from None


def choose_ports(host: str) -> dict[str, int]:
    """Return the default ports, with a free port in place of each that is in use at loopback or `host`."""
    others = iter(free_ports(len(DEFAULT_PORTS)))
    return {
        name: port if is_free(port) and is_free(port, host) else next(others) for name, port in DEFAULT_PORTS.items()
    }


def write_ports(region_dir: RegionDir) -> None:
    """Write the file without which a directory is not complete."""
    content = {"region": region_dir.region, "host": region_dir.host, **region_dir.ports}
    write_yaml(region_dir.path / "ports.yaml", content)


def _write_identities(region_dir: RegionDir) -> None:
    path, hosts = region_dir.path, hosts_of(region_dir.host)
    create_authority(region_dir.authority, FLEET)
    authority = load_authority(region_dir.authority)
    control_plane = SpiffeId(FLEET, ProcessRole.CONTROL_PLANE, CONTROL_PLANE)
    issue_identity(authority, control_plane, hosts, path / CONTROL_PLANE)
    agent = SpiffeId(FLEET, ProcessRole.AGENT, f"{region_dir.region}-1", region_dir.region)
    issue_identity(authority, agent, hosts, path / "agent")
    if region_dir.host != LOOPBACK:
        etcd = SpiffeId(FLEET, ProcessRole.SERVER, "etcd")
        issue_identity(authority, etcd, hosts, region_dir.etcd_identity)


def hosts_of(host: str) -> tuple[str, ...]:
    """Return the names and addresses in the certificates of a machine."""
    return tuple(dict.fromkeys((host, LOOPBACK, "localhost")))


def _control_plane_settings(region_dir: RegionDir) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "name": CONTROL_PLANE,
        "listen": f"{region_dir.host}:{region_dir.ports['api']}",
        "etcd_endpoints": [region_dir.etcd_endpoint],
        "policy_dir": region_dir.relative(region_dir.policy),
        "identity_dir": CONTROL_PLANE,
        "admin_token_file": region_dir.relative(region_dir.admin_token),
    }
    if region_dir.host != LOOPBACK:
        settings["tls_certificate_file"] = f"{CONTROL_PLANE}/{CERTIFICATE}"
        settings["tls_key_file"] = f"{CONTROL_PLANE}/{PRIVATE_KEY}"
        settings["etcd_ca_file"] = f"{CONTROL_PLANE}/{AUTHORITIES}"
    return settings


def agent_settings(region_dir: RegionDir, etcd_endpoint: str, control_plane_url: str) -> dict[str, Any]:
    """Return the settings of the agent."""
    ports = region_dir.ports
    settings: dict[str, Any] = {
        "region": region_dir.region,
        "name": f"{region_dir.region}-1",
        "traffic_listen": f"{LOOPBACK}:{ports['traffic']}",
        "peer_listen": f"{region_dir.host}:{ports['peers']}",
        "admin_listen": f"{LOOPBACK}:{ports['admin']}",
        "etcd_endpoints": [etcd_endpoint],
        "control_plane_urls": [control_plane_url],
        "redis_url": f"redis://{LOOPBACK}:{ports['redis']}/0",
        "endpoints_file": region_dir.relative(region_dir.endpoints),
        "identity_dir": "agent",
        "admin_api_keys_file": region_dir.relative(region_dir.agent_keys),
        "state_dir": "state",
    }
    if region_dir.host != LOOPBACK:
        settings["etcd_ca_file"] = f"agent/{AUTHORITIES}"
    return settings


def write_yaml(path: Path, content: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Write a file of settings."""
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def write_agents_key(region_dir: RegionDir) -> None:
    """Write a key for the agent's admin listener, whose holder may view everything there. Raises OSError."""
    key = secrets.token_hex(32)
    _write_secret(region_dir.agents_key, key)
    write_yaml(
        region_dir.agent_keys, [{"name": "operator", "sha256": sha256(key.encode()).hexdigest(), "role": "viewer"}]
    )


def _write_secret(path: Path, secret: str) -> None:
    path.touch(mode=0o600)
    path.write_text(secret + "\n", encoding="ascii")

"""The directory of a quickstart: written once, then used as it is.

The files are those of a production fleet: a bundle of policy files, one YAML file of settings per daemon, one directory
per certificate. Later runs add engines and models, and change nothing else, so that edits stay.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from adapters.files.authority_files import create_authority, issue_identity, load_authority
from adapters.servers.free_ports import LOOPBACK, free_ports, is_free
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.quickstart.places import Place
from control_plane.quickstart.starter_bundle import models_file, starter_bundle
from penstock.wire.identity import ProcessRole, SpiffeId

FLEET = "quickstart"
CONTROL_PLANE = "control-plane"

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
    "redis": 6379,
}
"""Ports of the processes; a port in use is replaced by a free one when the directory is written."""


class UnusableDirectory(Exception):
    """The directory cannot be used for a quickstart; the message states the remedy."""


class Engine(NamedTuple):
    """A model server."""

    url: str
    models: tuple[str, ...]


class RegionDir(NamedTuple):
    """Paths and ports of a quickstart."""

    path: Path
    region: str
    ports: Mapping[str, int]

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

    @property
    def admin_token(self) -> Path:
        """File with the admin token."""
        return self.path / "secrets" / "admin.token"

    @property
    def base_url(self) -> str:
        """URL of the OpenAI API."""
        return f"http://{LOOPBACK}:{self.ports['traffic']}/v1"

    @property
    def api_url(self) -> str:
        """URL of the control plane: the admin API and the page for operators."""
        return f"http://{LOOPBACK}:{self.ports['api']}"


def open_region_dir(path: Path) -> RegionDir | None:
    """Return the quickstart of a directory; None if there is none.

    Raises:
        UnusableDirectory: the directory has other files, or its settings cannot be read.
    """
    file = path / "ports.yaml"
    if not file.exists():
        if path.exists() and any(path.iterdir()):
            raise UnusableDirectory(f"{path} is not empty and has no quickstart; name another with --dir")
        return None
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        return RegionDir(path, str(content["region"]), {name: int(content[name]) for name in DEFAULT_PORTS})
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise UnusableDirectory(f"{file}: cannot be read ({error}); remove {path} to start anew") from None


def write_region_dir(path: Path, region: str, place: Place, engines: Sequence[Engine]) -> RegionDir:
    """Write the files of a region with one control plane and one agent.

    Raises:
        UnusableDirectory: the directory cannot be written.
        PolicyRefused: a name cannot be used in a policy; nothing was written.
    """
    path = path.absolute()
    found = RegionDir(path, region, _choose_ports())
    key = f"psk-{secrets.token_urlsafe(32)}"
    models = list(dict.fromkeys(model for engine in engines for model in engine.models))
    bundle = starter_bundle({region: place}, models, sha256(key.encode()).hexdigest())
    compile_bundle(bundle)
    try:
        for folder in (path, path / "secrets", found.policy):
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        _write_secret(found.api_key, key)
        _write_secret(found.admin_token, secrets.token_hex(32))
        _write_identities(found)
        for name, text in bundle.items():
            (found.policy / name).write_text(text, encoding="utf-8")
        _write_yaml(found.control_plane_settings, _control_plane_settings(found))
        _write_yaml(found.agent_settings, _agent_settings(found))
        add_engines(found, engines)
        # Written last: a directory without this file is not complete.
        _write_yaml(path / "ports.yaml", {"region": region, **found.ports})
    except OSError as error:
        raise UnusableDirectory(f"{path}: cannot be written: {error.strerror}; name another with --dir") from None
    return found


def add_engines(region_dir: RegionDir, engines: Sequence[Engine]) -> None:
    """Add the engines and models that the files lack; what is there stays as it is.

    Raises:
        UnusableDirectory: a file cannot be read or written.
        PolicyRefused: the policy is invalid, or a name cannot be used in it; nothing was written.
    """
    try:
        text = region_dir.endpoints.read_text(encoding="utf-8") if region_dir.endpoints.exists() else _ENDPOINTS_HEAD
        written = yaml.safe_load(text) or []
        urls = {entry.get("url") for entry in written}
        names = {entry.get("name") for entry in written}
        numbers = (number for number in count(1) if f"engine-{number}" not in names)
        added = [
            {"name": f"engine-{next(numbers)}", "url": engine.url, "models": list(engine.models), "slots": SLOTS}
            for engine in engines
            if engine.url not in urls
        ]
        policy = read_folder(region_dir.policy)
        known = compile_bundle(policy).models
        lacking = list(dict.fromkeys(model for engine in engines for model in engine.models if model not in known))
        if lacking:
            name = next(name for number in count(2) if (name := f"models-{number}.yaml") not in policy)
            compile_bundle({**policy, name: models_file(lacking)})
            (region_dir.policy / name).write_text(models_file(lacking), encoding="utf-8")
        if added:
            region_dir.endpoints.write_text(text + yaml.safe_dump(added, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise UnusableDirectory(f"{error.filename}: {error.strerror}; check owner and mode") from None
    except (yaml.YAMLError, AttributeError, TypeError):
        raise UnusableDirectory(f"{region_dir.endpoints}: is no list of endpoints; see docs/endpoints.md") from None


def first_model(region_dir: RegionDir) -> str:
    """Return a model of the first endpoint.

    Raises:
        UnusableDirectory: the file has no endpoint with a model.
    """
    try:
        return str(yaml.safe_load(region_dir.endpoints.read_text(encoding="utf-8"))[0]["models"][0])
    except (OSError, yaml.YAMLError, LookupError, TypeError):
        raise UnusableDirectory(f"{region_dir.endpoints}: has no endpoint; name engines with --engine") from None


def _choose_ports() -> dict[str, int]:
    """Return the default ports, with a free port in place of each that is in use."""
    others = iter(free_ports(len(DEFAULT_PORTS)))
    return {name: port if is_free(port) else next(others) for name, port in DEFAULT_PORTS.items()}


def _write_identities(region_dir: RegionDir) -> None:
    path, hosts = region_dir.path, (LOOPBACK, "localhost")
    create_authority(path / "authority", FLEET)
    authority = load_authority(path / "authority")
    control_plane = SpiffeId(FLEET, ProcessRole.CONTROL_PLANE, CONTROL_PLANE)
    issue_identity(authority, control_plane, hosts, path / CONTROL_PLANE)
    agent = SpiffeId(FLEET, ProcessRole.AGENT, f"{region_dir.region}-1", region_dir.region)
    issue_identity(authority, agent, hosts, path / "agent")


def _control_plane_settings(region_dir: RegionDir) -> dict[str, Any]:
    path = region_dir.path
    return {
        "name": CONTROL_PLANE,
        "listen": f"{LOOPBACK}:{region_dir.ports['api']}",
        "etcd_endpoints": [f"{LOOPBACK}:{region_dir.ports['etcd']}"],
        "policy_dir": str(region_dir.policy),
        "identity_dir": str(path / CONTROL_PLANE),
        "admin_token_file": str(region_dir.admin_token),
    }


def _agent_settings(region_dir: RegionDir) -> dict[str, Any]:
    path, ports = region_dir.path, region_dir.ports
    return {
        "region": region_dir.region,
        "name": f"{region_dir.region}-1",
        "traffic_listen": f"{LOOPBACK}:{ports['traffic']}",
        "peer_listen": f"{LOOPBACK}:{ports['peers']}",
        "admin_listen": f"{LOOPBACK}:{ports['admin']}",
        "etcd_endpoints": [f"{LOOPBACK}:{ports['etcd']}"],
        "control_plane_urls": [region_dir.api_url],
        "redis_url": f"redis://{LOOPBACK}:{ports['redis']}/0",
        "endpoints_file": str(region_dir.endpoints),
        "identity_dir": str(path / "agent"),
        "state_dir": str(path / "state"),
    }


def _write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(content), sort_keys=False), encoding="utf-8")


def _write_secret(path: Path, secret: str) -> None:
    path.touch(mode=0o600)
    path.write_text(secret + "\n", encoding="ascii")

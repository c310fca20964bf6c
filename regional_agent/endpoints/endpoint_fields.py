"""The fields of an endpoint in the endpoints file and in registrations, and their validation.

Every error message states the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.health.engines.engine_kinds import EngineKind
from penstock.health.engines.gpu_metrics import MAX_GPUS
from penstock.health.health_check import HealthCheckOptions
from penstock.routes.classify import MAX_MODEL
from regional_agent.endpoints import endpoint_options
from regional_agent.endpoints.endpoint_options import AUTHORIZATION, InvalidField, Pairs, health_check_options, text
from regional_agent.upstream.address import Address

MAX_MODELS = 64
"""Maximum number of models of one endpoint, and maximum number of its adapter patterns."""
MAX_REQUESTS = 100_000
"""Maximum slots, and maximum queue, of one endpoint."""

MAX_MEMORY_GB = 1e6
"""Maximum memory of one endpoint."""

_SLOTS_REMEDY = "write the number of requests that the engine runs at once, such as vLLM's --max-num-seqs"

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:@/-]{0,127}")


_GPU = re.compile(r"[0-9]{1,3}|(GPU|MIG)-[0-9A-Za-z/-]{8,80}")


class EndpointSpec(msgspec.Struct, frozen=True):
    """One endpoint as it is configured or registered."""

    name: str
    """Name of the endpoint: unique in the region, and the same in all agents of the region."""
    address: Address
    models: tuple[str, ...]
    slots: int
    """Maximum number of requests that run concurrently; 0 in an entry of which labels give it."""
    queue: int = 0
    """Maximum number of requests that wait in the engine when all slots are in use."""
    zone: str = ""
    accelerator: str = ""
    engine: EngineKind = EngineKind.AUTO
    version: str = ""
    """Version of the engine, the weights, or both; for display."""
    health: HealthCheckOptions = HealthCheckOptions()
    """Options of the health check; the kind of engine has the others."""
    metrics_port: int | None = None
    """Port of the metrics page; None for the default of the engine kind."""
    kv_events_port: int | None = None
    """Port of the engine's log of KV events; None if KV events are not read."""
    grpc_port: int | None = None
    """Port for inferences over gRPC, which only the endpoint picker sends; None if the endpoint receives none."""
    base_path: str = ""
    """Prefix of the path of every request, except for a configured health path; without a slash at its end."""
    headers: Pairs = ()
    """Header fields that every request has, names in lower case."""
    engine_names: Pairs = ()
    """The engine's names of models, where they differ from the policy's."""
    credential_file: str = ""
    """File with the secret that every request contains; empty for none."""
    credential_header: str = AUTHORIZATION
    """Header that contains the secret, in lower case. `authorization` contains a bearer token, other headers the secret
    alone."""
    ca_file: str = ""
    """Certificates of the authorities that sign the engine's certificate; empty for the setting
    `upstream_ca_file` of the agent."""
    client_certificate_file: str = ""
    """Certificate that the agent sends to the engine; empty for none."""
    client_key_file: str = ""
    server_name: str = ""
    """Name in the engine's certificate; empty for the host of its address."""
    gpu_metrics_port: int | None = None
    """Port of the metrics of its GPUs on its host: of a DCGM exporter, or of Triton; None if they are not read."""
    gpus: tuple[str, ...] = ()
    """Indexes or UUIDs of its GPUs on that page; empty for all."""
    adapters: tuple[str, ...] = ()
    """Patterns of the adapters that the engine serves although it does not list them."""
    memory_gb: float | None = None
    """Memory (GB) for the models that it loads on demand; None if all of them fit together."""
    memory_group: str = ""
    """Name that the endpoints have whose models share one memory; empty for a memory of its own."""
    burst: bool = False
    """Whether it is serverless: it receives requests only while no slot of the other endpoints is free, and nothing
    that would wake it."""

    pool: str = ""
    """Label of an endpoint that is reserved for tenants or data classes: it serves `<model>-<pool>` in place of each of
    `models`."""

    def in_pool(self) -> EndpointSpec:
        """The endpoint with the models of its pool, which the engine knows by the names without the label."""
        if not self.pool:
            return self
        engine_names = dict(self.engine_names)
        names = {f"{model}-{self.pool}": engine_names.get(model, model) for model in self.models}
        return msgspec.structs.replace(self, models=tuple(names), engine_names=tuple(names.items()))

    @property
    def is_probed(self) -> bool:
        """Whether its health is probed: a burst endpoint only at a path of its entry, which must not wake it."""
        return not self.burst or self.health.path is not None

    def is_server_of(self, other: EndpointSpec) -> bool:
        """Whether a changed entry is for the same server, whose requests and probes go on."""
        mine, others = ((each.address, each.burst, each.is_probed) for each in (self, other))
        return mine == others

    @property
    def memory(self) -> str:
        """Name of the memory that its models occupy."""
        return f"group {self.memory_group}" if self.memory_group else self.name

    @property
    def ports(self) -> tuple[int | None, int | None]:
        """The ports of which an agent reads what the engine does not need."""
        return self.kv_events_port, self.gpu_metrics_port

    @property
    def has_files(self) -> bool:
        """Whether requests or connections need the content of files."""
        return bool(self.credential_file or self.ca_file or self.client_certificate_file)

    @property
    def is_rewritten(self) -> bool:
        """Whether requests to the endpoint differ from the requests of clients."""
        return bool(self.base_path or self.headers or self.engine_names or self.credential_file)

    def renames(self, model: str) -> bool:
        """Whether the engine has another name for a model."""
        return any(known == model and name != model for known, name in self.engine_names)


def _name(value: Any) -> str:
    name = text(value)
    if not _NAME.fullmatch(name):
        raise InvalidField(f"{name[:80]!r} is not a name; use up to 63 letters, digits, and . _ - inside")
    return name


def _version(value: Any) -> str:
    version = text(value)
    if not _WORD.fullmatch(version):
        raise InvalidField(
            f"{version[:80]!r} is not a version; use up to 128 letters, digits, and . _ + : @ / - inside"
        )
    return version


def _url(value: Any) -> Address:
    url = text(value)
    try:
        address = Address.parse(url)
    except ValueError:
        raise InvalidField(f"{url[:200]!r} is not an address; write http://host:port") from None
    parts = urlsplit(url)
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise InvalidField("has more than a host and a port; write http://host:port, and a path as base_path")
    return address


def _models(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MODELS:
        raise InvalidField(f"not a list of 1-{MAX_MODELS} models; write [name, ...] with the names of the policy")
    models = tuple(text(model) for model in value)
    if max(map(len, models)) > MAX_MODEL:
        raise InvalidField(f"a name has more than {MAX_MODEL} characters; write the names as in the policy")
    if len(set(models)) < len(models):
        raise InvalidField("a model is named twice; remove one")
    return models


def _adapters(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MODELS:
        raise InvalidField(f"not a list of 1-{MAX_MODELS} patterns; write [name-*, ...], with * for any characters")
    patterns = tuple(text(pattern) for pattern in value)
    if max(map(len, patterns)) > MAX_MODEL:
        raise InvalidField(f"a pattern has more than {MAX_MODEL} characters; write a shorter one with *")
    return patterns


def _engine(value: Any) -> EngineKind:
    try:
        return EngineKind(text(value))
    except ValueError:
        raise InvalidField(f"{value[:80]!r} is not a kind of engine; use one of {', '.join(EngineKind)}") from None


def _whole_number(minimum: int, maximum: int, unit: str) -> Callable[[Any], int]:

    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise InvalidField(f"not a whole number from {minimum} to {maximum}; write the number of {unit}")
        return value

    return check


def _memory_gb(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 < value <= MAX_MEMORY_GB:
        raise InvalidField(f"not a number above 0, at most {MAX_MEMORY_GB:g}; write the GB that models may occupy")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidField("neither true nor false; write one of them, without quotes")
    return value


def _slots(value: Any) -> int:
    if value == "auto":
        raise InvalidField(f"auto was removed; {_SLOTS_REMEDY}")
    return _whole_number(1, MAX_REQUESTS, "requests")(value)


def _port(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise InvalidField("not a port; write a whole number from 1 to 65535")
    return value


def _gpus(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_GPUS:
        raise InvalidField(f"not a list of 1-{MAX_GPUS} GPUs; write [0, 1] or their UUIDs")
    gpus = tuple(str(each) if isinstance(each, int) and not isinstance(each, bool) else text(each) for each in value)
    if not all(_GPU.fullmatch(gpu) for gpu in gpus):
        raise InvalidField("a GPU is neither an index nor a UUID; write [0, 1] or their UUIDs")
    return gpus


CHECKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", _name),
    "url": ("address", _url),
    "models": ("models", _models),
    "adapters": ("adapters", _adapters),
    "zone": ("zone", _name),
    "accelerator": ("accelerator", _name),
    "slots": ("slots", _slots),
    "queue": ("queue", _whole_number(0, MAX_REQUESTS, "requests")),
    "engine": ("engine", _engine),
    "version": ("version", _version),
    "health": ("health", health_check_options),
    "metrics_port": ("metrics_port", _port),
    "kv_events_port": ("kv_events_port", _port),
    "grpc_port": ("grpc_port", _port),
    "gpu_metrics_port": ("gpu_metrics_port", _port),
    "gpus": ("gpus", _gpus),
    "memory_gb": ("memory_gb", _memory_gb),
    "memory_group": ("memory_group", _name),
    "burst": ("burst", _flag),
    "pool": ("pool", _name),
    **endpoint_options.CHECKS,
}
"""By field name in files and registrations: the attribute of EndpointSpec, and a parser that raises InvalidField."""

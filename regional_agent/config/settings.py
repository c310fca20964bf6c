"""The settings of an agent: a YAML file, or `PENSTOCK_AGENT_<FIELD>` in the environment; validated at start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    SecretStr,
    field_validator,
    model_validator,
)
from redis.asyncio.connection import parse_url as parse_redis_url

from adapters.configuration.setting_values import from_json, host_port, listed
from adapters.configuration.settings_loader import load_with_origins
from adapters.error_text import suggest
from adapters.files.identity_files import REGION_KEY
from adapters.loopback import is_loopback
from adapters.store.keys import DEFAULT_PREFIX, key_prefix
from adapters.store.members import named
from penstock.http.header_rules import HOP_BY_HOP, NOT_FOR_ENGINES, OWN_PREFIX, SINGLE_HEADERS
from penstock.wire.route_context import MAX_DEADLINE_S
from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address, is_server_name
from regional_agent.upstream.upstream_pool import DEFAULT_MAX_MOVED_S

PREFIX = "PENSTOCK_AGENT_"

MAX_WORKERS = 64

_HEADER_NAME = re.compile(r"(?=.{1,64}$)[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
_LIMITS_PAGE = "the fields are in regional_agent/http/limits.py"
_RESERVED_HEADERS = NOT_FOR_ENGINES | HOP_BY_HOP | frozenset(SINGLE_HEADERS)
"""Headers that already have a meaning to the agent or to engines."""


def _address(value: Any) -> Any:
    return value if isinstance(value, Address) else Address(*host_port(str(value)))


def _network(value: Any) -> Any:
    return ip_network(value) if isinstance(value, str) else value


def _limits(value: Any) -> Any:
    """Convert a mapping, or a JSON object, of the limits that differ from their defaults."""
    fields = from_json(value)
    if not isinstance(fields, dict):
        return fields
    for name in fields:
        if name not in Limits.__struct_fields__:
            raise ValueError(f"no limit {name!r}; {suggest(name, Limits.__struct_fields__, _LIMITS_PAGE)}")
    try:
        limits = msgspec.convert(fields, Limits)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"{error}; {_LIMITS_PAGE}") from None
    if isinstance(limits, Limits):
        for name, number in msgspec.structs.asdict(limits).items():
            if number is None:
                continue
            # Negated, so that NaN is rejected.
            if not (number > 0 or (number == 0 and name == "idle_linger_s")):
                raise ValueError(f"{name} is {number}; it must be more than 0")
            if name.endswith("_s") and number > MAX_DEADLINE_S:
                raise ValueError(f"{name} is {number}; it must be at most one day ({MAX_DEADLINE_S:g})")
    return limits


def _location_header(value: str) -> str:
    if value and not _HEADER_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a header name of 1 to 64 letters, digits and hyphens, such as X-Country")
    name = value.lower().encode()
    if name in _RESERVED_HEADERS or name.startswith(OWN_PREFIX):
        raise ValueError(f"{value} has another meaning; configure the proxies to use a separate header")
    return value


def _http_url(value: str) -> str:
    Address.parse(value)
    if urlsplit(value).username is not None:
        raise ValueError("the URL names a user; agents have their own credentials")
    if urlsplit(value).path.strip("/"):
        raise ValueError(
            f"{value!r} has a path, which would not be used; set it to {value.partition('://')[0]}://host:port"
        )
    return value.rstrip("/")


def _server_name(value: str) -> str:
    if not is_server_name(value):
        raise ValueError(f"{value!r} is not a DNS name, such as eu-de-1.agents.example")
    return value


Listen = Annotated[Address, BeforeValidator(_address)]
Name = Annotated[str, AfterValidator(named)]
HttpUrl = Annotated[str, BeforeValidator(_http_url)]
PlaintextLink = Literal["admin", "control-planes", "etcd", "otlp", "peers", "picker", "redis"]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]


class AgentSettings(BaseModel):
    """The settings of one agent. Configuration that all agents of a fleet share is in the policy."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    region: Name
    """Name of the agent's region, as in the policy."""
    name: Name
    """Name of the agent: unique in its region, and unchanged by a restart. An agent does not start while one of its
    name runs on another host."""
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    """Number of worker processes, which accept from one traffic port. With more than 1, each worker is an
    agent of its own: worker 2 of `eu-de-1` has the name `eu-de-1-2`, subdirectories of that name in `identity_dir` and
    in `state_dir`, and the peer and admin ports plus 1. Requires `redis_url`."""
    zone: Annotated[str, Field(max_length=63)] = ""
    """The agent's zone (failure domain), as in the endpoints file. Endpoints of the same zone are preferred if their
    expected completion time is about as short as the best. Empty disables the preference."""
    traffic_listen: Listen
    """host:port of the listener for clients; port 0 selects a free port."""
    peer_listen: Listen
    """host:port of the listener for agents of other regions."""
    admin_listen: Listen
    """host:port of the listener for health checks, metrics, status and registration of endpoints. On an address other
    than loopback it serves TLS, unless `allow_plaintext` has `admin`. Certificates of the fleet's authority are
    accepted from clients."""
    admin_certificate_file: Path | None = None
    """PEM certificate chain of the admin listener. Default: the certificate of this agent, in `identity_dir`."""
    admin_key_file: Path | None = None
    """Private key of `admin_certificate_file`, unencrypted PEM."""
    admin_require_certificate: bool = False
    """Whether the admin listener refuses TLS connections without a client certificate of the fleet's authority, in
    addition to credentials. It then serves TLS on loopback addresses, too. Prometheus, engines that register, load
    balancers and probes of Kubernetes need a certificate, such as `penstock certs issue monitor` creates."""
    admin_api_keys_file: Path | None = None
    """YAML or JSON file of API keys for the admin listener: digest, name, role and regions of each; reloaded when it
    changes. Default: no API keys, so that only health checks, registration, and metrics for client certificates of the
    role `monitor` are served."""
    allow_plaintext: Annotated[frozenset[PlaintextLink], BeforeValidator(listed)] = frozenset()
    """Links that may be unencrypted, comma-separated: `admin` (requests to the admin listener),
    `control-planes` (reports), `etcd`, `otlp` (spans), `peers` (requests between regions, on loopback addresses too),
    `picker` (Envoy's requests to the endpoint picker), `redis`. Set it only where the network encrypts all traffic,
    such as a service mesh or WireGuard. Logged as a warning."""
    picker_listen: Listen | None = None
    """host:port of the endpoint picker: Envoy's External Processing API (gRPC), by which Envoy asks for the endpoint of
    each request. On an address other than loopback it serves TLS with the certificate of this agent, and requires a
    client certificate of the fleet's authority, unless `allow_plaintext` has `picker`. Envoy's address belongs into
    `trusted_proxies`. The workers of a host share the port. Default: no endpoint picker."""
    picker_forwards: bool = False
    """Whether Envoy has a route to the agents of other regions, for requests with the header `x-penstock-route`
    (docs/envoy.md). If not, requests that reach this agent through Envoy stay in its region."""
    advertise_admin_url: HttpUrl | None = None
    """URL at which operators reach the admin listener. Default: the address of `admin_listen`, on a wildcard address
    with the host of `advertise_peer_url`."""
    advertise_peer_url: HttpUrl | None = None
    """URL at which agents of other regions reach this agent: https://host:port. Default: the address of
    `peer_listen`."""
    advertise_peer_server_name: Annotated[str, AfterValidator(_server_name)] | None = None
    """Name that the TLS handshakes of other regions' agents request (SNI), where `advertise_peer_url` is a gateway that
    forwards connections by it, unopened. Each agent of a region has a name of its own. Default: the host of the URL."""
    peer_urls: Annotated[dict[Name, tuple[HttpUrl, ...]], BeforeValidator(from_json)] = {}
    """https URLs of other regions' agents: lists by region, as a JSON object in the environment. For regions that are
    not listed, the agents' registrations in etcd are used. `?server_name=NAME` sets the name of the TLS handshake."""
    etcd_endpoints: Annotated[tuple[Annotated[str, BeforeValidator(str)], ...], BeforeValidator(listed)]
    """host:port of each etcd member; comma-separated."""
    etcd_prefix: Annotated[str, AfterValidator(key_prefix)] = DEFAULT_PREFIX
    """Prefix of all keys of the fleet in etcd. Fleets that share an etcd have different prefixes.
    Every signature covers the prefix: all processes of a fleet have the same."""
    etcd_ca_file: Path | None = None
    """PEM certificates of the authorities that sign etcd's certificates. Default: the fleet's authority, in
    `identity_dir`; etcd on a loopback address is then reached without TLS."""
    etcd_certificate_file: Path | None = None
    """PEM client certificate for etcd. Default: the certificate of this agent, in `identity_dir`."""
    etcd_key_file: Path | None = None
    """Private key of `etcd_certificate_file`, unencrypted PEM."""
    control_plane_urls: Annotated[tuple[HttpUrl, ...], BeforeValidator(listed)] = ()
    """https://host:port of control planes, comma-separated. Reports are sent to one of them while the leader is
    unknown. http is accepted on loopback addresses, or if `allow_plaintext` has `control-planes`."""
    redis_url: SecretStr | None = None
    """The Redis that the agents of the region share, as rediss://[user:password@]host:port/db; redis:// is accepted on
    loopback addresses, or if `allow_plaintext` has `redis`. Default: none, for a region with one agent."""
    redis_password_file: Path | None = None
    """File with the password for Redis, one line; reloaded when it changes. Default: the password in `redis_url`."""
    redis_ca_file: Path | None = None
    """PEM certificates of the authorities that sign the certificate of Redis. Default: the system's trust store and the
    fleet's authority."""
    redis_certificate_file: Path | None = None
    """PEM client certificate for Redis. Default: the certificate of this agent, in `identity_dir`."""
    redis_key_file: Path | None = None
    """Private key of `redis_certificate_file`, unencrypted PEM."""
    max_moved_s: Annotated[float, Field(ge=1.0, le=3600.0)] = DEFAULT_MAX_MOVED_S
    """Maximum time (s) for which connections to engines, other agents and control planes are reused after DNS ceased to
    list their address. Requests in progress end as usual."""
    endpoints_file: Path
    """YAML file with the endpoints of the region; reloaded when it changes."""
    registration_token_file: Path | None = None
    """File with the tokens for the registration of endpoints on the admin listener, one per line; reloaded when it
    changes. Default: registration is rejected."""
    wake_token_file: Path | None = None
    """File with the bearer token that webhooks of models on demand receive, one line; read for each call. Default:
    none."""
    quality_token_file: Path | None = None
    """File with the bearer token that quality hooks of rollouts receive, one line; read for each pair. Default:
    none."""
    warm_up_s: Annotated[float, Field(ge=0.0, le=600.0)] = 30.0
    """Time (s) over which the weight of an endpoint grows to 1 after it becomes ready or returns from ejection."""
    ejection_s: Annotated[float, Field(gt=0.0, le=120.0)] = 5.0
    """Duration (s) of the first ejection of an endpoint; consecutive ejections are longer, at most 120 s."""
    max_ejected_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Maximum share (0-1) of the endpoints of one model that may be ejected at the same time; 0 disables ejection."""
    suspect_after_s: Annotated[float, Field(ge=0.0, le=600.0)] = 10.0
    """Time (s) without a byte of any response of an endpoint, while a request is overdue and other endpoints progress,
    after which the endpoint is suspect: it receives no new requests, and its waiting requests are sent to other
    endpoints. Half of it suffices if its own recent responses do not explain the silence. Set it to at least 8 if
    responses are streamed; 0 disables the check."""
    server_errors_eject: bool = True
    """Whether 5xx responses other than 502, 503 and 504 count as failures. Set to false if clients can provoke them."""
    geoip_file: Path | None = None
    """MaxMind City or Country database; read into memory, and reloaded when it changes. Default: none, so that clients'
    locations are unknown."""
    identity_dir: Path
    """Directory with the certificate of this agent (`tls.crt`, `tls.key`, `ca.crt`), as `penstock certs issue` writes
    it; reloaded when it changes. The certificate is used for connections from and to agents of other regions. If
    `redis_url` is set, the directory also contains `region.key`, the key that the region's agents share; it is
    reloaded, too."""
    region_key_file: Path | None = None
    """File with the keys that the region's agents share, one per line; reloaded when it changes. The first key
    authenticates the data that this agent writes to Redis; any of the keys authenticates the data that it reads.
    Default: `region.key` in `identity_dir`. Required if an issuer of certificates mounts `identity_dir`, which then
    has no such file."""
    webhook_key_file: Path | None = None
    """File with the keys from which the agents derive the secrets that sign webhooks of jobs, one per line, the same
    in all regions; reloaded when it changes. Every key signs, and clients are shown the secret of the first one.
    Default: no webhooks."""
    state_dir: Path
    """Directory that only this agent uses, for the last-known-good configuration, registered and discovered endpoints,
    and further state; created if missing."""
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(listed)] = ()
    """Networks (CIDR) of proxies whose X-Forwarded-For is trusted; comma-separated."""
    location_header: Annotated[str, AfterValidator(_location_header)] = ""
    """Name of the header in which trusted proxies send the client's location (`DE`, `US-CA`). Every trusted proxy must
    set or remove the header. It takes precedence over the database, and is ignored from other senders. Empty: not
    used."""

    dns_socket: Path | None = None
    """Unix socket at which a PowerDNS on this host asks for the names of the policy (`docs/dns.md`); with more than one
    worker, the first one answers. Default: none."""
    dns_control_socket: Path | None = None
    """Control socket of this PowerDNS (`pdns.controlsocket`), over which the agent empties its cache when a region
    enters or leaves the answers. Default: none, so that cached answers last for PowerDNS's `cache-ttl`."""
    limits: Annotated[InstanceOf[Limits], BeforeValidator(_limits)] = Limits()
    """Limits of memory, connections and time that clients and engines may use: a mapping of the fields of
    regional_agent/http/limits.py that differ from their defaults, in the environment a JSON object."""
    shutdown_grace_s: Annotated[float, Field(ge=0.0, le=MAX_DEADLINE_S)] | None = None
    """Time (s) for which requests may continue after SIGTERM. Default: the longest time that a request may take by the
    policy in force and `request_timeout_s` of `limits`, at least 600. Requests that have not ended by then are ended
    with an error. Stop timeouts of the service manager have to be longer. A second SIGINT ends the time at once."""
    access_log_file: Path | None = None
    """File of the access log, one JSON line per request. It may be renamed for log rotation. A file beside it, with the
    suffix `.heads`, has the signatures that `penstock residency report` verifies. Default: no access log."""
    access_log_share: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """Share (0-1) of successful requests that are logged; failed requests are always logged. Below 1 the log does not
    prove where requests were processed."""
    ledger_spool_bytes: Annotated[int, Field(ge=32 * 1024 * 1024)] = 1024 * 1024 * 1024
    """Maximum size (bytes) of the ledger's files in `state_dir`: records that the usage store of the policy does not
    have yet. About 300 bytes a request before the minute ends, and a tenth of it in the store."""
    ledger_when_full: Literal["serve", "refuse"] = "serve"
    """What happens to requests while the ledger has no room for their records, because the disk or
    `ledger_spool_bytes` is full: `serve` serves them and counts the lost records in a metric; `refuse` refuses them
    with 503 `ledger_full`."""
    max_tenant_series: Annotated[int, Field(ge=0, le=10_000)] = 20
    """Maximum number of tenants of the policy with metric series of their own: those with the highest `priority`, then
    by name. As many other tenants have series too: those that used the most GPU time in the last five minutes. The rest
    is counted as `other`. Each tenant has several series for each model."""
    max_endpoint_series: Annotated[int, Field(ge=0, le=1_000)] = 100
    """Maximum number of endpoints with metric series of their own, about 45 each; an endpoint keeps its series while it
    exists. The requests of further endpoints are counted as `other`."""
    otlp_endpoint: HttpUrl | None = None
    """URL of an OpenTelemetry collector, https://host:port (default port of collectors: 4318). Spans of requests are
    sent to its path `/v1/traces` (OTLP over HTTP, JSON). http is accepted on loopback addresses, or if
    `allow_plaintext` has `otlp`. Default: no spans."""
    trace_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """Share (0-1) of requests whose spans are exported, however they end. The sampled flag of a `traceparent` decides
    instead if it comes from one of `trusted_proxies`."""
    trace_slow_s: Annotated[float, Field(ge=0.0)] = 30.0
    """Time (s) until the response begins, above which a request is exported regardless of `trace_share`. Failed
    requests are exported, too; slow and failed requests together at most 50 per second."""
    traffic_certificate_file: Path | None = None
    """PEM certificate chain of the traffic listener. Default: plain HTTP. This file and the files below are reloaded
    when they change; new connections use the new content."""
    traffic_key_file: Path | None = None
    """Private key of `traffic_certificate_file`, unencrypted PEM."""
    traffic_client_ca_file: Path | None = None
    """PEM certificates of the authorities that sign clients' certificates. Default: clients need no certificate."""
    upstream_ca_file: Path | None = None
    """PEM certificates of the authorities that sign the certificates of engines, control planes and collectors with
    https URLs. Default: the system's trust store. The fleet's own authority (`ca.crt` of `identity_dir`) is trusted
    too."""

    @property
    def region_key_path(self) -> Path:
        """The file with the keys that the region's agents share."""
        return self.region_key_file or self.identity_dir / REGION_KEY

    @model_validator(mode="after")
    def _require_room_for_workers(self) -> AgentSettings:
        if self.workers == 1:
            return self
        if self.redis_url is None:
            raise ValueError("{redis_url}: not set, but required by {workers}: workers share their load through Redis")
        named(f"{self.name}-{self.workers}")
        ports: dict[int, str] = {}
        for name, count in (("traffic_listen", 1), ("peer_listen", self.workers), ("admin_listen", self.workers)):
            first = getattr(self, name).port
            for port in range(first, first + count) if first else ():
                other = ports.setdefault(port, name)
                if other != name:
                    remedy = f"leave {self.workers} ports from each of {{peer_listen}} and {{admin_listen}}"
                    raise ValueError(f"{{{name}}}: port {port} of a worker is one of {{{other}}} too; {remedy}")
        return self

    @model_validator(mode="after")
    def _require_reachable_peer_url(self) -> AgentSettings:
        if self.advertise_peer_url is None and self.peer_listen.host in ("0.0.0.0", "::"):
            raise ValueError(
                f"{{advertise_peer_url}}: {self.peer_listen.host} is a wildcard address, which other regions cannot"
                " connect to; set the URL to https://host:port"
            )
        return self

    @model_validator(mode="after")
    def _require_url_of_server_name(self) -> AgentSettings:
        if self.advertise_peer_server_name is not None and self.advertise_peer_url is None:
            raise ValueError(
                "{advertise_peer_server_name}: requires {advertise_peer_url}, the URL of the gateway that selects by it"
            )
        if self.advertise_peer_url is not None and "?" in self.advertise_peer_url:
            raise ValueError("{advertise_peer_url}: set the name of the handshake in {advertise_peer_server_name}")
        return self

    @model_validator(mode="after")
    def _require_encrypted_peer_urls(self) -> AgentSettings:
        by_setting = {
            f"{{peer_urls}}[{region}][{number}]": url
            for region, urls in self.peer_urls.items()
            for number, url in enumerate(urls)
        }
        if self.advertise_peer_url is not None:
            by_setting["{advertise_peer_url}"] = self.advertise_peer_url
        for setting, url in by_setting.items():
            if not Address.parse(url).tls and "peers" not in self.allow_plaintext:
                remedy = "set it to an https URL, or add peers to {allow_plaintext}"
                raise ValueError(f"{setting}: {url} is not encrypted; {remedy}")
        return self

    @model_validator(mode="after")
    def _require_encrypted_links(self) -> AgentSettings:
        """Reject URLs of other machines that are not encrypted, unless `allow_plaintext` has them."""
        for number, url in enumerate(self.control_plane_urls):
            address = Address.parse(url)
            if not address.tls and not is_loopback(address.host) and "control-planes" not in self.allow_plaintext:
                remedy = "set it to an https URL, or add control-planes to {allow_plaintext}"
                raise ValueError(f"{{control_plane_urls}}[{number}]: {url} is not encrypted; {remedy}")
        if self.otlp_endpoint is not None and "otlp" not in self.allow_plaintext:
            address = Address.parse(self.otlp_endpoint)
            if not address.tls and not is_loopback(address.host):
                remedy = "set it to an https URL, or add otlp to {allow_plaintext}"
                raise ValueError(f"{{otlp_endpoint}}: {self.otlp_endpoint} is not encrypted; {remedy}")
        if self.redis_url is not None and "redis" not in self.allow_plaintext:
            parts = urlsplit(self.redis_url.get_secret_value())
            if parts.scheme == "redis" and not is_loopback(parts.hostname or "localhost"):
                remedy = "use rediss://, or add redis to {allow_plaintext}"
                raise ValueError(f"{{redis_url}}: the connection to {parts.hostname} is not encrypted; {remedy}")
        return self

    @model_validator(mode="after")
    def _require_trusted_proxies(self) -> AgentSettings:
        if self.location_header and not self.trusted_proxies:
            raise ValueError("{location_header}: only trusted proxies may send it; set {trusted_proxies} too")
        return self

    @model_validator(mode="after")
    def _require_complete_tls_files(self) -> AgentSettings:
        traffic = (self.traffic_certificate_file, self.traffic_key_file)
        if (traffic[0] is None) != (traffic[1] is None) or (self.traffic_client_ca_file and traffic[0] is None):
            raise ValueError(
                "{traffic_certificate_file}: requires {traffic_key_file}; set both (for {traffic_client_ca_file} too)"
            )
        for name in ("admin", "etcd", "redis"):
            certificate, key = getattr(self, f"{name}_certificate_file"), getattr(self, f"{name}_key_file")
            if (certificate is None) != (key is None):
                raise ValueError(f"{{{name}_certificate_file}}: requires {{{name}_key_file}}; set both")
        return self

    @field_validator("etcd_endpoints")
    @classmethod
    def _etcd_endpoints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("name at least one etcd member as host:port")
        for endpoint in value:
            host_port(endpoint)
        return value

    @field_validator("redis_url")
    @classmethod
    def _redis_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            url = value.get_secret_value()
            try:
                parse_redis_url(url)
            except ValueError:
                raise ValueError("not a Redis URL, such as rediss://host:6379/0") from None
            in_query = [name for name in parse_qs(urlsplit(url).query) if name.startswith("ssl_")]
            if in_query:
                raise ValueError(
                    f"{in_query[0]} is not used; set {{redis_ca_file}} or {{redis_certificate_file}} instead"
                )
        return value


def load_settings(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> AgentSettings:
    """Return the settings. Flags, by field name, override the environment, which overrides the configuration file.

    Raises:
        BadSettings: settings are missing or invalid; the message never contains a URL that may contain a password.
    """
    return load_with_origins(AgentSettings, PREFIX, config=config, flags=flags).settings

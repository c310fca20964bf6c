"""Base path, headers, credential, certificates and model names in the endpoints file and in registrations."""

import json
from pathlib import Path
from random import Random

import pytest

from regional_agent.endpoints.discovery.discovered_server import DiscoveredServer, read_attributes
from regional_agent.endpoints.discovery.dns_discovery import DnsEntry
from regional_agent.endpoints.discovery.kubernetes_entry import KubernetesEntry
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_file import BadEndpointFile, parse_endpoints
from regional_agent.endpoints.endpoint_options import FILE_CHECKS, MAX_HEADERS
from regional_agent.endpoints.endpoint_registration import Registrations
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings, EndpointSources
from regional_agent.upstream.upstream_pool import UpstreamPool

TOKEN = "0123456789abcdef-registration"

HEAD = "- name: gpu-1\n  url: https://10.0.0.1:8000\n  models: [llama-3-8b, 'm']\n  slots: 4\n"
GOOD = (
    HEAD
    + """\
  base_path: /llama/v2
  headers: {X-Team: search, x-cluster: "7"}
  engine_names:
    llama-3-8b: meta-llama/Meta-Llama-3-8B
  credential_file: /etc/penstock/engine.key
  credential_header: X-API-Key
  ca_file: /etc/penstock/ca.pem
  client_certificate_file: /etc/penstock/tls.pem
  client_key_file: /etc/penstock/tls.key
  server_name: engines.internal
"""
)


def parse(text: str) -> tuple[EndpointSpec | DnsEntry, ...]:
    return parse_endpoints(text.encode(), Path("endpoints.yaml"))


def test_reads_every_option() -> None:
    (spec,) = parse(GOOD)
    assert isinstance(spec, EndpointSpec)
    assert (spec.base_path, spec.headers) == ("/llama/v2", (("x-team", "search"), ("x-cluster", "7")))
    assert spec.engine_names == (("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),)
    assert (spec.credential_file, spec.credential_header) == ("/etc/penstock/engine.key", "x-api-key")
    assert (spec.ca_file, spec.client_certificate_file, spec.client_key_file, spec.server_name) == (
        "/etc/penstock/ca.pem",
        "/etc/penstock/tls.pem",
        "/etc/penstock/tls.key",
        "engines.internal",
    )


def test_an_endpoint_with_a_label_serves_the_models_of_its_pool_alone(tmp_path: Path) -> None:
    (tmp_path / "endpoints.yaml").write_text(HEAD + "  pool: bank\n  engine_names: {m: M}\n")
    sources = EndpointSources(EndpointSettings(tmp_path / "endpoints.yaml"), Random(1), lambda: None)
    (spec,) = sources.specs
    assert spec.models == ("llama-3-8b-bank", "m-bank")
    assert dict(spec.engine_names) == {"llama-3-8b-bank": "llama-3-8b", "m-bank": "M"}
    with pytest.raises(BadEndpointFile, match="m-bank is one of the models"):
        parse(HEAD.replace("'m'", "m, m-bank") + "  pool: bank\n")


def test_a_label_of_a_discovered_server_that_cannot_be_read_lets_it_serve_nothing() -> None:
    (entry,) = parse(HEAD.replace("url: https://10.0.0.1:8000", "kubernetes: {namespace: a, service: b}"))
    assert isinstance(entry, KubernetesEntry)
    for label, model in (("bank", "m-bank"), ("bank!", "m-invalid")):
        attributes = read_attributes({"models": "m", "pool": label}, "Pod a", [])
        (spec,) = entry.expanded((DiscoveredServer("10.0.0.9", 80, attributes.models, pool=attributes.pool),))
        assert spec.in_pool().models == (model,)


def test_the_engines_of_a_dns_name_have_its_certificate() -> None:
    (entry,) = parse(HEAD.replace("url: https://10.0.0.1:8000", "dns: https://engines.internal:8443"))
    assert isinstance(entry, DnsEntry)
    (spec,) = entry.expanded(["10.0.0.9"])
    assert (spec.address.host, spec.address.port, spec.address.tls) == ("10.0.0.9", 8443, True)
    assert spec.server_name == "engines.internal"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("base_path: llama", "base_path: 'llama' is not a base path"),
        ("base_path: /", "base_path: '/' is not a base path"),
        ("base_path: /a/", "base_path: '/a/' is not a base path"),
        ("base_path: /a/../b", "base_path: '/a/../b' is not a base path"),
        ("base_path: /a/%2e%2e/b", "base_path: '/a/%2e%2e/b' is not a base path"),
        ("base_path: /a?key=1", "base_path: '/a?key=1' is not a base path"),
        ('base_path: "/a HTTP/1.1\\r\\nx: y"', "base_path: '/a HTTP/1.1\\r\\nx: y' is not a base path"),
        (f"base_path: /{'a' * 256}", "base_path:"),
        ("headers: [x-team, search]", f"headers: not a mapping of 1-{MAX_HEADERS} headers"),
        ("headers: {}", "headers: not a mapping"),
        (f"headers: {{{', '.join(f'x-{n}: a' for n in range(17))}}}", "headers: not a mapping"),
        ("headers: {x-team: 7}", "headers: not a text"),
        ("headers: {x-team: {a: b}}", "headers: not a text"),
        ('headers: {x-team: "a\\r\\nx-other: b"}', "headers: x-team: the value is not"),
        ('headers: {x-team: "a\\n"}', "headers: x-team: the value is not"),
        ('headers: {x-team: "\\u00e9"}', "headers: x-team: the value is not"),
        (f"headers: {{x-team: {'a' * 1025}}}", "headers: x-team: the value is not"),
        ('headers: {"x-team: a\\r\\nb": c}', "headers: 'x-team: a\\r\\nb' is not the name of a header"),
        ("headers: {x-team: a, X-Team: b}", "headers: a header is named twice"),
        ("headers: {x-team: a, x_team: b}", "headers: a header is named twice"),
        ("headers: {x-team: a, x-team: b}", "headers: a name is given twice"),
        *(
            (f"headers: {{{name}: a}}", f"headers: {name}: the agent sets this header itself")
            for name in ("Host", "Content-Length", "content_length", "Transfer-Encoding", "Connection", "traceparent")
        ),
        ("headers: {x-penstock-route: a}", "headers: x-penstock-route: the agent sets this header itself"),
        ("headers: {X_Penstock_Route: a}", "headers: X_Penstock_Route: the agent sets this header itself"),
        ("headers: {Authorization: Bearer a}", "headers: Authorization: a credential does not belong"),
        ("engine_names: {other: x}", "engine_names: 'other' is not one of the endpoint's models"),
        ("engine_names: {llama-3-8b: m}", "engine_names: 'm', the engine's name of 'llama-3-8b', is itself"),
        ("engine_names: {llama-3-8b: m, m: llama-3-8b}", "engine_names: 'm', the engine's name of 'llama-3-8b'"),
        ("engine_names: {llama-3-8b: x, m: x}", "engine_names: two models have the same name"),
        ('engine_names: {m: "a\\nb"}', "engine_names: m: the engine's name has control characters"),
        (f"engine_names: {{m: {'x' * 257}}}", "engine_names: a name has more than 256"),
        ("engine_names: {m: 7}", "engine_names: not a text"),
        ("credential_file: engine.key", "credential_file: 'engine.key' is not an absolute path"),
        ("credential_header: x-api-key", "credential_header: there is no credential"),
        (
            "credential_file: /k\n  credential_header: x-api-key\n  headers: {X_API_KEY: a}",
            "headers: x-api-key is the header of the credential",
        ),
        ("credential_file: /k\n  credential_header: host", "credential_header: host: the agent sets this header"),
        ("client_key_file: /k", "client_key_file: a certificate and its key belong together"),
        ("client_certificate_file: /k", "client_certificate_file: a certificate and its key belong together"),
        ("server_name: a b", "server_name: 'a b' is not a host name"),
    ],
)
def test_a_bad_option_is_refused_with_line_and_remedy(lines: str, message: str) -> None:
    with pytest.raises(BadEndpointFile) as caught:
        parse(f"{HEAD}  {lines}\n")
    first = str(caught.value).splitlines()[0]
    field = message.partition(":")[0]
    at = 5 + next(n for n, line in enumerate(lines.split("\n")) if line.strip().startswith(field + ":"))
    assert first.startswith(f"endpoints.yaml:{at}: {message}")
    assert ";" in first


@pytest.mark.parametrize(
    "field", ["ca_file: /ca", "server_name: x", "client_certificate_file: /a\n  client_key_file: /b"]
)
@pytest.mark.parametrize("address", ["url: http://10.0.0.1:8000", "dns: engines.internal:8000"])
def test_options_of_tls_need_tls(field: str, address: str) -> None:
    with pytest.raises(BadEndpointFile, match=r":5: \w+: the address does not use TLS; write https://"):
        parse(f"{HEAD}  {field}\n".replace("url: https://10.0.0.1:8000", address))


def test_a_registration_may_not_name_files(tmp_path: Path) -> None:
    (tmp_path / "endpoints.yaml").write_text("[]")
    (tmp_path / "tokens").write_text(TOKEN)
    endpoints = EndpointSet(EndpointSettings(tmp_path / "endpoints.yaml"), UpstreamPool(), Random(1))
    registrations = Registrations(endpoints, tmp_path / "tokens")

    def put(**more: object) -> tuple[int, str]:
        body = {"url": "https://10.0.0.1:8000", "models": ["m"], "slots": 1, **more}
        reply = registrations.handle(b"PUT", b"/v1/endpoints/a", b"Bearer " + TOKEN.encode(), json.dumps(body).encode())
        return reply.status, reply.body.decode()

    for field in FILE_CHECKS:
        status, body = put(**{field: "/etc/shadow"})
        assert (status, f"{field}: not accepted from the network" in body) == (400, True)
    for field, value in (("base_path", "/../x"), ("headers", {"host": "x"}), ("engine_names", {"m": "a", "n": "b"})):
        assert put(**{field: value})[0] == 400
    assert endpoints.sources.specs == []
    assert put(base_path="/x", headers={"x-team": "a"}, engine_names={"m": "org/m"})[0] == 201
    (spec,) = endpoints.sources.specs
    assert (spec.base_path, spec.headers, spec.engine_names) == ("/x", (("x-team", "a"),), (("m", "org/m"),))

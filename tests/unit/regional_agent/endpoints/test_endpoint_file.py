import os
from pathlib import Path

import pytest

from adapters.files.tls_files import BadTlsFiles
from adapters.tls_contexts import ServerTls
from penstock.health.engines.engine_kinds import EngineKind
from regional_agent.endpoints.discovery.dns_discovery import DnsEntry
from regional_agent.endpoints.discovery.endpoint_discovery import Entry
from regional_agent.endpoints.discovery.kubernetes_entry import KubernetesEntry
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_file import (
    MAX_FILE_BYTES,
    MAX_PROBLEMS,
    BadEndpointFile,
    parse_endpoints,
    read_endpoint_file,
)
from regional_agent.endpoints.endpoint_registration import BadRegistrationToken, load_tokens
from regional_agent.upstream.address import Address

PATH = Path("endpoints.yaml")
GOOD = """\
- name: gpu-1
  url: http://127.0.0.1:8001
  models: [llama-3-8b, "7"]
  zone: a
  accelerator: h100
  slots: 16
  queue: 4
- {name: gpu-2, url: "http://[::1]:8002", models: [llama-3-8b], slots: 8}
"""
DNS = "- {name: gpus, dns: 'engines.test:8000', models: [llama-3-8b], slots: 8}\n"


def parse(text: str) -> tuple[Entry, ...]:
    return parse_endpoints(text.encode(), PATH)


def test_reads_every_field_and_its_default() -> None:
    assert parse(GOOD) == (
        EndpointSpec("gpu-1", Address("127.0.0.1", 8001), ("llama-3-8b", "7"), 16, 4, "a", "h100"),
        EndpointSpec("gpu-2", Address("::1", 8002), ("llama-3-8b",), 8),
    )
    assert parse("[]") == ()


def test_reads_optional_fields_and_dns_entries() -> None:
    text = GOOD.replace("queue: 4", "queue: 4\n  engine: triton\n  version: 25.1\n  health: /ok\n  metrics_port: 8002")
    text = text.replace(
        "metrics_port: 8002", "metrics_port: 8002\n  gpu_metrics_port: 9400\n  gpus: [0, GPU-0a1b2c3d-44]"
    )
    text = text.replace("version: 25.1", "version: '25.1'") + DNS
    first, _, gpus = parse(text)
    assert isinstance(first, EndpointSpec)
    assert (first.engine, first.version, first.health.path, first.metrics_port) == (
        EngineKind.TRITON,
        "25.1",
        "/ok",
        8002,
    )
    assert (first.gpu_metrics_port, first.gpus) == (9400, ("0", "GPU-0a1b2c3d-44"))
    assert isinstance(gpus, DnsEntry)
    assert (gpus.host, gpus.template.address) == ("engines.test", Address("engines.test", 8000))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("name: gpu-1", "name: ../x"), ":1: name: '../x' is not a name"),
        (("name: gpu-1", "name: 17"), ":1: name: not a text"),
        (("name: gpu-1\n  ", ""), ":1: name: missing"),
        (("http://127.0.0.1:8001", "127.0.0.1:8001"), ":2: url: '127.0.0.1:8001' is not an address"),
        (("http://127.0.0.1:8001", "http://127.0.0.1:8001/v1"), ":2: url: has more than a host and a port; write"),
        (
            ("http://127.0.0.1:8001", "http://u:hidden@127.0.0.1:8001"),
            ":2: url: has more than a host and a port; write",
        ),
        (("http://127.0.0.1:8001", "http://127.0.0.1:8001?a=b"), ":2: url: has more than a host and a port; write"),
        (("http://127.0.0.1:8001", "http://127.0.0.1:99999"), ":2: url: 'http://127.0.0.1:99999' is not an address"),
        (('[llama-3-8b, "7"]', "llama-3-8b"), ":3: models: not a list"),
        (('[llama-3-8b, "7"]', "[]"), ":3: models: not a list of 1-64"),
        (('[llama-3-8b, "7"]', "[a, a]"), ":3: models: a model is named twice"),
        (("slots: 16", "slots: 0"), ":6: slots: not a whole number from 1"),
        (("slots: 16", "slots: 1.5"), ":6: slots: not a whole number"),
        (("slots: 16", "slots: '16'"), ":6: slots: not a whole number"),
        (
            ("slots: 16", "slots: some"),
            ":6: slots: not a whole number from 1 to 100000; write the number of requests",
        ),
        (("slots: 16", "slots: auto"), ":6: slots: auto was removed; write the number of requests"),
        (("slots: 16", "slots: 16\n  max_slots: 32"), ":7: max_slots: no such field"),
        (("queue: 4", "queue: -1"), ":7: queue: not a whole number from 0"),
        (("queue: 4", "queued: 4"), ":7: queued: no such field; use one of name, url"),
        (("queue: 4", "slots: 4"), ":7: slots: given twice"),
        (("gpu-2", "gpu-1"), ":8: name: gpu-1 is also that of gpu-1 (line 1)"),
        (("[::1]:8002", "127.0.0.1:8001"), ":8: url: 127.0.0.1:8001 is also that of gpu-1 (line 1)"),
        (("queue: 4\n", "queue: 4\n - x\n"), ":8: not YAML"),
        (("queue: 4", "engine: vlm"), ":7: engine: 'vlm' is not a kind of engine; use one of auto, vllm"),
        (("queue: 4", "health: ok"), ":7: health: 'ok' is not a path"),
        (("queue: 4", "version: a b"), ":7: version: 'a b' is not a version"),
        (("queue: 4", "gpus: [a]"), ":7: gpus: a GPU is neither an index nor a UUID"),
        (("queue: 4", "gpus: 0"), ":7: gpus: not a list of 1-64 GPUs"),
        (("queue: 4", "burst: 'true'"), ":7: burst: neither true nor false; write one of them, without quotes"),
        (("queue: 4", "burst: yes"), ":7: burst: neither true nor false"),
        (("queue: 4", "burst: true\n  metrics_port: 1"), ":8: metrics_port: nothing but requests may reach a burst"),
        (("queue: 4", "metrics_port: 0"), ":7: metrics_port: not a port; write a whole number from 1"),
        (("queue: 4", "dns: 'engines:80'"), ":1: dns: the endpoint also has a url"),
        (("url: http://127.0.0.1:8001", "dns: engines"), ":2: dns: not a name with a port"),
        (("url: http://127.0.0.1:8001", "dns: 'engines/x:80'"), ":2: dns: not a name with a port"),
        (
            ("name: gpu-1\n  url: http://127.0.0.1:8001", "name: a-name-that-is-too-long-for-it\n  dns: 'engines:80'"),
            ":1: name: more than 23",
        ),
    ],
)
def test_error_names_line_and_field(change: tuple[str, str], message: str) -> None:
    with pytest.raises(BadEndpointFile) as caught:
        parse(GOOD.replace(*change))
    (line,) = str(caught.value).splitlines()
    assert line.startswith("endpoints.yaml" + message)
    assert ";" in line


def test_reads_kubernetes_entries() -> None:
    service, pool = parse(
        "- name: b\n"
        "  kubernetes: {namespace: ml, service: llama, port: http, scheme: https, slots_label: team/slots}\n"
        "- {name: c, kubernetes: {namespace: ml, inference_pool: llama}, models: [m], slots: 4}\n"
    )
    assert isinstance(service, KubernetesEntry)
    assert service.source.key == "https://kubernetes.default.svc:443/ml/services/llama:http"
    assert dict(service.source.labels)["slots"] == "team/slots"
    assert dict(service.source.labels)["models"] == "penstock/models"
    assert service.source.token_file == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert (service.template.server_name, service.template.models, service.template.slots) == ("llama.ml.svc", (), 0)
    assert isinstance(pool, KubernetesEntry)
    assert (pool.source.inference_pool, pool.template.slots) == ("llama", 4)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("dns: 'engines.test:80', ca_file: /ca, models: [m], slots: 1", "ca_file: the address does not use TLS"),
        ("dns: 'engines.test:80', slots: 1", "models: missing"),
        ("kubernetes: ml/llama", "kubernetes: not a mapping"),
        ("kubernetes: {service: llama}", "kubernetes: namespace: missing"),
        ("kubernetes: {namespace: ML, service: llama}", "kubernetes: namespace: 'ML' is not the name of a namespace"),
        ("kubernetes: {namespace: ../x, service: llama}", "is not the name of a namespace"),
        ("kubernetes: {namespace: ml}", "name either a service or an inference_pool"),
        ("kubernetes: {namespace: ml, inference_pool: a, port: 80}", "port: the InferencePool contains its ports"),
        ("kubernetes: {namespace: ml, service: a, api_server: 'http://k:80'}", "api_server: not of the form https://"),
        (
            "kubernetes: {namespace: ml, service: a, api_server: 'https://k:80/a'}",
            "api_server: not of the form https://",
        ),
        ("kubernetes: {namespace: ml, service: a, label: x}", "label: no such field; use one of namespace, service"),
        ("kubernetes: {namespace: ml, service: a, token_file: token}", "token_file: 'token' is not an absolute path"),
        ("kubernetes: {namespace: ml, inference_pool: a, scheme: https}", "server_name: missing"),
        ("kubernetes: {namespace: ml, service: llama}, name: a-name-too-long-for-it", "name: more than 17"),
    ],
)
def test_error_of_a_directory_names_the_field(entry: str, message: str) -> None:
    name = "" if "name: a-name" in entry else "name: gpus, "
    with pytest.raises(BadEndpointFile) as caught:
        parse(f"- {{{name}{entry}}}\n")
    (line,) = str(caught.value).splitlines()
    assert line.startswith("endpoints.yaml:1: ")
    assert message in line


@pytest.mark.parametrize("text", ["", "name: gpu-1", "just words"])
def test_rejects_what_is_not_a_list(text: str) -> None:
    with pytest.raises(BadEndpointFile, match=r"endpoints\.yaml:1: not a list"):
        parse(text)


def test_reports_all_errors_up_to_a_limit() -> None:
    with pytest.raises(BadEndpointFile) as caught:
        parse("- name: x\n" * 100)
    assert len(str(caught.value).splitlines()) == MAX_PROBLEMS


@pytest.mark.parametrize(
    "host", ["a..b", ".a", "a b", "x" * 64, "a-", "e\u0301.test", "[::1", "[g::1]", "127.0.0.1\\0", "", "a." * 130]
)
def test_rejects_hosts_that_cannot_be_resolved(host: str) -> None:
    with pytest.raises(BadEndpointFile, match=r":2: url: .* write http://host:port"):
        parse(GOOD.replace("http://127.0.0.1:8001", f'"http://{host}:8001"'))


def test_rejects_nested_aliases_without_expanding_them() -> None:
    lists = ["&l0 [m]", *(f"&l{n} [{', '.join([f'*l{n - 1}'] * 50)}]" for n in range(1, 9))]
    with pytest.raises(BadEndpointFile, match="models"):
        parse("".join(f"- {{name: x{n}, slots: 1, models: {models}}}\n" for n, models in enumerate(lists)))


def test_accepts_an_alias_of_a_list() -> None:
    _, two = parse(
        "- {name: a, url: 'http://h:1', slots: 1, models: &all [m, n]}\n"
        "- {name: b, url: 'http://h:2', slots: 1, models: *all}\n"
    )
    assert isinstance(two, EndpointSpec)
    assert two.models == ("m", "n")


def test_accepts_a_byte_order_mark_and_crlf() -> None:
    assert parse("\ufeff" + GOOD.replace("\n", "\r\n")) == parse(GOOD)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (MAX_FILE_BYTES + 1), b"[" * 100_000, b"- !!python/x {}"])
def test_rejects_hostile_content(content: bytes) -> None:
    with pytest.raises(BadEndpointFile, match=r"endpoints\.yaml"):
        parse_endpoints(content, PATH)


def test_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadEndpointFile, match="cannot read the endpoints"):
        read_endpoint_file(tmp_path / "none.yaml")


def test_rejects_a_file_that_is_not_regular(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, problem in ((tmp_path, "Is a directory"), (tmp_path / "pipe", "a FIFO, not a regular file")):
        with pytest.raises(BadEndpointFile, match=f"{problem}; put the file there"):
            read_endpoint_file(path)
        with pytest.raises(BadTlsFiles, match=problem):
            ServerTls(path, path)
        with pytest.raises(BadRegistrationToken, match=problem):
            load_tokens(path)

import ssl
from ipaddress import ip_network
from pathlib import Path

import pytest

from adapters.configuration.settings_loader import BadSettings
from adapters.files.identity_files import CERTIFICATE, PRIVATE_KEY, IdentityFiles
from penstock.wire.identity import ProcessRole
from regional_agent.agent_tls import AgentTls
from regional_agent.config.settings import PREFIX, load_settings
from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address
from tests.support.identities import agent_id, write_identity

GOOD = {
    "REGION": "eu-de",
    "NAME": "agent-1",
    "TRAFFIC_LISTEN": "127.0.0.1:0",
    "PEER_LISTEN": "[::1]:8081",
    "ADMIN_LISTEN": "0.0.0.0:8082",
    "ETCD_ENDPOINTS": "127.0.0.1:2379, etcd.internal:2379",
    "ENDPOINTS_FILE": "/etc/penstock/endpoints.yaml",
    "IDENTITY_DIR": "/etc/penstock/identity",
    "STATE_DIR": "/var/lib/penstock",
}


def given(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    for field, value in {**GOOD, **changes}.items():
        monkeypatch.setenv(PREFIX + field, value)


def test_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given(
        monkeypatch,
        PEER_URLS='{"eu-es": ["https://127.0.0.1:9001/"]}',
        CONTROL_PLANE_URLS='["http://127.0.0.1:9002"]',
        REDIS_URL="redis://:hidden@127.0.0.1:6379/0",
        TRUSTED_PROXIES="10.0.0.0/8,::1/128",
        LOCATION_HEADER="CF-IPCountry",
        GEOIP_FILE="",
        LIMITS='{"idle_timeout_s": 5, "max_connections": 10}',
    )
    settings = load_settings()
    assert (settings.region, settings.name) == ("eu-de", "agent-1")
    assert settings.traffic_listen == Address("127.0.0.1", 0)
    assert settings.peer_listen == Address("::1", 8081)
    assert settings.etcd_endpoints == ("127.0.0.1:2379", "etcd.internal:2379")
    assert settings.peer_urls == {"eu-es": ("https://127.0.0.1:9001",)}
    assert settings.control_plane_urls == ("http://127.0.0.1:9002",)
    assert settings.trusted_proxies == (ip_network("10.0.0.0/8"), ip_network("::1/128"))
    assert settings.location_header == "CF-IPCountry"
    assert settings.endpoints_file == Path("/etc/penstock/endpoints.yaml")
    assert settings.geoip_file is None
    assert settings.limits == Limits(idle_timeout_s=5.0, max_connections=10)
    assert settings.redis_url is not None
    assert "hidden" not in repr(settings)


def test_http_urls_of_peers_are_accepted_where_they_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = {"PEER_URLS": '{"eu-es": ["http://a:1"]}', "ADVERTISE_PEER_URL": "http://b:1"}
    given(monkeypatch, **urls, ALLOW_PLAINTEXT="peers")
    settings = load_settings()
    assert settings.peer_urls == {"eu-es": ("http://a:1",)}
    assert settings.advertise_peer_url == "http://b:1"


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"ADVERTISE_PEER_SERVER_NAME": "a.example"}, "requires PENSTOCK_AGENT_ADVERTISE_PEER_URL"),
        ({"ADVERTISE_PEER_SERVER_NAME": "10.0.0.1"}, "is not a DNS name"),
        ({"ADVERTISE_PEER_URL": "https://a:1?server_name=b"}, "set the name of the handshake in"),
        ({"PEER_URLS": '{"eu-es": ["https://a:1?server_name=-"]}'}, "server_name must be a DNS name"),
    ],
)
def test_invalid_names_of_handshakes_are_refused(
    monkeypatch: pytest.MonkeyPatch, given_settings: dict[str, str], message: str
) -> None:
    given(monkeypatch, **given_settings)
    with pytest.raises(BadSettings, match=message):
        load_settings()


@pytest.mark.parametrize(
    ("link", "field", "url"),
    [("redis", "REDIS_URL", "redis://a:1"), ("control-planes", "CONTROL_PLANE_URLS", "http://a:1")],
)
def test_plain_text_leaves_the_machine_where_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch, link: str, field: str, url: str
) -> None:
    given(monkeypatch, **{field: url}, ALLOW_PLAINTEXT=f"etcd, {link}")
    assert load_settings().allow_plaintext == {"etcd", link}


def test_overrides_take_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch)
    assert load_settings({"region": "eu-es"}).region == "eu-es"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("REGION", "Not A Region", "REGION: 'Not A Region' is no name; use 1 to 63 lower-case letters"),
        ("TRAFFIC_LISTEN", "8080", "TRAFFIC_LISTEN: '8080' is not of the form host:port"),
        ("PEER_LISTEN", "host:99999", "PEER_LISTEN: 'host:99999' is not of the form host:port"),
        ("ETCD_ENDPOINTS", " , ", "ETCD_ENDPOINTS: name at least one"),
        ("ETCD_ENDPOINTS", "http", "ETCD_ENDPOINTS: 'http' is not of the form host:port"),
        ("CONTROL_PLANE_URLS", "ftp://a:1", "CONTROL_PLANE_URLS[0]: 'ftp://a:1' is not of the form http://host:port"),
        ("PEER_LISTEN", "0.0.0.0:8081", "ADVERTISE_PEER_URL: 0.0.0.0 is a wildcard address"),
        ("PEER_URLS", "{", "PEER_URLS: not JSON"),
        ("PEER_URLS", '{"eu-es": ["nowhere"]}', "PEER_URLS[eu-es][0]: 'nowhere' is not"),
        ("REDIS_URL", "http://:hidden@a:1", "REDIS_URL: not a Redis URL"),
        ("REDIS_URL", "redis://:hidden@a:port", "REDIS_URL: not a Redis URL"),
        (
            "OTLP_ENDPOINT",
            "http://a:4318",
            "OTLP_ENDPOINT: http://a:4318 is not encrypted; set it to an https URL, or add",
        ),
        ("OTLP_ENDPOINT", "https://a:1/v1/traces", "OTLP_ENDPOINT: 'https://a:1/v1/traces' has a path"),
        ("CONTROL_PLANE_URLS", "https://u:hidden@a:1", "CONTROL_PLANE_URLS[0]: the URL names a user; agents have"),
        ("CONTROL_PLANE_URLS", "https://a:1/cp", "CONTROL_PLANE_URLS[0]: 'https://a:1/cp' has a path"),
        ("REDIS_URL", "redis://:hidden@a:1", "REDIS_URL: the connection to a is not encrypted; use rediss://, or add"),
        ("REDIS_URL", "rediss://:hidden@a:1?ssl_ca_certs=x", "REDIS_URL: ssl_ca_certs is not used; set PENSTOCK"),
        ("CONTROL_PLANE_URLS", "http://[::1]:1,http://a:1", "CONTROL_PLANE_URLS[1]: http://a:1 is not encrypted"),
        ("ALLOW_PLAINTEXT", "engines", "ALLOW_PLAINTEXT[0]: Input should be"),
        ("ADMIN_KEY_FILE", "/k", "ADMIN_CERTIFICATE_FILE: requires PENSTOCK_AGENT_ADMIN_KEY_FILE; set both"),
        ("REDIS_CERTIFICATE_FILE", "/k", "REDIS_CERTIFICATE_FILE: requires PENSTOCK_AGENT_REDIS_KEY_FILE; set both"),
        ("LIMITS", "{", "LIMITS: not JSON: Expecting property name"),
        ("LIMITS", '{"idle": 1}', "LIMITS: no limit 'idle'; the fields are in"),
        ("LIMITS", '{"idle_timeout_s": 0}', "LIMITS: idle_timeout_s is 0.0; it must be more than 0"),
        ("LIMITS", '{"head_timeout_s": NaN}', "LIMITS: head_timeout_s is nan; it must be more than 0"),
        (
            "LIMITS",
            '{"request_timeout_s": 1e300}',
            "LIMITS: request_timeout_s is 1e+300; it must be at most one day",
        ),
        ("WARM_UP_S", "nan", "WARM_UP_S: Input should be less than or equal to 600"),
        ("EJECTION_S", "0", "EJECTION_S: Input should be greater than 0"),
        ("MAX_EJECTED_SHARE", "50", "MAX_EJECTED_SHARE: Input should be less than or equal to 1"),
        ("ACCESS_LOG_SHARE", "2", "ACCESS_LOG_SHARE: Input should be less than or equal to 1"),
        ("ETCD_KEY_FILE", "/k", "ETCD_CERTIFICATE_FILE: requires PENSTOCK_AGENT_ETCD_KEY_FILE; set both"),
        ("TRAFFIC_KEY_FILE", "/k", "TRAFFIC_CERTIFICATE_FILE: requires PENSTOCK_AGENT_TRAFFIC_KEY_FILE"),
        ("TRAFFIC_CLIENT_CA_FILE", "/k", "TRAFFIC_CERTIFICATE_FILE: requires PENSTOCK_AGENT_TRAFFIC_KEY_FILE"),
        ("PEER_URLS", '{"eu-es": ["https://a:1", "http://b:1"]}', "PEER_URLS[eu-es][1]: http://b:1 is not encrypted"),
        ("ADVERTISE_PEER_URL", "http://a:1", "ADVERTISE_PEER_URL: http://a:1 is not encrypted; set it to an https URL"),
        (
            "LOCATION_HEADER",
            "X-Country",
            "LOCATION_HEADER: only trusted proxies may send it; set PENSTOCK_AGENT_TRUSTED_PROXIES",
        ),
        ("LOCATION_HEADER", "X_Country", "LOCATION_HEADER: 'X_Country' is not a header name"),
        ("LOCATION_HEADER", "X-Country\n", "LOCATION_HEADER: 'X-Country\\n' is not a header name"),
        ("LOCATION_HEADER", "a" * 65, "LOCATION_HEADER: 'aaa"),
        ("LOCATION_HEADER", "Authorization", "LOCATION_HEADER: Authorization has another meaning"),
        ("LOCATION_HEADER", "X-Forwarded-For", "LOCATION_HEADER: X-Forwarded-For has another meaning"),
        ("LOCATION_HEADER", "Content-Type", "LOCATION_HEADER: Content-Type has another meaning"),
        ("LOCATION_HEADER", "X-Penstock-Place", "LOCATION_HEADER: X-Penstock-Place has another meaning"),
        ("TRUSTED_PROXIES", "10.0.0.1/8", "TRUSTED_PROXIES[0]: 10.0.0.1/8 has host bits set"),
    ],
)
def test_names_an_invalid_setting_in_one_line(
    monkeypatch: pytest.MonkeyPatch, field: str, value: str, message: str
) -> None:
    given(monkeypatch, **{field: value})
    with pytest.raises(BadSettings) as caught:
        load_settings()
    (line,) = str(caught.value).splitlines()
    assert line.startswith(PREFIX + message)
    assert "hidden" not in line


def test_reports_all_missing_settings_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in GOOD:
        monkeypatch.delenv(PREFIX + field, raising=False)
    with pytest.raises(BadSettings) as caught:
        load_settings()
    assert str(caught.value).splitlines() == [f"{PREFIX}{field}: not set" for field in GOOD]


def test_the_admin_listener_requires_client_certificates_if_set_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given(monkeypatch, ADMIN_LISTEN="127.0.0.1:0", IDENTITY_DIR=str(write_identity(tmp_path, agent_id())))
    assert AgentTls(load_settings(), None).admin is None, "plain HTTP on a loopback address"
    required = AgentTls(load_settings({"admin_require_certificate": True}), None).admin
    assert required is not None
    assert required().verify_mode is ssl.CERT_REQUIRED


def test_the_certificate_of_another_process_is_presented_to_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = write_identity(tmp_path / "own", agent_id("eu-de"))
    given(monkeypatch, PICKER_LISTEN="10.0.0.1:0", IDENTITY_DIR=str(own))
    tls = AgentTls(
        load_settings({"admin_require_certificate": True}),
        IdentityFiles(own, ProcessRole.AGENT, "agent-1", "eu-de"),
    )
    before = {part: part() for part in (tls.peer, tls.admin, tls.picker, tls.to_control_planes, tls.to_peers)}
    another = write_identity(tmp_path / "another", agent_id("eu-es"))
    for name in (CERTIFICATE, PRIVATE_KEY):
        (own / name).write_bytes((another / name).read_bytes())
    for files in tls.files:
        files.reload_if_changed()
    assert {part: part() for part in before if part is not None} == before

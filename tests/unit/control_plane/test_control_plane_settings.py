"""A control plane's settings: flags take precedence over the environment; each invalid setting has a one-line error."""

# A row of a table of messages is one line.
# ruff: noqa: E501

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from adapters.access.callers import Role
from adapters.configuration.settings_loader import BadSettings
from control_plane.serve import tls_of_api
from control_plane.settings import HostPort, load_settings
from tests.support.identities import control_plane_id, write_identity


@pytest.fixture
def good(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    values = {
        "NAME": "north",
        "LISTEN": "127.0.0.1:0",
        "ETCD_ENDPOINTS": "127.0.0.1:2379, [::1]:2380",
        "POLICY_DIR": str(tmp_path),
        "IDENTITY_DIR": str(tmp_path / "identity"),
        "ADMIN_TOKEN_FILE": str(tmp_path / "token"),
    }
    monkeypatch.delenv("PENSTOCK_ADVERTISE_URL", raising=False)
    for name, value in values.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    return tmp_path


def bad(changes: dict[str, object] | None = None) -> list[str]:
    """The errors of the environment with changes; None removes a variable."""
    with pytest.MonkeyPatch.context() as patch:
        for field, value in (changes or {}).items():
            patch.setenv(f"PENSTOCK_{field.upper()}", "" if value is None else str(value))
        with pytest.raises(BadSettings) as caught:
            load_settings()
    return str(caught.value).splitlines()


def test_settings_come_from_the_environment(good: Path) -> None:
    settings = load_settings()
    assert settings.listen == HostPort("127.0.0.1", 0)
    assert settings.etcd_endpoints == ("127.0.0.1:2379", "[::1]:2380")
    assert settings.policy_dir == good


def test_flags_precede_the_environment(good: Path) -> None:
    assert load_settings({"name": "south", "listen": "[::1]:80"}).name == "south"


def test_every_missing_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAME", "LISTEN", "ETCD_ENDPOINTS", "POLICY_DIR", "IDENTITY_DIR", "ADMIN_TOKEN_FILE"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    assert bad() == [
        "PENSTOCK_NAME: not set",
        "PENSTOCK_LISTEN: not set",
        "PENSTOCK_ETCD_ENDPOINTS: not set",
        "PENSTOCK_IDENTITY_DIR: not set",
        "PENSTOCK_ADMIN_TOKEN_FILE: not set",
    ]


@pytest.mark.parametrize(
    ("field", "value", "line"),
    [
        ("listen", "8080", "PENSTOCK_LISTEN: '8080' is not of the form host:port, such as 127.0.0.1:8080"),
        ("listen", "a:99999", "PENSTOCK_LISTEN: 'a:99999' is not of the form host:port, such as 127.0.0.1:8080"),
        ("etcd_endpoints", "a", "PENSTOCK_ETCD_ENDPOINTS[0]: 'a' is not of the form host:port, such as 127.0.0.1:8080"),
        ("advertise_url", "north:80", "PENSTOCK_ADVERTISE_URL: 'north:80' is not of the form http://host:port"),
        ("advertise_url", "http://north:80", "PENSTOCK_ADVERTISE_URL: http://north:80 is not encrypted; set it to an https URL"),
        ("allow_plaintext", "redis", "PENSTOCK_ALLOW_PLAINTEXT[0]: Input should be 'api' or 'etcd'"),
        ("advertise_url", "http://north/x", "PENSTOCK_ADVERTISE_URL: 'http://north/x' is not of the form http://host:port"),
        ("advertise_url", "https://north/#x", "PENSTOCK_ADVERTISE_URL: 'https://north/#x' is not of the form http://host:port"),
        ("advertise_url", "https://north:0", "PENSTOCK_ADVERTISE_URL: 'https://north:0' is not of the form http://host:port"),
        ("advertise_url", "https://north:99999", "PENSTOCK_ADVERTISE_URL: Port out of range 0-65535"),
        ("advertise_url", "https://me:secret@north", "PENSTOCK_ADVERTISE_URL: the URL names a user; agents and operators have their own credentials"),
        ("policy_dir", "/nowhere/at/all", "PENSTOCK_POLICY_DIR: /nowhere/at/all is not a folder; create it with the policy bundle"),
        ("leader_lease_s", "1", "PENSTOCK_LEADER_LEASE_S: Input should be greater than or equal to 2"),
        ("leader_lease_s", "61", "PENSTOCK_LEADER_LEASE_S: Input should be less than or equal to 60"),
        ("name", "North Pole", "PENSTOCK_NAME: 'North Pole' is no name; use 1 to 63 lower-case letters"),
        ("listen", "0.0.0.0:80", "PENSTOCK_ADVERTISE_URL: not set, but required because 0.0.0.0:80 is a wildcard address"),
        ("trusted_proxies", "10.0.0.0/33", "PENSTOCK_TRUSTED_PROXIES[0]: value is not a valid IPv4 or IPv6 network"),
        ("tls_key_file", "/k", "PENSTOCK_TLS_CERTIFICATE_FILE: not set, but required by PENSTOCK_TLS_KEY_FILE"),
        ("etcd_key_file", "/k", "PENSTOCK_ETCD_CERTIFICATE_FILE: not set, but required by PENSTOCK_ETCD_KEY_FILE"),
        ("oidc_issuer", "https://i", "PENSTOCK_OIDC_AUDIENCE: not set, but required by PENSTOCK_OIDC_ISSUER"),
        ("oidc_roles", "sre", "PENSTOCK_OIDC_ROLES: 'sre' is not of the form group=role,group=role"),
        ("oidc_roles", "sre=king", "PENSTOCK_OIDC_ROLES[sre]: Input should be 'monitor', 'viewer', 'operator' or 'admin'"),
        ("oidc_jwks_url", "http://issuer/keys", "PENSTOCK_OIDC_JWKS_URL: 'http://issuer/keys' must be an https URL"),
        ("oidc_client_id", "page", "PENSTOCK_OIDC_ISSUER: not set, but required by PENSTOCK_OIDC_CLIENT_ID"),
        (
            "oidc_redirect_url",
            "https://penstock/signed-in",
            "PENSTOCK_OIDC_REDIRECT_URL: 'https://penstock/signed-in' is not of the form https://host:port/ui/signed-in",
        ),
        ("oidc_scopes", "groups", "PENSTOCK_OIDC_SCOPES: 'groups' are not scopes with openid, such as openid,groups"),
    ],
)  # fmt: skip
def test_every_invalid_setting_is_named(good: Path, field: str, value: str, line: str) -> None:
    (reported,) = bad({field: value})
    assert reported.startswith(line)


def test_every_address_may_be_listened_on_with_a_url(good: Path) -> None:
    settings = load_settings({"listen": "0.0.0.0:80", "advertise_url": "https://north:80/"})
    assert settings.advertise_url == "https://north:80"
    settings = load_settings({"advertise_url": "http://north:80", "allow_plaintext": "api"})
    assert settings.advertise_url == "http://north:80"


REPOSITORY = "PENSTOCK_POLICY_REPOSITORY: "


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({}, "PENSTOCK_POLICY_DIR: cannot be combined with PENSTOCK_POLICY_REPOSITORY"),
        ({"policy_repository": None, "policy_dir": None}, "PENSTOCK_POLICY_DIR: set either this or"),
        (
            {"policy_repository": None, "policy_ref": "v1", "policy_path": "a"},
            "PENSTOCK_POLICY_PATH, PENSTOCK_POLICY_REF: applies only with PENSTOCK_POLICY_REPOSITORY",
        ),
        (
            {"policy_repository": "ftp://u:secret@host/x"},
            REPOSITORY + "the repository's address is neither an absolute",
        ),
        ({"policy_repository": "https:///x"}, REPOSITORY + "the repository's address names no host"),
        ({"policy_repository": "https://h/x?t=secret"}, REPOSITORY + "the repository's address has a query"),
        (
            {"policy_dir": None, "policy_path": "../x"},
            "PENSTOCK_POLICY_PATH: '../x' is not a path inside the repository",
        ),
        ({"policy_dir": None, "policy_ref": "a b"}, "PENSTOCK_POLICY_REF: String should match pattern"),
        ({"policy_dir": None, "policy_poll_s": 0.1}, "PENSTOCK_POLICY_POLL_S: Input should be greater than"),
    ],
)
def test_a_policy_comes_from_one_place(good: Path, overrides: dict[str, object], line: str) -> None:
    (reported,) = bad({"policy_repository": "https://u:secret@host/policy.git", "policy_dir": good, **overrides})
    assert reported.startswith(line)
    assert "secret" not in reported


def test_a_repositorys_password_is_not_printed(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_POLICY_DIR")
    settings = load_settings({"policy_repository": "git@host:team/policy.git"})
    assert (settings.policy_ref, settings.policy_path) == ("main", "")
    settings = load_settings({"policy_repository": "https://u:hush@host/policy.git", "policy_path": "a/b/"})
    assert "hush" not in repr(settings)
    assert settings.policy_path == "a/b"


def test_identity_provider_and_certificates_are_configured(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OIDC_ISSUER": "https://issuer",
        "OIDC_AUDIENCE": "penstock",
        "OIDC_JWKS_URL": "https://issuer/keys",
        "OIDC_ROLES": "sre = operator, owners=admin",
        "TRUSTED_PROXIES": "10.0.0.0/8, 127.0.0.1",
        "ETCD_CA_FILE": "/ca.pem",
        "TLS_CERTIFICATE_FILE": "/c.pem",
        "TLS_KEY_FILE": "/k.pem",
    }.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    settings = load_settings()
    assert settings.oidc_roles == {"sre": Role.OPERATOR, "owners": Role.ADMIN}
    assert [str(network) for network in settings.trusted_proxies] == ["10.0.0.0/8", "127.0.0.1/32"]


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "192.0.2.1:8443"])
def test_the_api_requires_client_certificates_if_set_so(good: Path, listen: str) -> None:
    write_identity(good / "identity", control_plane_id("north"))
    optional = tls_of_api(load_settings({"listen": listen}))
    assert optional is None if listen.startswith("127.") else optional().verify_mode is ssl.CERT_OPTIONAL
    required = tls_of_api(load_settings({"listen": listen, "require_client_certificate": True}))
    assert required is not None, "TLS on loopback addresses, too"
    assert required().verify_mode is ssl.CERT_REQUIRED

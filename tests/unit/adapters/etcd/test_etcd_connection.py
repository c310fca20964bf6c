from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.etcd.etcd_connection import Connection, Connections, Endpoint, Tls, tls_to
from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from adapters.store.config_store import StoreUnavailable
from tests.support.identities import agent_id, authority, renew_identity, write_identity

HERE, THERE = Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)


def closed(connection: Connection) -> bool:
    try:
        connection.client.status()
    except ValueError:
        return True
    except Exception:
        # A free port without a listener.
        return False
    raise AssertionError("a process listens there")


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:2379", Endpoint("127.0.0.1", 2379)),
        ("[::1]:1", Endpoint("[::1]", 1)),
        ("etcd:2379", Endpoint("etcd", 2379)),
    ],
)
def test_endpoint_is_parsed(text: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize("text", ["", "etcd", ":2379", "etcd:", "etcd:0", "etcd:65536", "etcd:x", "http://etcd:2379"])
def test_bad_endpoint_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        Endpoint.parse(text)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="no etcd endpoint"):
        Connections([], None)
    with pytest.raises(ValueError, match="both cert_path and key_path"):
        Tls(ca_path=Path("ca"), cert_path=Path("cert")).watched()


def test_a_connection_is_shared_until_it_fails_then_the_next_endpoint_is_used() -> None:
    connections = Connections([HERE, THERE], None)
    with connections.use() as first, connections.use() as same:
        assert first is same
        connections.retire(first)
        with connections.use() as second:
            assert second.endpoint == THERE
            # A repeated or late report of the first endpoint's failure keeps the second endpoint.
            connections.retire(first)
        with connections.use() as still_second:
            assert still_second is second
        connections.retire(second)
        with connections.use() as third:
            assert third.endpoint == HERE
            assert third is not first
        assert closed(second)
        # The first channel is still in use.
        assert not closed(first)
    assert closed(first)
    connections.close()
    assert closed(third)


def test_close_ends_connections_in_use_and_opens_no_more() -> None:
    connections = Connections([HERE], None)
    with connections.use() as used:
        connections.close()
        assert closed(used)
    with pytest.raises(StoreUnavailable, match="closed"), connections.use():
        pass
    connections.close()


IDENTITY = Path("identity")
OWN = (IDENTITY / "tls.crt", IDENTITY / "tls.key")


@pytest.mark.parametrize(
    ("endpoints", "given", "tls"),
    [
        (("127.0.0.1:1", "[::1]:2", "localhost:3"), {}, None),
        (("127.0.0.1:1", "etcd:2"), {}, Tls(IDENTITY / "ca.crt", *OWN)),
        (("etcd:2",), {"allow_plaintext": True}, None),
        (("etcd:2",), {"allow_plaintext": True, "ca": Path("ca")}, Tls(Path("ca"), *OWN)),
        (("127.0.0.1:1",), {"ca": Path("ca")}, Tls(Path("ca"), *OWN)),
        (
            ("etcd:2",),
            {"certificate": Path("c"), "key": Path("k")},
            Tls(IDENTITY / "ca.crt", Path("c"), Path("k")),
        ),
    ],
)
def test_etcd_on_another_machine_is_reached_with_the_certificate_of_the_process(
    endpoints: tuple[str, ...], given: dict[str, Any], tls: Tls | None
) -> None:
    options = {"ca": None, "certificate": None, "key": None, "allow_plaintext": False, **given}
    assert tls_to(endpoints, identity_dir=IDENTITY, **options) == tls


def test_changed_files_are_read_for_a_new_connection(tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority().pem)
    files = Tls(ca).watched()
    connections = Connections([HERE, THERE], files)
    with connections.use() as first:
        ca.write_bytes(authority(1).pem)
        with connections.use() as same:
            assert same is first
        assert files.reload_if_changed()
        with connections.use() as renewed:
            assert renewed is not first
            assert renewed.endpoint == HERE
        assert not closed(first)
    assert closed(first)
    assert not files.reload_if_changed()
    with connections.use() as same:
        assert same is renewed
    connections.close()


def test_a_half_replaced_pair_leaves_the_last_credentials_in_force(tmp_path: Path) -> None:
    own, new = (write_identity(tmp_path / name, agent_id()) for name in ("own", "new"))
    renew_identity(new, agent_id())
    files = Tls(own / AUTHORITIES, own / CERTIFICATE, own / PRIVATE_KEY).watched()
    before = files.content
    (own / CERTIFICATE).write_bytes((new / CERTIFICATE).read_bytes())
    assert not files.reload_if_changed()
    assert files.content is before
    assert "to which the unencrypted key" in files.problem
    (own / PRIVATE_KEY).write_bytes((new / PRIVATE_KEY).read_bytes())
    assert files.reload_if_changed()
    (own / AUTHORITIES).write_text("half a certifica")
    assert not files.reload_if_changed()

"""An etcd that requires client certificates: mutual TLS, or no connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.etcd.etcd_connection import Tls
from adapters.etcd.etcd_store import EtcdStore
from adapters.store.config_store import StoreUnavailable
from tests.support.certificates import has_openssl_3, make_authority, make_certificate
from tests.support.secured_etcd import secured_etcd
from tests.support.stores import Following, put_when_possible

pytestmark = pytest.mark.skipif(not has_openssl_3(), reason="needs openssl >= 3 to make certificates")


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    directory = tmp_path / "certificates"
    make_authority(directory, "authority")
    make_authority(directory, "stranger")
    make_certificate(directory, "authority", "server")
    make_certificate(directory, "authority", "client")
    return directory


@pytest.fixture
def endpoint(tmp_path: Path, certificates: Path) -> Iterator[str]:
    with secured_etcd(tmp_path / "etcd", certificates, "server") as endpoint:
        yield endpoint


async def test_client_certificate_is_accepted(endpoint: str, certificates: Path) -> None:
    tls = Tls(
        ca_path=certificates / "authority.pem",
        cert_path=certificates / "client.pem",
        key_path=certificates / "client.key",
    )
    store = EtcdStore([endpoint], tls=tls)
    await put_when_possible(store, "/tls/x", b"1")
    async with Following(store, "/tls/") as following:
        assert following.values == {"/tls/x": b"1"}
        await put_when_possible(store, "/tls/y", b"2")
        await following.until(lambda: "/tls/y" in following.values)

    for bad in (
        Tls(ca_path=certificates / "authority.pem"),
        Tls(ca_path=certificates / "stranger.pem", cert_path=tls.cert_path, key_path=tls.key_path),
    ):
        refused = EtcdStore([endpoint], tls=bad)
        with pytest.raises(StoreUnavailable):
            await refused.get("/tls/x")
        await refused.close()
    await store.close()


async def test_missing_certificate_file_is_named(tmp_path: Path) -> None:
    store = EtcdStore(["127.0.0.1:1"], tls=Tls(ca_path=tmp_path / "absent.pem"))
    with pytest.raises(StoreUnavailable, match=r"absent\.pem"):
        await store.get("/x")
    with pytest.raises(StoreUnavailable, match=r"absent\.pem"):
        await anext(store.watch("/x", 0))
    await store.close()

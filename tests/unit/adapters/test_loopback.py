import pytest

from adapters.loopback import is_loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "LOCALHOST.", "etcd.localhost"]
)
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.example", "127.0.0.1.example", "notlocalhost", ""],
)
def test_other_machines(host: str) -> None:
    assert not is_loopback(host)

"""Fixtures that every test may use: real servers on free ports, each gone when its test or the session ends."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import structlog
from hypothesis import HealthCheck, settings

from adapters.servers.etcd import EtcdServer
from adapters.servers.process import ServerProcess
from adapters.servers.redis import RedisServer
from lab.server_starting import start_etcd
from tests.support.examples import DRAWS_ANEW, examples
from tests.support.fork_server import ForkServer
from tests.support.redis_server import start_redis
from tests.support.reserved_ports import reserved_ports
from tests.support.wait import PATIENCE_S

pytest_plugins = ["tests.support.forked_workers"]

# Collecting tests creates millions of objects that stay; without the garbage collector it takes a third less.
gc.disable()

# Tests write files with secrets, which Penstock refuses if other users may read them.
os.umask(0o077)

# No test connects to a public server, and reading 140 public authorities for each HTTP client takes 6% of all CPU.
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

ServerProcess.spawn = ForkServer().spawn

# Slow generation of examples indicates a busy machine, not a defect of the code.
settings.register_profile(
    "penstock",
    max_examples=examples(100),
    deadline=None,
    derandomize=not DRAWS_ANEW,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("penstock")

# By default a traceback shows every variable of every frame, which takes seconds to format.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


MAX_ID_CHARS = 80
"""Longest text that a parameter contributes to a test's id. Ids of megabytes made collection take twice as long."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Identify a long text or bytes parameter by its name and length; pytest numbers those that are alike."""
    return f"{argname}-of-{len(val)}" if isinstance(val, str | bytes) and len(val) > MAX_ID_CHARS else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Enable the garbage collector again, and exclude all existing objects; in workers and in their parent process."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle test files, and the tests within each, where PENSTOCK_TEST_ORDER has a seed (tests/support/stress.py)."""
    seed = os.environ.get("PENSTOCK_TEST_ORDER")
    if seed is not None:
        rank = Random(seed)
        files = {item.path: rank.random() for item in sorted(items, key=lambda item: item.nodeid)}
        items.sort(key=lambda item: (files[item.path], Random(f"{seed} {item.nodeid}").random()))


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for the whole session: never stop or pause it, and work under keys that no other test uses."""
    with start_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """A separate etcd, which the test may stop, kill, pause, compact or wipe."""
    # The ports stay reserved, so that a test can restart the server.
    with (
        reserved_ports(2) as (client_port, peer_port),
        EtcdServer(tmp_path / "etcd", client_port=client_port, peer_port=peer_port) as server,
    ):
        server.start()
        server.wait_ready(PATIENCE_S)
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis for the whole session: never stop or flush it, and work under keys that no other test uses."""
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A separate Redis, which the test may stop, kill, pause or flush."""
    with start_redis(tmp_path / "redis") as server:
        yield server

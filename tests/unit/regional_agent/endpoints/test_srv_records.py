from random import Random

import pytest

from regional_agent.endpoints.discovery import srv_records
from regional_agent.endpoints.discovery.discovered_server import DiscoveredServer
from regional_agent.endpoints.discovery.srv_records import (
    FALLBACK_AFTER_S,
    MAX_TTL_S,
    MIN_TTL_S,
    RETURN_AFTER_S,
    SrvAnswer,
    SrvResolver,
)

PRIMARY, SECOND, THIRD = (DiscoveredServer(f"10.0.0.{number}", 80, priority=number) for number in (1, 2, 3))


def ready(*servers: DiscoveredServer) -> set[tuple[str, int]]:
    return {(server.address, server.port) for server in servers}


def test_priorities_are_added_one_by_one_and_removed_together() -> None:
    answer = SrvAnswer((THIRD, PRIMARY, SECOND))
    assert not answer.update_priorities(ready(), 0.0)
    assert answer.update_priorities(ready(), FALLBACK_AFTER_S)
    assert answer.servers_in_use() == [PRIMARY, SECOND]
    assert not answer.update_priorities(ready(), 10.0)
    assert not answer.update_priorities(ready(SECOND), 10.1)
    assert not answer.update_priorities(ready(), 11.0)
    assert answer.update_priorities(ready(), 11.0 + FALLBACK_AFTER_S)
    assert not answer.update_priorities(ready(), 100.0)
    assert answer.servers_in_use() == [THIRD, PRIMARY, SECOND]
    assert not answer.update_priorities(ready(PRIMARY, THIRD), 200.0)
    assert answer.update_priorities(ready(PRIMARY, THIRD), 200.0 + RETURN_AFTER_S)
    assert answer.servers_in_use() == [PRIMARY]


@pytest.mark.parametrize(("ttl_s", "bounded_s"), [(0.0, MIN_TTL_S), (60.0, 60.0), (86_400.0, MAX_TTL_S)])
async def test_queries_again_when_the_answer_expires_within_bounds(
    monkeypatch: pytest.MonkeyPatch, ttl_s: float, bounded_s: float
) -> None:
    async def query(resolver: object, record: str, last: object) -> tuple[tuple[DiscoveredServer, ...], float]:
        return (PRIMARY,), ttl_s

    monkeypatch.setattr(srv_records, "_query", query)
    resolver = SrvResolver(Random(1), lambda: None, frozenset, clock=lambda: 1000.0)
    resolver.use(["_http._tcp.engines.test"], {})
    assert await resolver.resolve("_http._tcp.engines.test")
    wait_s = resolver.answers["_http._tcp.engines.test"].due_at - 1000.0
    assert 0.9 * bounded_s <= wait_s <= bounded_s

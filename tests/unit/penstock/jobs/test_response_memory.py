"""The memory of jobs: large responses have permits, and what is held bounds their number."""

from __future__ import annotations

from penstock.jobs.response_memory import ResponseMemory


class Waiter:
    def __init__(self, memory: ResponseMemory) -> None:
        self.granted = 0
        memory.acquire(self.grant)

    def grant(self) -> None:
        self.granted += 1


def test_permits_and_held_bytes_stay_below_the_limit() -> None:
    memory = ResponseMemory(max_bytes=100, max_response_bytes=40)
    a, b, c = Waiter(memory), Waiter(memory), Waiter(memory)
    assert [each.granted for each in (a, b, c)] == [1, 1, 0]
    memory.hold(40)
    memory.withdraw(a.grant)
    assert c.granted == 0, "40 are held, 40 have a permit"
    memory.free(40)
    assert c.granted == 1
    memory.withdraw(b.grant)
    memory.withdraw(c.grant)
    d, e = Waiter(memory), Waiter(memory)
    f = Waiter(memory)
    memory.withdraw(f.grant)
    memory.withdraw(d.grant)
    assert [each.granted for each in (d, e, f)] == [1, 1, 0], "what waits no longer receives no permit"


def test_one_response_above_the_limit_has_a_permit_when_nothing_else_is_held() -> None:
    memory = ResponseMemory(max_bytes=100, max_response_bytes=400)
    memory.hold(10)
    waiter = Waiter(memory)
    assert waiter.granted == 0
    memory.free(10)
    assert waiter.granted == 1


def test_no_request_starts_while_128_mib_are_held() -> None:
    memory = ResponseMemory()
    memory.hold(128 * 1024 * 1024 - 1)
    assert not memory.is_full
    memory.hold(1)
    assert memory.is_full
    memory.free(1)
    assert not memory.is_full

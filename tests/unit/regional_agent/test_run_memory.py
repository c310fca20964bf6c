"""What the large responses of shared runs hold."""

from __future__ import annotations

from regional_agent.coalescing.run_memory import MAX_HELD_BYTES, MAX_TENANT_BYTES, PIECE_BYTES, RunHold, RunMemory

MIB = 1024 * 1024


def test_the_limits() -> None:
    assert (PIECE_BYTES, MAX_TENANT_BYTES, MAX_HELD_BYTES) == (256 * 1024, 64 * MIB, 256 * MIB)


def test_a_response_is_held_until_its_run_and_its_last_client_have_ended() -> None:
    memory = RunMemory()
    hold = RunHold(memory, "acme")
    assert hold.received(PIECE_BYTES)
    assert not memory.by_tenant
    assert hold.received(MIB)
    assert hold.received(MIB)
    assert memory.by_tenant == {"acme": 2 * MIB}
    hold.use()
    hold.use()
    hold.release()
    hold.release()
    assert memory.by_tenant == {"acme": 2 * MIB}
    hold.release()
    assert not memory.by_tenant


def test_a_run_that_is_repeated_holds_its_last_response() -> None:
    memory = RunMemory()
    hold = RunHold(memory, "acme")
    assert hold.received(PIECE_BYTES + MIB)
    hold.again()
    assert hold.received(PIECE_BYTES + 2 * MIB)
    assert memory.by_tenant == {"acme": 2 * MIB}
    hold.release()
    assert not memory.by_tenant


def test_large_responses_of_one_tenant_leave_room_for_others_and_small_ones_need_none() -> None:
    memory = RunMemory()
    holds = [RunHold(memory, "acme") for _ in range(4)]
    assert all(hold.received(16 * MIB + PIECE_BYTES) for hold in holds)
    assert not RunHold(memory, "acme").received(PIECE_BYTES + 1)
    assert RunHold(memory, "acme").received(PIECE_BYTES)
    assert RunHold(memory, "umbrella").received(16 * MIB)


def test_the_runs_of_all_tenants_have_a_limit() -> None:
    memory = RunMemory()
    holds = [RunHold(memory, str(tenant)) for tenant in range(5)]
    assert [hold.received(64 * MIB) for hold in holds] == [True] * 4 + [False]

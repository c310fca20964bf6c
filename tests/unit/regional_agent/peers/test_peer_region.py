import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.health.region_health import RegionState
from penstock.policy.kinds.spillover_and_failover import Failover
from penstock.routing.prefixes.prefix_sketch import digest_of, encode_sketch
from penstock.wire.peer_probe import ModelReadiness, PeerProbeResponse
from regional_agent.peers.peer_region import PeerRegion
from regional_agent.upstream.address import Address

FAILOVER = Failover(unhealthy_threshold=2, healthy_threshold=3, hold_down_s=1.0, failback_ramp_s=10.0)
ONE, TWO = Address("127.0.0.1", 1), Address("127.0.0.1", 2)


def answer(ready: bool = True, wait_s: float = 0.0, credits: int = 0) -> PeerProbeResponse:
    return PeerProbeResponse("there", "a", {"m": ModelReadiness(ready, wait_s, credits)}, credit_ttl_s=0.75)


@pytest.fixture
def region() -> PeerRegion:
    made = PeerRegion("there")
    made.set_addresses([ONE, TWO])
    return made


def receive(region: PeerRegion, now: float, *addresses: Address, said: PeerProbeResponse | None = None) -> None:
    for address in addresses:
        region.answered(address, said or answer(), 0.02, now)
    region.round_succeeded(now, now, FAILOVER)


def test_region_is_unknown_before_an_answer(region: PeerRegion) -> None:
    view = region.view("m", 0.0, FAILOVER)
    assert (view.state, view.ready, view.credits, region.rtt_s) == (RegionState.UNKNOWN, False, 0, None)


def test_reports_that_it_failed_and_that_it_is_back() -> None:
    states: list[RegionState] = []
    made = PeerRegion("there", on_failed=lambda: states.append(made.health.state))
    receive(made, 3.0, ONE)
    made.round_failed(4.0, 4.0, FAILOVER)
    assert states == []
    made.round_failed(5.0, 5.0, FAILOVER)
    assert states == [RegionState.FAILED]
    for at in (7.0, 8.0, 9.0):
        receive(made, at, ONE)
    assert states == [RegionState.FAILED, RegionState.RECOVERING]


def test_models_that_sleep_are_stated_to_clients_until_the_region_has_failed(region: PeerRegion) -> None:
    models = {"m": ModelReadiness(False, 0.0), "awake": ModelReadiness(True, 0.0)}
    receive(region, 0.0, ONE, TWO, said=PeerProbeResponse("there", "a", models, 0.75, accepts_clients=True))
    entry = region.entry_state(0.0, FAILOVER)
    assert (entry.ready, entry.asleep, entry.accepts_clients) == ({"awake"}, {"m"}, False)
    for address in (ONE, TWO):
        region.unreachable(address)
    region.round_failed(1.0, 1.0, FAILOVER)
    entry = region.entry_state(1.0, FAILOVER)
    assert (entry.state, entry.ready, entry.asleep) == (RegionState.SUSPECT, {"awake"}, {"m"})
    region.round_failed(2.0, 2.0, FAILOVER)
    assert region.entry_state(2.0, FAILOVER).asleep == frozenset()
    receive(region, 3.0, ONE, said=PeerProbeResponse("there", "a", models, 0.75))
    assert region.entry_state(3.0, FAILOVER).asleep == frozenset(), "its agents accept no clients"


def test_a_region_has_the_endpoints_of_its_last_answer_until_it_has_failed(region: PeerRegion) -> None:
    assert region.has_endpoint("m") is None
    receive(region, 0.0, ONE, said=PeerProbeResponse("there", "a", {"m": ModelReadiness(False, 0.0)}, 0.75))
    assert (region.has_endpoint("m"), region.has_endpoint("other")) == (True, False)
    region.unreachable(ONE)
    region.round_failed(1.0, 1.0, FAILOVER)
    assert (region.has_endpoint("m"), region.has_endpoint("other")) == (True, False), "one lost probe"
    region.round_failed(2.0, 2.0, FAILOVER)
    assert not region.has_endpoint("m")


def test_a_region_of_burst_endpoints_alone_serves_by_them_and_is_not_ready(region: PeerRegion) -> None:
    said = PeerProbeResponse("there", "a", {}, 0.75, accepts_clients=True, burst_only={"m": (2, 30.0)})
    region.answered(ONE, said, 0.02, 0.0)
    view = region.view("m", 0.0, FAILOVER)
    assert (view.state, view.ready, view.credits) == (RegionState.HEALTHY, False, 0)
    assert (view.burst_room, view.burst_start_s) == (2, 30.0)
    assert not region.has_endpoint("m"), "none that could wake"
    entry = region.entry_state(0.0, FAILOVER)
    assert (entry.accepts_clients, entry.asleep, entry.burst) == (True, frozenset(), {"m"})
    region.spend_burst("m")
    assert region.view("m", 0.0, FAILOVER).burst_room == 1
    region.spend_burst("m")
    assert region.view("m", 0.0, FAILOVER).state is RegionState.UNKNOWN
    region.answered(ONE, said, 0.02, 1.0)
    assert region.view("m", 1.0, FAILOVER).burst_room == 2
    region.unreachable(ONE)
    assert region.view("m", 1.0, FAILOVER).burst_room == 0


def test_burst_endpoints_of_a_region_that_has_failed_are_in_a_failed_region(region: PeerRegion) -> None:
    receive(region, 0.0, ONE)
    said = PeerProbeResponse("there", "a", {"m": ModelReadiness(False, 0.0)}, 0.75, burst_only={"rented": (2, 0.0)})
    for at in (1.0, 2.0):
        region.answered(ONE, said, 0.02, at)
        region.round_failed(at, at, FAILOVER)
    view = region.view("rented", 2.0, FAILOVER)
    assert (view.state, view.burst_room) == (RegionState.FAILED, 2)
    assert not region.is_lost, "its agent relays what runs there"
    region.unreachable(ONE)
    assert region.view("rented", 2.0, FAILOVER).burst_room == 0
    assert region.is_lost


def test_ready_if_any_agent_is_and_waits_as_the_best_of_them(region: PeerRegion) -> None:
    region.answered(ONE, answer(ready=False), 0.05, 0.0)
    receive(region, 0.0, TWO, said=answer(wait_s=0.5))
    assert region.view("m", 0.1, FAILOVER).ready
    receive(region, 0.2, ONE, said=answer(wait_s=0.2))
    view = region.view("m", 0.3, FAILOVER)
    assert (view.state, view.ready, view.expected_wait_s) == (RegionState.HEALTHY, True, 0.2)
    assert not region.view("other", 0.3, FAILOVER).ready
    assert region.rtt_s == pytest.approx(0.02)


def with_sketch(waits_s: dict[int, float], known: dict[int, float] | None = None) -> PeerProbeResponse:
    sketch = encode_sketch(waits_s)
    news = b"" if waits_s == known else sketch
    return msgspec.structs.replace(answer(), prefix_digest=digest_of(sketch), prefixes=news)


def test_holds_what_reachable_agents_published_until_they_publish_otherwise(region: PeerRegion) -> None:
    prefix = list(range(10))
    receive(region, 0.0, ONE, said=with_sketch({3: 0.5}))
    receive(region, 0.0, TWO, said=with_sketch({7: 1.0}))
    assert region.held(prefix) == (8, 1.0)
    assert region.held(prefix[:7]) == (4, 0.5)
    assert region.held(prefix[:3]) == (0, 0.0)
    receive(region, 1.0, TWO, said=with_sketch({7: 1.0}, known={7: 1.0}))
    assert region.held(prefix).blocks == 8, "an unchanged sketch is not sent again"
    region.unreachable(TWO)
    assert region.held(prefix).blocks == 4
    receive(region, 2.0, ONE)
    assert region.held(prefix).blocks == 0
    assert region.agents[ONE].prefix_digest == 0


def test_credits_add_up_are_spent_one_by_one_and_expire(region: PeerRegion) -> None:
    receive(region, 0.0, ONE, said=answer(credits=2))
    receive(region, 0.5, TWO, said=answer(credits=1))
    credits = []
    for _ in range(4):
        credits.append(region.view("m", 0.6, FAILOVER).credits)
        region.spend("m", 0.6)
    assert credits == [3, 2, 1, 0]
    receive(region, 1.0, ONE, TWO, said=answer(credits=2))
    assert region.view("m", 1.1, FAILOVER).credits == 4
    assert region.view("m", 1.76, FAILOVER).credits == 0


def test_newest_answer_replaces_earlier_credits(region: PeerRegion) -> None:
    receive(region, 0.0, ONE, said=answer(credits=5))
    receive(region, 0.1, ONE, said=answer(credits=0))
    assert region.view("m", 0.2, FAILOVER).credits == 0


def test_two_failed_rounds_fail_the_region(region: PeerRegion) -> None:
    receive(region, 0.0, ONE)
    region.round_failed(0.3, 0.3, FAILOVER)
    assert region.view("m", 0.3, FAILOVER).state is RegionState.SUSPECT
    region.round_failed(0.4, 0.4, FAILOVER)
    view = region.view("m", 0.4, FAILOVER)
    assert (view.state, view.weight) == (RegionState.FAILED, 0.0)


def test_ignores_a_failed_round_older_than_a_successful_one(region: PeerRegion) -> None:
    receive(region, 1.0, ONE)
    for asked_at in (0.2, 0.5, 1.0):
        region.round_failed(asked_at, 1.5, FAILOVER)
    assert region.health.state is RegionState.HEALTHY


def test_concurrent_failed_requests_count_as_one_miss(region: PeerRegion) -> None:
    receive(region, 0.0, ONE)
    for _ in range(50):
        region.request_failed(ONE, 0.1, FAILOVER)
    assert region.health.state is RegionState.SUSPECT
    assert region.reachable == ()
    region.round_failed(0.15, 0.15, FAILOVER)
    assert region.health.state is RegionState.FAILED


def test_failed_request_counts_no_miss_while_another_agent_answers(region: PeerRegion) -> None:
    receive(region, 0.0, ONE, TWO)
    region.request_failed(ONE, 0.1, FAILOVER)
    assert (region.health.state, region.reachable) == (RegionState.HEALTHY, (TWO,))


def test_failed_requests_count_again_after_an_answer(region: PeerRegion) -> None:
    receive(region, 0.0, ONE)
    region.request_failed(ONE, 0.1, FAILOVER)
    receive(region, 0.2, ONE)
    assert region.health.state is RegionState.HEALTHY
    region.request_failed(ONE, 0.3, FAILOVER)
    assert region.health.state is RegionState.SUSPECT


def test_keeps_an_unregistered_agent_while_it_answers(region: PeerRegion) -> None:
    receive(region, 0.0, ONE)
    region.set_addresses([])
    assert list(region.agents) == [ONE]
    region.unreachable(ONE)
    region.set_addresses([])
    assert list(region.agents) == []
    receive(region, 0.1, ONE)
    assert region.reachable == ()


def test_view_follows_the_failback_ramp(region: PeerRegion) -> None:
    receive(region, 0.0, ONE)
    region.round_failed(0.1, 0.1, FAILOVER)
    region.round_failed(0.2, 0.2, FAILOVER)
    for now in (1.0, 1.3, 1.6):
        receive(region, now, ONE)
    assert region.health.state is RegionState.RECOVERING
    assert [round(region.view("m", now, FAILOVER).weight, 2) for now in (1.6, 2.6, 6.6, 11.6)] == [0.0, 0.1, 0.5, 1.0]


def test_logs_an_invalid_answer_once(region: PeerRegion) -> None:
    with capture_logs() as logs:
        for _ in range(5):
            region.answer_rejected(ONE, "the signature does not match")
        receive(region, 0.0, ONE)
        region.answer_rejected(ONE, "again")
    assert [entry["reason"] for entry in logs if "answer rejected" in entry["event"]] == [
        "the signature does not match",
        "again",
    ]


@pytest.mark.parametrize(("newer", "older"), [(ONE, TWO), (TWO, ONE)])
def test_slots_in_use_are_those_of_the_agents_that_state_them(
    region: PeerRegion, newer: Address, older: Address
) -> None:
    stated = ModelReadiness(True, 0.0, slots=8, batch_credits=2)
    receive(region, 0.0, newer, said=msgspec.structs.replace(answer(), models={"m": stated}))
    receive(region, 0.0, older)
    assert (region.view("m", 0.1, FAILOVER).slots, region.view("m", 0.1, FAILOVER).in_use) == (8, 0)
    region.spend_batch("m", 0.1)
    assert region.view("m", 0.1, FAILOVER).in_use == 1
    receive(
        region,
        0.2,
        newer,
        said=msgspec.structs.replace(answer(), models={"m": msgspec.structs.replace(stated, in_use=5)}),
    )
    assert region.view("m", 0.3, FAILOVER).in_use == 5, "that request is in use by then"

"""Attempts of an agent: reservations are released completely, and outcomes are learned."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.accounts.outcome_rules import Outcome
from penstock.answers.token_counts import Usage
from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.engines.engine_signals import Signal
from penstock.health.outlier_ejection import AttemptOutcome
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.pools.placement import WorkEstimate
from penstock.pools.speed_learning import SpeedLearner
from penstock.routing.endpoint_chooser import EndpointChooser
from penstock.routing.reasons import Reason
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.routing.attempt import LocalAttempt, LocalServices
from regional_agent.routing.queue_dispatcher import QueueDispatcher
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.reservations import release, reserve

COST = Cost(CostUnit.TOKEN, 0.001, 0.01)
USAGE = Usage(100, 50)


class Here:
    def __init__(self, directory: Path, *accelerators: str, slots: int = 2, zone: str = "") -> None:
        file = directory / "endpoints.yaml"
        file.write_text(
            "".join(
                f"- {{name: gpu-{n}, url: 'http://127.0.0.1:{n + 1}', models: [m], slots: {slots},"
                f" accelerator: {accelerator}, zone: {'abc'[n % 3]}}}\n"
                for n, accelerator in enumerate(accelerators)
            )
        )
        self.endpoints = EndpointSet(EndpointSettings(file, zone=zone), UpstreamPool(), Random(1))
        for endpoint in self.endpoints.every():
            endpoint.probed(ProbeOutcome.GOOD)
        self.shared_load = SharedLoad(self.endpoints)
        self.chooser = EndpointChooser(Random(1))
        self.pool = self.endpoints.pools["m"]
        queues = QueueDispatcher(self.endpoints, self.shared_load, lambda: 0.0).queues
        self.services = LocalServices("r", self.endpoints, self.shared_load, self.chooser, queues)

    def choose(self, estimate: WorkEstimate, now: float = 0.0) -> LocalAttempt:
        chosen = self.chooser.choose(self.pool, estimate, (), 0.0, now)
        assert not isinstance(chosen, Reason)
        return reserve(self.shared_load, LocalAttempt(chosen[0], estimate, chosen[1], now, "home", self.services))

    def loads(self) -> list[tuple[int, int, int]]:
        return [(view.in_flight, view.prefill_us, view.decode_us) for view in self.pool.views]


def chat(*, streaming: bool = True, prefix: list[int] | None = None) -> WorkEstimate:
    estimate = WorkEstimate("t", "m", COST, CostInputs(520), Work(0.1, 0.5), streaming=streaming)
    estimate.prefix = prefix or []
    return estimate


async def test_prefill_is_given_back_at_the_first_byte_and_all_of_it_at_the_end(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100")
    placement = here.choose(chat())
    assert here.loads() == [(1, 100_000, pytest.approx(510_000))]
    placement.on_first_byte(0.2)
    assert here.loads() == [(1, 0, pytest.approx(510_000))]
    release(here.shared_load, placement)
    release(here.shared_load, placement)
    assert here.loads() == [(0, 0, 0)]


async def test_a_whole_answers_prefill_is_over_when_it_should_be(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100")
    attempt = here.choose(chat(streaming=False))
    assert not attempt.first_byte(0.02)
    assert [attempt.prefill_is_due(now) for now in (0.05, 0.15)] == [False, True]
    assert not here.choose(chat()).prefill_is_due(9.0), "a streamed one's ends with its first byte"


async def test_the_silence_of_a_tool_call_explains_no_other(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100")
    for ask, longest_s in ((CostInputs(520, offers_tools=True), 0.0), (CostInputs(520), 40.0)):
        attempt = here.choose(WorkEstimate("t", "m", COST, ask, Work(0.1, 0.5), streaming=True))
        attempt.waits_for_chunk(60.0, 80.0)
        attempt.progressed(100.0)
        assert attempt.endpoint.progress.longest_s == longest_s
        release(here.shared_load, attempt)


async def test_what_never_began_gives_everything_back(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100")
    release(here.shared_load, here.choose(chat()))
    assert here.loads() == [(0, 0, 0)]


async def test_speeds_and_lengths_are_learned_from_answers(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100")
    endpoint: Endpoint = here.pool.endpoints[0]
    for n in range(30):
        placement = here.choose(chat(), now=n * 10.0)
        placement.on_first_byte(n * 10.0 + 0.3)
        here.chooser.learn_response(placement, n * 10.0 + 1.8, USAGE)
        release(here.shared_load, placement)
    assert here.chooser.expectations.answer_tokens("t", "m", None) == pytest.approx(50)
    assert here.chooser.expectations.tokens_per_byte("m") == pytest.approx(0.25)
    speed = endpoint.learner.learned
    assert speed is not None
    assert speed.decode + speed.crowding == pytest.approx(3.0, rel=0.1)
    assert speed.start_s + speed.prefill * 0.1 == pytest.approx(0.3, rel=0.1)


class RecordingLearner(SpeedLearner):
    def __init__(self) -> None:
        super().__init__("h100")
        self.streams: list[float] = []

    def saw_end(self, decode_s: float, took_s: float, streams: float, now: float) -> None:
        self.streams.append(streams)


@pytest.mark.parametrize("released_first", [False, True])
async def test_a_lone_request_is_one_stream_whenever_it_is_released(tmp_path: Path, released_first: bool) -> None:
    here = Here(tmp_path, "h100")
    learner = here.pool.endpoints[0].learner = RecordingLearner()
    attempt = here.choose(chat())
    attempt.on_first_byte(0.3)
    if released_first:
        release(here.shared_load, attempt)
    here.chooser.learn_response(attempt, 1.8, USAGE)
    assert learner.streams == [1.0]


async def test_a_prefix_goes_where_it_was(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100", "h100", "h100", slots=8)
    estimate = chat(prefix=[1, 2])
    first = here.choose(estimate)
    release(here.shared_load, first)
    again = [here.choose(chat(prefix=[1, 2, 3])) for _ in range(2)]
    assert {attempt.endpoint.name for attempt in again} == {first.endpoint.name}
    assert again[0].prefill_us == 0


async def test_a_prefix_is_not_looked_for_where_memory_is_short(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100", "h100", "h100", slots=8)
    first = here.choose(chat(prefix=[1, 2]))
    release(here.shared_load, first)
    view = first.endpoint.view
    here.pool.prior_s = 0.1
    here.pool.recount()
    here.pool.update_speeds()
    first.endpoint.update_signals({Signal.KV_USED: 0.94})
    first.endpoint.tick()
    assert view.pressure == pytest.approx(0.4)
    assert here.choose(chat(prefix=[1, 2])).prefill_us == 0, "it keeps what it has"
    first.endpoint.update_signals({Signal.KV_USED: 0.96})
    first.endpoint.tick()
    later = [here.choose(chat(prefix=[1, 2])) for _ in range(3)]
    assert first.endpoint.name not in {attempt.endpoint.name for attempt in later}


async def test_the_agents_own_zone_is_preferred_until_it_is_busier(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100", "h100", "h100", slots=64, zone="b")
    assert here.pool.candidates.same_zone == frozenset({1})
    placements = [here.choose(chat()) for _ in range(12)]
    own = sum(attempt.endpoint.name == "gpu-1" for attempt in placements)
    assert placements[0].endpoint.name == "gpu-1"
    assert 4 <= own < 12, "a little more than its share, and not all"


async def test_a_zone_that_holds_all_or_nothing_makes_no_difference(tmp_path: Path) -> None:
    assert Here(tmp_path, "h100", "h100", zone="elsewhere").pool.candidates.same_zone == frozenset()
    assert Here(tmp_path, "h100", zone="a").pool.candidates.same_zone == frozenset()


async def test_faster_accelerators_get_more(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100", "l4", slots=16)
    for endpoint in here.pool.endpoints:
        endpoint.view.completions = 99
    names = [here.choose(chat()).endpoint.name for _ in range(10)]
    assert names.count("gpu-0") > 2 * names.count("gpu-1")


async def test_attempts_are_counted_by_outcome_with_their_times(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100")
    served, left = here.choose(chat()), here.choose(chat())
    served.on_first_byte(0.3)
    served.settle(2.0, 2.0)
    left.settle(1.0)
    failed = here.choose(chat())
    failed.failed(Outcome.ENGINE_CUT)
    failed.settle(1.0)
    traffic = here.pool.endpoints[0].traffic
    assert (traffic.served, traffic.other_outcomes) == (
        1,
        {AttemptOutcome.INCONCLUSIVE: 1, AttemptOutcome.BROKEN_OFF: 1},
    )
    assert (traffic.first_bytes.sum_s, traffic.durations.sum_s) == (0.3, 2.0)


async def test_a_refusal_without_targets_states_the_reason(tmp_path: Path) -> None:
    here = Here(tmp_path, "h100", slots=1)
    here.choose(chat())
    assert here.chooser.choose(here.pool, chat(), (), 0.0, 0.0) is Reason.SATURATED
    assert here.chooser.choose(here.pool, chat(), {"gpu-0"}, 0.0, 0.0) is Reason.MODEL_NOT_READY

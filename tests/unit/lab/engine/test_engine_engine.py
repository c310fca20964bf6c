"""The conversion of modelled time to real time, on a clock that the test advances and whose timers always fire late."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from lab.engine.accelerators import ACCELERATORS
from lab.engine.completion_request import CompletionRequest
from lab.engine.deployment import Deployment
from lab.engine.engine_config import EndpointConfig
from lab.engine.engine_http import HttpConnection
from lab.engine.engine_response import Answer
from lab.engine.fake_engine import GREATEST_LAG_S, WAKE_INTERVAL_S, Engine
from lab.engine.faults import NO_FAULTS, Faults
from lab.engine.models import MODELS
from lab.engine.openai_format import CompletionFormat
from lab.engine.step_time import StepTime
from lab.engine.witness_log import WitnessLog
from lab.witness import Findings, Witness

DEPLOYMENT = Deployment(MODELS["llama-3.1-8b"], ACCELERATORS["h100"], 1)
STEP_TIME = StepTime(DEPLOYMENT)
CONFIG = EndpointConfig(
    name="a",
    model="llama-3.1-8b",
    accelerator="h100",
    zone="",
    port=0,
    deployment=DEPLOYMENT,
    max_model_len=131_072,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    stream_interval=1,
    cold_start_s=0,
    time_scale=1.0,
    api_key="",
    base_path="",
    served_model_name="llama-3.1-8b",
)


class LateClock:
    """The part of an event loop that the engine uses. Time advances only in `run`; each timer fires `late_s` late."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now = 100.0
        self.late_s = late_s
        self._numbers = count()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, cast("asyncio.AbstractEventLoop", self))
        heapq.heappush(self._timers, (max(when, self.now) + self.late_s, next(self._numbers), handle))
        return handle

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args)

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, _: asyncio.TimerHandle) -> None:
        pass

    def run(self, until_s: float) -> None:
        while self._timers and self._timers[0][0] <= until_s:
            rings_at, _, handle = heapq.heappop(self._timers)
            self.now = max(self.now, rings_at)
            if not handle.cancelled():
                handle._run()
        self.now = until_s


class Client:
    """The far end of a connection, which records the time and the number of received tokens."""

    def __init__(self, clock: LateClock) -> None:
        self._clock = clock
        self.headers: dict[str, str] = {}
        self.paused = False
        self.on_resume: Callable[[], None] | None = None
        self.tokens: list[tuple[float, int]] = []
        self.ended_at: float | None = None
        self.reset_at: float | None = None

    @property
    def received(self) -> int:
        return sum(tokens for _, tokens in self.tokens)

    def begin_stream(self, *_: object) -> None:
        pass

    def send(self, piece: bytes) -> None:
        self.tokens.append((self._clock.now, piece.count(b'"content":" ')))

    def end_stream(self, piece: bytes) -> None:
        self.send(piece)
        self.ended_at = self._clock.now

    def reset(self) -> None:
        self.reset_at = self._clock.now


class Bench:
    """An engine on a late clock."""

    def __init__(self, directory: Path, late_s: float = 0.0, **config: Any) -> None:
        self.clock = LateClock(late_s)
        self.directory = directory
        self.engine = Engine(
            msgspec.structs.replace(CONFIG, **config),
            WitnessLog(directory, "eu-de"),
            cast("asyncio.AbstractEventLoop", self.clock),
        )
        self.answers: dict[Client, Answer] = {}

    def submit(self, prompt_tokens: int, output_tokens: int, request_id: str = "1") -> Client:
        client = Client(self.clock)
        request = CompletionRequest(True, True, False, prompt_tokens, output_tokens, False, ())
        answer_format = CompletionFormat(True, request_id, 0, "llama-3.1-8b")
        client.headers = {"x-request-id": request_id, "x-lab-residency": "eu-de"}
        answer = Answer(cast("HttpConnection", client), request, answer_format, self.clock.now)
        self.answers[client] = answer
        self.engine.submit(answer)
        return client

    def findings(self) -> Findings:
        return Witness(self.directory).read()[0]


def alone_s(prompt_tokens: int, output_tokens: int) -> float:
    """Time (s) of one request that runs alone."""
    prefill_s = STEP_TIME.seconds(prompt_tokens, 1, prompt_tokens, prompt_tokens * (prompt_tokens + 1) / 2)
    contexts = range(prompt_tokens + 1, prompt_tokens + output_tokens)
    return prefill_s + sum(STEP_TIME.seconds(1, 1, context, context) for context in contexts)


@pytest.mark.parametrize("time_scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("late_s", [0.0, 0.004])
def test_delays_of_late_timers_do_not_accumulate(tmp_path: Path, time_scale: float, late_s: float) -> None:
    bench = Bench(tmp_path, late_s, time_scale=time_scale)
    client = bench.submit(500, 400)
    bench.clock.run(200.0)
    expected_s = alone_s(500, 400) / time_scale
    assert client.ended_at is not None
    assert -1e-9 <= client.ended_at - 100.0 - expected_s <= 2 * late_s + 1e-9
    assert client.received == 400


def test_each_timer_delivers_about_ten_milliseconds_of_tokens(tmp_path: Path) -> None:
    bench = Bench(tmp_path, time_scale=10.0)
    client = bench.submit(500, 400)
    bench.clock.run(200.0)
    first, *decodes, _ = client.tokens
    assert first[1] == 1
    assert {tokens for _, tokens in decodes} == {16}, "of 0.65 ms each"
    apart_s = [later - earlier for (earlier, _), (later, _) in pairwise(decodes)]
    assert WAKE_INTERVAL_S <= min(apart_s) <= max(apart_s) < 1.2 * WAKE_INTERVAL_S


def test_a_request_that_arrives_during_a_pass_waits_for_that_pass_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path, time_scale=10.0)
    first = bench.submit(500, 400, "1")
    bench.clock.run(100.0 + alone_s(500, 100) / 10 + 1e-5)  # just after the 100th token, in the middle of a step
    second = bench.submit(10, 5, "2")
    bench.clock.run(200.0)
    joined_s = STEP_TIME.seconds(1, 1, 600, 600) + STEP_TIME.seconds(11, 2, 611, 655)
    waited_s = second.tokens[0][0] - (100.0 + alone_s(500, 100) / 10)
    assert waited_s == pytest.approx(joined_s / 10, rel=0.02)
    assert (first.received, second.received) == (400, 5)


def test_an_engine_that_was_stopped_resumes_where_it_was(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    client = bench.submit(500, 400)
    bench.clock.run(100.0 + alone_s(500, 200))
    bench.clock.now += 60.0  # no timer fired: as under SIGSTOP
    bench.clock.run(300.0)
    assert client.ended_at is not None
    assert client.ended_at - 100.0 == pytest.approx(60.0 + alone_s(500, 400), abs=GREATEST_LAG_S + 0.02)
    assert client.ended_at - 100.0 >= 60.0 + alone_s(500, 400) - GREATEST_LAG_S - 0.02


def test_slow_applies_to_later_passes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.engine.set_faults(Faults(slow=3))
    client = bench.submit(500, 50)
    bench.clock.run(200.0)
    assert client.ended_at is not None
    assert client.ended_at - 100.0 == pytest.approx(3 * alone_s(500, 50))


def test_hang_stops_the_engine_and_delays_new_requests(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    client = bench.submit(500, 50, "1")
    bench.clock.run(100.0 + alone_s(500, 10))
    bench.engine.set_faults(Faults(hang=True))
    received = client.received
    late = bench.submit(10, 5, "2")
    bench.clock.run(150.0)
    assert (client.received, late.received) == (received, 0)
    bench.engine.set_faults(NO_FAULTS)
    bench.clock.run(200.0)
    assert (client.received, late.received) == (50, 5)


def test_a_client_that_does_not_read_delays_no_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    stuck, reads = bench.submit(100, 50, "1"), bench.submit(100, 50, "2")
    stuck.paused = True
    bench.clock.run(200.0)
    assert (stuck.received, reads.received) == (0, 50)
    stuck.paused = False
    assert stuck.on_resume is not None
    stuck.on_resume()
    assert stuck.received == 50
    assert stuck.ended_at is not None


def test_events_are_recorded_once_each(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.submit(100, 5, "whole")
    leaves = bench.submit(100, 50, "leaves")
    bench.clock.run(100.1)
    bench.engine.cancel(bench.answers[leaves])
    bench.engine.cancel(bench.answers[leaves])
    bench.engine.set_faults(Faults(die_mid_stream=3))
    dies = bench.submit(100, 50, "dies")
    bench.clock.run(200.0)
    assert dies.received == 3
    assert dies.reset_at is not None
    bench.engine.cancel(bench.answers[dies])  # as the end of the connection does
    findings = bench.findings()
    assert findings.started == {"whole": 1, "leaves": 1, "dies": 1}
    assert findings.finished == {"whole": 1}
    assert findings.aborted == {"leaves": 1, "dies": 1}


def test_the_model_is_loaded_after_its_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, cold_start_s=40.0, time_scale=10.0)
    bench.clock.run(103.9)
    assert not bench.engine.loaded
    bench.clock.run(104.1)
    assert bench.engine.loaded


def test_an_engine_reports_for_how_long_it_computed_and_what_it_has(tmp_path: Path) -> None:
    bench = Bench(tmp_path, time_scale=10.0)
    bench.submit(500, 400, "1")
    bench.submit(300, 400, "2")
    (load,) = msgspec.json.decode(bench.engine.render_load())
    assert (load["num_reqs"], load["num_waiting_reqs"]) == (2, 1), "the second waits for the next pass"
    assert load["num_tokens"] == 800
    bench.clock.run(200.0)
    assert msgspec.json.decode(bench.engine.render_load())[0]["num_tokens"] == 0
    (line,) = [line for line in bench.engine.render_metrics().splitlines() if line.startswith(b"lab:busy_seconds")]
    busy_s = float(line.split()[-1])
    assert alone_s(500, 400) < busy_s < alone_s(500, 400) + alone_s(300, 400), "in the time of the hardware, not apart"

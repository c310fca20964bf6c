"""The places of asynchronous requests, and their forecasts."""

from __future__ import annotations

import msgspec

from penstock.jobs.async_request import AsyncRequest, JobState
from penstock.jobs.job_records import Claim, JobSender
from penstock.jobs.queue_forecast import UNKNOWN, AgentPace, Forecast
from penstock.jobs.request_queue import RequestQueue

NEW_S = 10.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

NOW = 1000.0


def request(name: str, created_at: float = 0.0) -> AsyncRequest:
    return AsyncRequest(
        name, JobSender("t", "open"), "POST", "/v1/images?a=1", (), 0, int(created_at), int(NOW) + 86_400
    )


def queue(*waiting: str, running: int = 1) -> RequestQueue:
    """Of an agent that runs one request at a time, 10 s each; the first that waits starts in 10 s."""
    found = RequestQueue()
    found.ended(request("before"), 10.0)
    found.runs(running, 1, NOW)
    found.ranked("eu", ["running", *waiting])
    return found


def test_a_request_has_the_place_of_its_rank() -> None:
    waiting = queue("a", "b")
    assert waiting.forecast(request("a"), None, JobState.QUEUED, NOW) == Forecast(1010, 1020)
    assert waiting.forecast(request("b"), None, JobState.QUEUED, NOW) == Forecast(1020, 1030)
    claim = Claim(1, "agent", 1, NOW + 30.0, NOW - 4.0)
    assert waiting.forecast(request("running"), claim, JobState.IN_PROGRESS, NOW) == Forecast(996, 1006)
    assert waiting.forecast(request("a"), None, JobState.CANCELLING, NOW) == UNKNOWN


def test_the_time_of_a_request_is_that_of_its_path() -> None:
    waiting = queue("a")
    other = msgspec.structs.replace(request("other"), target="/v1/videos?b=2")
    waiting.ended(other, 100.0)
    assert waiting.own.at == NOW
    claim = Claim(1, "agent", 1, NOW + 30.0, NOW - 4.0)
    assert waiting.forecast(request("running"), claim, JobState.IN_PROGRESS, NOW) == Forecast(996, 1006)
    assert waiting.forecast(other, claim, JobState.IN_PROGRESS, NOW) == Forecast(996, 1096)


def test_a_new_request_is_the_last_one_until_it_should_be_ranked() -> None:
    waiting = queue("a", "b")
    assert waiting.forecast(request("c", NOW - NEW_S), None, JobState.QUEUED, NOW) == Forecast(1030, 1040)
    assert waiting.forecast(request("c", NOW - NEW_S - 1), None, JobState.QUEUED, NOW) == UNKNOWN


def test_requests_of_lost_regions_count_until_they_are_no_longer_finished_here() -> None:
    waiting = queue("a")
    waiting.ranked("us", ["x", "y"])
    assert waiting.forecast(request("x"), None, JobState.QUEUED, NOW) == Forecast(1000, 1010)
    assert waiting.unfinished == 4
    waiting.keep({"eu"})
    assert waiting.unfinished == 2
    assert waiting.forecast(request("x"), None, JobState.QUEUED, NOW) == UNKNOWN


def test_the_status_has_what_waits_at_all_agents() -> None:
    waiting = queue("a", "b", "c")
    assert waiting.waiting(NOW) == (3, 1030)
    waiting.others = [AgentPace(NOW, 1, 1, {"": 10.0})]
    assert waiting.waiting(NOW) == (2, 1010)
    assert queue(running=2).waiting(NOW) == (0, None)

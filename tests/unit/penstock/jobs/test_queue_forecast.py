"""When asynchronous requests that wait start and end."""

from __future__ import annotations

from penstock.jobs.queue_forecast import (
    MAX_PACE_AGE_S,
    MAX_PATHS,
    UNKNOWN,
    AgentPace,
    Forecast,
    forecast,
    forecast_of_running,
    with_time,
)

NOW = 1000.0
BUSY = AgentPace(NOW, running=4, limit=4, mean_s={"": 20.0, "/v1/videos": 60.0})
"""Ends a request each 5 s."""


def test_a_request_starts_once_those_before_it_have_ended() -> None:
    assert forecast(4, [BUSY], "/v1/images", NOW) == Forecast(1005, 1025), "the first that waits"
    assert forecast(13, [BUSY], "/v1/images", NOW) == Forecast(1050, 1070)
    assert forecast(13, [BUSY], "/v1/videos", NOW) == Forecast(1050, 1110), "by the time of its own path"
    assert forecast(13, [BUSY, BUSY], "/v1/images", NOW) == Forecast(1015, 1035), "two agents are twice as fast"


def test_a_request_starts_at_once_if_an_agent_has_room_for_it() -> None:
    room = AgentPace(NOW, running=1, limit=4, mean_s={})
    assert forecast(3, [room], "/v1/images", NOW) == Forecast(1000, None), "no request has ended"
    assert forecast(4, [room], "/v1/images", NOW) == UNKNOWN
    assert forecast(7, [room, BUSY], "/v1/images", NOW) == Forecast(1000, 1020)


def test_old_paces_do_not_count() -> None:
    later = NOW + MAX_PACE_AGE_S
    assert forecast(0, [BUSY], "/v1/images", later - 1) == Forecast(int(later) - 1, int(later) + 19)
    assert forecast(0, [BUSY], "/v1/images", later) == UNKNOWN
    assert forecast(0, [], "/v1/images", NOW) == UNKNOWN


def test_a_running_request_ends_after_the_mean_time() -> None:
    assert forecast_of_running(990.0, [BUSY], "/v1/videos", NOW) == Forecast(990, 1050)
    assert forecast_of_running(900.0, [BUSY], "/v1/videos", NOW) == Forecast(900, None), "it takes longer"


def test_times_are_means_by_path_of_the_last_requests() -> None:
    means = with_time(with_time({}, "/a", 10.0), "/b", 20.0)
    assert means == {"": 12.0, "/a": 10.0, "/b": 20.0}
    for number in range(MAX_PATHS):
        means = with_time(means, f"/{number}", 1.0)
        means = with_time(means, "/b", 20.0)
    assert len(means) == MAX_PATHS + 1
    assert means["/b"] == 20.0, "seen a moment ago"
    assert "/a" not in means
    assert "" in means

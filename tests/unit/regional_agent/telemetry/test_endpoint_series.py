"""A bounded number of endpoints has metric series; no count is lost, none is counted twice, and none decreases."""

from __future__ import annotations

from penstock.health.outlier_ejection import AttemptOutcome
from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.by_endpoint.endpoint_series import EndpointSeries
from regional_agent.upstream.address import Address


def endpoint(name: str, completions: int = 0) -> Endpoint:
    made = Endpoint(EndpointSpec(name, Address("127.0.0.1", 1), ("m",), 4), OutlierDetection())
    made.completions = completions
    return made


def serve(one: Endpoint, times: int = 1) -> None:
    for _ in range(times):
        one.traffic.ended(AttemptOutcome.SERVED, 1.0)


def test_the_busiest_endpoints_have_series_and_the_rest_share_one() -> None:
    series = EndpointSeries(2)
    every = [endpoint("a", 1), endpoint("b", 9), endpoint("c", 5)]
    for one in every:
        serve(one, 3)
    series.update(every)
    assert series.named.keys() == {"b", "c"}
    assert (series.other.served, series.without_series) == (3, 1)
    serve(every[0])
    assert series.other.served == 4


def test_an_endpoint_keeps_its_series_and_a_free_place_goes_to_the_busiest_of_the_rest() -> None:
    series = EndpointSeries(1)
    first, second, third = endpoint("a", 5), endpoint("b"), endpoint("c")
    series.update([first, second, third])
    second.completions, third.completions = 70, 90
    series.update([first, second, third])
    assert series.named.keys() == {"a"}
    serve(third, 2)
    series.update([second, third])
    assert series.named.keys() == {"c"}
    assert (series.named["c"].served, series.other.served) == (0, 2), "what it served before stays where it was counted"
    serve(third)
    assert series.named["c"].served == 1


def test_a_new_address_of_an_endpoint_continues_its_series() -> None:
    series, old, new = EndpointSeries(1), endpoint("a"), endpoint("a")
    serve(old, 2)
    series.update([old])
    serve(new, 3)
    serve(old)
    series.update([new, old])
    assert (series.named["a"].served, series.without_series) == (6, 0)
    assert new.traffic is old.traffic


def test_outcomes_and_times_are_exported_by_endpoint() -> None:
    metrics = AgentMetrics(max_endpoint_series=1)
    every = [endpoint("a", 2), endpoint("b", 1)]
    metrics.endpoints.series.update(every)
    serve(every[0])
    every[0].traffic.ended(AttemptOutcome.UNREACHABLE, None)
    every[0].traffic.first_bytes.observe(0.3)
    every[0].traffic.connects.observe(0.05)
    serve(every[1])
    text = metrics.render().decode()
    assert 'penstock_agent_endpoint_requests_total{endpoint="a",outcome="served"} 1.0' in text
    assert 'penstock_agent_endpoint_requests_total{endpoint="a",outcome="unreachable"} 1.0' in text
    assert 'penstock_agent_endpoint_requests_total{endpoint="other",outcome="served"} 1.0' in text
    assert 'penstock_agent_endpoint_ttft_seconds_bucket{endpoint="a",le="0.35"} 1.0' in text
    assert 'penstock_agent_endpoint_request_duration_seconds_count{endpoint="a"} 1.0' in text
    assert 'penstock_agent_endpoint_connect_seconds_bucket{endpoint="a",le="0.1"} 1.0' in text
    assert "penstock_agent_endpoints_without_series 1.0" in text

"""Which region the endpoint picker names: overflow on credits, failover and residency, as in the agent's own proxy."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.health.region_health import RegionState
from penstock.policy.geography import Location
from penstock.policy.kinds.residency_rules import ResidencyRule
from regional_agent.picker.conversation import StreamState
from regional_agent.upstream.address import Address
from tests.support.agents import running_agent
from tests.support.otlp_collector import attributes, collector
from tests.support.picker_streams import (
    ANSWER,
    CHAT,
    JSON_TYPE,
    PickerStream,
    body,
    head,
    parts_of,
    response_body,
    response_head,
    set_headers,
    trailers,
)
from tests.support.planet import MODEL, plan
from tests.support.wait import until

HERE, SPAIN, US = Address("127.0.0.1", 8001), Address("127.0.0.2", 8081), Address("127.0.0.3", 8081)


async def test_overflow_leaves_the_region_on_a_credit_of_a_permitted_one(tmp_path: Path) -> None:
    peers = {"eu-es": SPAIN, "us-east": US}
    async with running_agent(
        tmp_path, [HERE], slots=1, queue=0, anonymous="personal", peers=peers, credits={"us-east": 4}
    ) as agent:
        agent.location = Location("DE")
        running, waiting = (PickerStream(parts_of(agent, forwards=True)) for _ in range(2))
        running.receive(head(), body(CHAT))
        assert running.destinations == [str(HERE)]
        waiting.receive(head(), body(CHAT))
        assert waiting.talk.state is StreamState.QUEUED, "residency forbids the region with credits"
        agent.peers.credits["eu-es"] = 1
        agent.queue.credit_arrived()
        await until(lambda: bool(waiting.destinations))
        assert waiting.destinations == [str(SPAIN)]
        assert waiting.request_body() == CHAT
        headers = set_headers(waiting.sent[0].request_headers.response.header_mutation)
        assert headers["x-penstock-route"]
        assert agent.peers.spent == ["eu-es"]
        # A region that forwards nothing through Envoy has no use for the credit.
        alone = PickerStream(parts_of(agent, forwards=False))
        alone.receive(head(), body(CHAT))
        assert alone.talk.state is StreamState.QUEUED
        for stream in (alone, waiting, running):
            stream.stream.close()
        assert (agent.held(), agent.waiting()) == (0, 0)


async def test_a_failed_region_is_replaced_by_a_permitted_one(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es", eu_es=1.0)
    async with running_agent(
        tmp_path, [HERE], slots=1, queue=0, anonymous="personal", plan=away, peers={"eu-es": SPAIN, "us-east": US}
    ) as agent:
        agent.location = Location("DE")
        streams = []
        for state, expected in ((RegionState.HEALTHY, SPAIN), (RegionState.FAILED, HERE)):
            agent.peers.states["eu-es"] = state
            streams.append(PickerStream(parts_of(agent, forwards=True)))
            streams[-1].receive(head(), body(CHAT))
            assert streams[-1].destinations == [str(expected)]
        streams.append(PickerStream(parts_of(agent, forwards=True)))
        streams[-1].receive(head(), body(CHAT))
        assert streams[-1].talk.state is StreamState.QUEUED, "it is not named to a region outside the EU"
        for stream in streams:
            stream.stream.close()
        assert (agent.held(), agent.waiting()) == (0, 0)


@pytest.mark.parametrize("permitted", [{"eu-de", "eu-es", "us-east"}, {"eu-de", "eu-es"}, {"eu-es"}])
async def test_a_request_ends_when_a_region_to_which_it_may_move_is_forbidden(
    permitted: set[str], tmp_path: Path
) -> None:
    """Envoy has its address, and may send the request there at any time."""
    everywhere = plan("eu-de", "eu-de+eu-es+us-east", eu_es=0.5, us_east=0.5)
    async with running_agent(tmp_path, [], plan=everywhere, peers={"eu-es": SPAIN, "us-east": US}) as agent:
        stream = PickerStream(parts_of(agent, forwards=True))
        stream.receive(head(), body(CHAT))
        lb = stream.sent[0].dynamic_metadata.fields["envoy.lb"].struct_value.fields
        assert set(lb["penstock-routes"].struct_value.fields) == {str(SPAIN), str(US)}
        rule = ResidencyRule("narrower", data_classes=frozenset({"open"}), allow=frozenset(permitted))
        agent.config.policy = replace(agent.config.policy, residency=(rule,))
        for each in list(agent.proxy.active):
            each.reauthorize()
        assert (stream.refused is None) == ("us-east" in permitted)
        stream.stream.close()


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        ({}, "ok"),
        ({"x-penstock-refusal": "deadline_passed"}, "timed_out"),
        ({"x-penstock-refusal": "of a later release"}, "engine_cut"),
    ],
)
async def test_the_trailers_of_another_region_state_the_outcome_to_this_agent_alone(
    given: dict[str, str], outcome: str, tmp_path: Path
) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with running_agent(tmp_path, [HERE], plan=away, peers={"eu-es": SPAIN}) as agent:
        stream = PickerStream(parts_of(agent, forwards=True))
        stream.receive(head(), body(CHAT))
        stream.receive(response_head(200, JSON_TYPE), response_body(ANSWER), trailers("response_trailers", given))
        assert agent.counted() == {outcome: 1.0}
        mutation = stream.sent[-1].response_trailers.header_mutation
        assert list(mutation.remove_headers) == list(given)


@pytest.mark.parametrize(
    ("country", "refused"),
    [
        ("DE", None),
        ("FR", (451, "no_permitted_region")),
        ("US", (421, "misdirected")),
        (None, (451, "location_unknown")),
    ],
)
async def test_the_place_of_a_client_decides_before_its_body_is_read(
    country: str | None, refused: tuple[int, str] | None, tmp_path: Path
) -> None:
    rules = (
        ResidencyRule("de", client_countries=frozenset({"DE"}), allow=frozenset({"eu-de"})),
        ResidencyRule("us", client_countries=frozenset({"US"}), allow=frozenset({"us-east"})),
        ResidencyRule("fr", client_countries=frozenset({"FR"}), allow=frozenset()),
    )
    async with running_agent(tmp_path, [HERE], peers={"us-east": US}) as agent:
        agent.config.policy = replace(agent.config.policy, residency=rules)
        agent.location = Location(country)
        stream = PickerStream(parts_of(agent, forwards=True))
        stream.receive(head(), body(CHAT[:5], ends=False))
        assert stream.refused == refused
        assert agent.listener.state.bodies.bytes_kept == (5 if refused is None else 0)
        stream.stream.close()


async def test_a_request_is_one_trace_with_its_endpoint(tmp_path: Path) -> None:
    async with collector() as otlp:
        exporter = otlp.exporter()
        async with running_agent(tmp_path, [HERE], exporter=exporter) as agent:
            stream = PickerStream(parts_of(agent))
            stream.receive(head(), body(CHAT))
            sent = set_headers(stream.sent[0].request_headers.response.header_mutation)["traceparent"]
            stream.receive(response_head(200, JSON_TYPE), response_body(ANSWER, ends=True))
            refused = PickerStream(parts_of(agent))
            refused.receive(head(), body(b'{"model": "no-such"}'))
        await exporter.close()
    spans = [span for _, span in otlp.spans]
    (attempt,) = [span for span in spans if span.name == f"chat {MODEL}"]
    assert sent.split("-")[1:3] == [attempt.trace_id.hex(), attempt.span_id.hex()]
    found = attributes(attempt)
    assert (found["server.port"], found["gen_ai.usage.output_tokens"]) == (HERE.port, 2)
    statuses = [attributes(span).get("http.response.status_code") for span in spans]
    assert {status for status in statuses if status is not None} == {200, 404}

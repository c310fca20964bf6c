"""The assignment of clients to arrivals, and the encoding of planned requests."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address, ip_network
from random import Random

import msgspec
import pytest

from lab.engine.completion_request import CompletionRequest, parse_completion
from lab.geoip import SITES
from lab.replay.chat_request import chat_request, prompt_text
from lab.replay.replay_workload import PlannedRequest, Sender, plan_requests
from lab.traces.trace import TraceRequest

TRACE = [TraceRequest(number * 0.5, 900, 40, (0, number + 1)) for number in range(2000)]
SENDERS = [Sender("open", "key-o", "small", 3.0), Sender("eu", "key-e", "large", 1.0)]


def laid(seed: int = 1, hang_up_share: float = 0.1) -> list[PlannedRequest]:
    return plan_requests(
        TRACE, SITES, SENDERS, lambda site, sender: (site.country, sender.tenant), hang_up_share, Random(seed)
    )


def test_keeps_arrivals_and_draws_places_and_senders_by_share() -> None:
    workload = laid()
    assert [(request.at_s, request.lengths) for request in workload] == [(arrival.at_s, arrival) for arrival in TRACE]
    assert len({request.id for request in workload}) == len(workload)
    assert Counter(request.tenant for request in workload)["open"] == pytest.approx(1500, rel=0.1)
    sites = {site.name: site for site in SITES}
    for request in workload:
        assert ip_address(request.client_address) in ip_network(sites[request.site].network)
        assert request.required_regions == (sites[request.site].country, request.tenant)
        assert request.api_key == f"key-{request.tenant[0]}"
    whole = sum(site.share for site in SITES)
    counts = Counter(request.site for request in workload)
    assert counts["New York"] / len(workload) == pytest.approx(sites["New York"].share / whole, rel=0.3)


def test_the_same_seed_gives_the_same_places() -> None:
    assert laid(3) == laid(3)
    assert laid(3) != laid(4)


def test_a_share_of_clients_disconnects_before_the_end() -> None:
    leaving = [request.hang_up_after_tokens for request in laid() if request.hang_up_after_tokens is not None]
    assert len(leaving) == pytest.approx(200, rel=0.3)
    assert all(1 <= tokens < 40 for tokens in leaving)
    assert all(request.hang_up_after_tokens is None for request in laid(hang_up_share=0.0))


def planned(**changes: object) -> PlannedRequest:
    fields: dict[str, object] = {
        "id": "r-1",
        "at_s": 0.0,
        "site": "s",
        "client_address": "198.18.1.7",
        "tenant": "t",
        "api_key": "secret",
        "model": 'a "model"',
        "lengths": TraceRequest(0.0, 700, 40, (5, 9)),
        "required_regions": ("eu-de", "eu-es"),
    }
    return PlannedRequest(**{**fields, **changes})  # type: ignore[arg-type]


def split(request: bytes) -> tuple[bytes, dict[str, str], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return first, dict(line.decode().split(": ", 1) for line in lines), body


def test_a_request_is_openai_chat_with_the_lab_s_headers() -> None:
    first, headers, body = split(chat_request(planned()).to("127.0.0.1:8000"))
    assert first == b"POST /v1/chat/completions HTTP/1.1"
    assert headers == {
        "host": "127.0.0.1:8000",
        "authorization": "Bearer secret",
        "x-request-id": "r-1",
        "x-forwarded-for": "198.18.1.7",
        "x-lab-residency": "eu-de,eu-es",
        "accept": "text/event-stream",
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    chat = msgspec.json.decode(body)
    assert (chat["model"], chat["max_tokens"], chat["ignore_eos"]) == ('a "model"', 40, True)
    assert chat["stream"]
    assert chat["stream_options"] == {"include_usage": True}
    assert len(chat["messages"][0]["content"]) == 2800


def test_unknown_fields_are_omitted() -> None:
    request = planned(api_key="", required_regions=(), lengths=TraceRequest(0.0, 10, 0))
    _, headers, body = split(chat_request(request).to("h:1"))
    assert not {"authorization", "x-lab-residency"} & set(headers)
    assert msgspec.json.decode(body)["max_tokens"] == 1


def test_the_engine_takes_lengths_and_shared_prefixes_from_the_text() -> None:
    first = parsed(planned(lengths=TraceRequest(0.0, 1300, 40, (0, 1, 2))))
    second = parsed(planned(id="r-2", lengths=TraceRequest(0.0, 1100, 7, (0, 1, 3))))
    unrelated = parsed(planned(id="r-3", lengths=TraceRequest(0.0, 1300, 40)))
    assert (first.output_tokens, second.output_tokens) == (40, 7)
    assert 1300 <= first.prompt_tokens <= 1303
    assert len(first.spans) == 2
    assert first.spans == second.spans
    assert not set(first.spans) & set(unrelated.spans)


def parsed(planned: PlannedRequest) -> CompletionRequest:
    _, _, body = split(chat_request(planned).to("h:1"))
    return parse_completion(True, body, planned.model, 131_072, Random(1))


def test_equal_prefix_blocks_are_equal_text_and_different_ones_are_not() -> None:
    first = prompt_text("1", TraceRequest(0.0, 1300, 1, (0, 1, 2)))
    second = prompt_text("2", TraceRequest(0.0, 1300, 1, (0, 1, 3)))
    assert len(first) == len(second) == 5200
    assert first[:4096] == second[:4096]
    assert first[4096:] != second[4096:]


@pytest.mark.parametrize("tokens", [1, 3, 511, 512, 5000, 100_000])
@pytest.mark.parametrize("blocks", [(), (0,), (0, 1)])
def test_a_prompt_has_the_requested_size(tokens: int, blocks: tuple[int, ...]) -> None:
    assert len(prompt_text("id", TraceRequest(0.0, tokens, 1, blocks))) == tokens * 4

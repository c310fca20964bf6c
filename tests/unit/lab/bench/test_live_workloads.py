"""The workloads of the live benchmark: each has the requested load, on engines that serve it, with or without data."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from control_plane.policy.compiler import compile_bundle
from lab.bench.live.capacity import capacity_per_s
from lab.bench.live.contest import EMBEDDINGS_FILE
from lab.bench.live.fleet import engines_of
from lab.bench.live.workloads import WORKLOADS, Draw, Workload, trace_workload
from lab.engine.completion_request import parse_completion
from lab.engine.other_formats import OTHER_FORMATS
from lab.planet.bundle import demo_bundle, load_bundle, matrix_of
from lab.replay.chat_request import chat_request
from lab.replay.replay_workload import PlannedRequest
from lab.replay.unstreamed_requests import embedding_request, image_request
from lab.traces.trace import COMMON_MAX_TOKENS, TraceRequest

NO_DATA = Path("no such folder")


def planned(
    workload: Workload, rate_per_s: float = 20.0, seed: int = 1, *, known_lengths: bool = False
) -> list[PlannedRequest]:
    return workload.plan(Draw(rate_per_s, 30.0, NO_DATA, Random(seed), known_lengths), time_scale=2.0)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
def test_every_workload_has_its_rate_and_is_reproducible(workload: Workload) -> None:
    requests = planned(workload)
    # Bursts of embeddings are many requests at a time, so their number varies most.
    assert len(requests) == pytest.approx(600, rel=0.35 if workload.name == "embeddings" else 0.1)
    assert requests == planned(workload)
    assert 0.0 <= requests[0].at_s <= requests[-1].at_s <= 15.0
    assert len({request.id for request in requests}) == len(requests)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
def test_its_requests_are_for_a_model_that_engines_and_policy_have(workload: Workload) -> None:
    files = demo_bundle(matrix_of(load_bundle())) | {EMBEDDINGS_FILE.name: EMBEDDINGS_FILE.read_text()}
    assert workload.model in compile_bundle(files).models
    assert {engine.model for engine in workload.engines(1)} == {workload.model}
    assert capacity_per_s([request.lengths for request in planned(workload, 5.0)], workload.engines(1)) > 0.5


def test_the_work_of_a_request_depends_on_its_body_only() -> None:
    """Routers drop unknown headers, and the capacity must count the same work as the engine."""
    for name, known_lengths in (("multi-turn", True), ("multi-turn", False), ("images", False), ("embeddings", False)):
        request = planned(WORKLOADS[name], known_lengths=known_lengths)[0]
        if request.image is not None:
            written = image_request(request, request.image)
        else:
            written = embedding_request(request) if request.embedding else chat_request(request)
        body = written.rest.partition(b"\r\n\r\n")[2]
        other = OTHER_FORMATS.get(written.path.decode())
        body = body if other is None else other.as_chat(body)
        found = parse_completion(True, body, request.model, 131_072, Random(1))
        assert found.output_tokens == request.lengths.output_tokens
        if request.image is None:
            assert found.prompt_tokens == pytest.approx(request.lengths.prompt_tokens, abs=6)


def test_all_chats_have_one_limit_unless_lengths_are_known() -> None:
    """A field that only one balancer reads must not contain the length of the answer."""
    limits = {}
    for known_lengths in (False, True):
        requests = planned(WORKLOADS["multi-turn"], known_lengths=known_lengths)
        bodies = [msgspec.json.decode(chat_request(request).rest.partition(b"\r\n\r\n")[2]) for request in requests]
        limits[known_lengths] = {body["max_tokens"] for body in bodies}
    assert limits[False] == {COMMON_MAX_TOKENS}
    assert len(limits[True]) > 50


def test_all_turns_of_a_conversation_are_from_one_place_and_carry_its_name() -> None:
    requests = planned(WORKLOADS["multi-turn"])
    places: dict[str, set[str]] = {}
    for request in requests:
        places.setdefault(request.lengths.conversation, set()).add(request.site)
    assert len(places) < len(requests)
    assert {len(sites) for sites in places.values()} == {1}
    head, _, body = chat_request(requests[0]).to("h:1").partition(b"\r\n\r\n")
    name = requests[0].lengths.conversation
    assert f"x-session-id: {name}\r\n" in head.decode() + "\r\n"
    assert msgspec.json.decode(body)["user"] == name


def test_questions_behind_one_system_prompt_differ() -> None:
    requests = planned(WORKLOADS["system-prompts"])
    by_prompt: dict[tuple[int, ...], list[PlannedRequest]] = {}
    for request in requests:
        by_prompt.setdefault(request.lengths.prefix_blocks, []).append(request)
    alike = max(by_prompt.values(), key=len)[:2]
    first, second = (msgspec.json.decode(chat_request(request).rest.partition(b"\r\n\r\n")[2]) for request in alike)
    texts = [chat["messages"][0]["content"] for chat in (first, second)]
    shared = len(alike[0].lengths.prefix_blocks) * 2048
    assert texts[0][:shared] == texts[1][:shared]
    assert texts[0][shared : shared + 20] != texts[1][shared : shared + 20]


def test_the_mixed_workload_keeps_the_prefixes_of_its_parts_apart() -> None:
    blocks: dict[bool, set[int]] = {True: set(), False: set()}
    for request in planned(WORKLOADS["mixed"]):
        blocks[bool(request.lengths.conversation)] |= set(request.lengths.prefix_blocks)
    assert all(blocks.values())
    assert not blocks[True] & blocks[False]


def test_capacity_grows_with_engines_and_falls_with_work() -> None:
    requests = [TraceRequest(0.0, 500, 100) for _ in range(400)]
    single, double = (capacity_per_s(requests, engines_of(count)) for count in (1, 2))
    assert double == pytest.approx(2 * single, rel=0.1)
    longer = [TraceRequest(0.0, 500, 200) for _ in range(400)]
    assert capacity_per_s(longer, engines_of(1)) < 0.7 * single
    assert capacity_per_s([], engines_of(1)) == 0.0


def test_a_recorded_trace_is_a_workload_of_its_name(tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    rows = "".join(f"2023-11-16 18:{minute:02}:00,{100 + minute},40\n" for minute in range(60))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    workload = trace_workload(trace)
    assert workload.name == "mine"
    assert {request.lengths.output_tokens for request in planned(workload)} == {40}

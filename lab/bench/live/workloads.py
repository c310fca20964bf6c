"""The workloads of the live benchmark, by name: requests and engines."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from random import Random

import msgspec

from lab.bench.live.fleet import (
    MAX_NUM_SEQS,
    MODEL,
    SOURCE_S,
    at_rate,
    engines_of,
    plan_for_clients,
)
from lab.engine.other_formats import TOKENS_PER_MEGAPIXEL_STEP
from lab.planet.topology import IMAGE_MODEL, Engine
from lab.replay.replay_workload import ImageSize, PlannedRequest
from lab.traces.conversations import Conversations, generate_conversations
from lab.traces.generate import CHAT_ARRIVALS, CHAT_LENGTHS, CHAT_PREFIXES, Arrivals, LengthCluster, Prefixes, generate
from lab.traces.read import read_trace
from lab.traces.trace import COMMON_MAX_TOKENS, TraceRequest

EMBEDDING_MODEL = "e5-mistral-7b"

EMBEDDING_SLOTS = 4

CODE_ARRIVALS = Arrivals(rate_per_s=2.6, rate_cv=1.0, dwell_s=30.0)
CODE_LENGTHS = (LengthCluster(1.0, 7.0, 1.36, 2.79, 0.85),)
NO_PREFIXES = Prefixes(follow_share=0.0, shared_part=0.0, mean_pause_s=1.0)
"""Like Azure's code completion: long prompts, short outputs, arrivals in bursts."""

LONG_CHAT_LENGTHS = (LengthCluster(1.0, 8.74, 1.2, 5.34, 1.36),)
"""Like Mooncake's conversations: prompts several times as long as in Azure's conversations."""

SYSTEM_PROMPTS = Conversations(
    documents=24,
    document_blocks=(2, 4, 8),
    mean_turns=1.0,
    first_tokens=(50, 400),
    output_log_mean=4.6,
    output_log_sd=0.7,
)
"""Single questions, each after one of 24 system prompts of 1,000 to 4,000 tokens."""

SHORT_QUESTIONS = Conversations(
    documents=8,
    document_blocks=(1,),
    mean_turns=1.0,
    first_tokens=(20, 120),
)
"""Single questions, each after one of eight system prompts of 2 kB, for a small context."""

GROWING_CHATS = Conversations(
    documents=8,
    document_blocks=(1,),
    mean_turns=6.0,
    first_tokens=(50, 200),
    question_tokens=(20, 120),
    max_prompt_tokens=1500,
)
"""Chats, each after one of eight system prompts of 2 kB, which grow to 6 kB."""

SIDES, STEPS = (512, 768, 1024), (8, 12, 20, 30)
"""Sides (pixels) and steps of images."""

MEAN_BURST = 20.0
"""Mean number of texts that arrive at the same time, as during indexing of documents."""

TEXT_TOKENS = (500, 6000)
"""Minimum and maximum length (tokens) of a text."""

MIX = {"azure-conversation": 0.4, "azure-code": 0.3, "multi-turn": 0.3}
"""Share of each workload in the requests of the mixed workload."""


class Kind(StrEnum):
    """Kind of request."""

    CHAT = "chat"
    IMAGE = "image"
    EMBEDDING = "embedding"


class Draw(msgspec.Struct, frozen=True):
    """Parameters of a workload; times are of the modelled hardware."""

    rate_per_s: float
    seconds: float
    data: Path
    """Directory of recorded traces, each of which may be absent."""
    rng: Random
    known_lengths: bool = False
    """Whether `max_tokens` of a chat is the length of its answer; else it is COMMON_MAX_TOKENS for all."""


class Workload(msgspec.Struct, frozen=True):
    """One kind of demand and the engines that it needs."""

    name: str
    what: str
    """Description for the report."""
    draw: Callable[[Draw], list[TraceRequest]]
    kind: Kind = Kind.CHAT
    model: str = MODEL
    max_num_seqs: int = MAX_NUM_SEQS

    def engines(self, each: int) -> tuple[Engine, ...]:
        """Return `each` engines of every accelerator type."""
        return engines_of(each, self.model, self.max_num_seqs, "" if self.model == MODEL else MODEL)

    def plan(self, draw: Draw, time_scale: float) -> list[PlannedRequest]:
        """Return the requests of one replay, in order, `time_scale` times as fast as the modelled hardware.

        Raises:
            TraceError: a recorded trace is invalid.
        """
        requests = self.draw(draw)
        planned = plan_for_clients(requests, self.model, time_scale, draw.rng)
        if self.kind is Kind.IMAGE:
            return [_of_image(request, draw.rng) for request in planned]
        if self.kind is Kind.EMBEDDING:
            return [msgspec.structs.replace(request, embedding=True) for request in planned]
        if not draw.known_lengths:
            return [msgspec.structs.replace(request, max_tokens=COMMON_MAX_TOKENS) for request in planned]
        return planned


def trace_workload(file: Path) -> Workload:
    """Return the workload of a recorded trace."""

    def draw(draw: Draw) -> list[TraceRequest]:
        return at_rate(read_trace(file, draw.rng, SOURCE_S), file, draw.rate_per_s, draw.seconds, draw.rng)

    return Workload(file.stem, f"the trace {file.name}, prompts and outputs capped", draw)


def _recorded(
    file_name: str, arrivals: Arrivals, lengths: tuple[LengthCluster, ...], prefixes: Prefixes
) -> Callable[[Draw], list[TraceRequest]]:
    """A recorded trace, or a generated trace of similar shape if the file is absent."""

    def draw(draw: Draw) -> list[TraceRequest]:
        file = draw.data / file_name
        if file.is_file():
            source = read_trace(file, draw.rng, SOURCE_S)
        else:
            source = generate(SOURCE_S, draw.rng, arrivals, lengths, prefixes)
        return at_rate(source, file, draw.rate_per_s, draw.seconds, draw.rng)

    return draw


def _conversations(shape: Conversations) -> Callable[[Draw], list[TraceRequest]]:
    def draw(draw: Draw) -> list[TraceRequest]:
        # Conversations overlap the ends of the workload, so the resulting rate differs from the requested rate.
        seed, asked_per_s = draw.rng.random(), draw.rate_per_s
        for _ in range(4):
            found = generate_conversations(draw.seconds, asked_per_s, Random(seed), shape)
            asked_per_s *= draw.rate_per_s * draw.seconds / max(1, len(found))
        return found

    return draw


def _images(draw: Draw) -> list[TraceRequest]:
    return [TraceRequest(at_s, 8, 1) for at_s in _poisson(draw.rate_per_s, draw.seconds, draw.rng)]


def _of_image(request: PlannedRequest, rng: Random) -> PlannedRequest:
    size = ImageSize(rng.choice(SIDES), rng.choice(SIDES), rng.choice(STEPS))
    output_tokens = max(1, round(size.megapixel_steps * TOKENS_PER_MEGAPIXEL_STEP))
    lengths = msgspec.structs.replace(request.lengths, output_tokens=output_tokens)
    return msgspec.structs.replace(request, lengths=lengths, image=size)


def _embeddings(draw: Draw) -> list[TraceRequest]:
    """Half of the texts arrive individually, half in bursts."""
    singles = _poisson(draw.rate_per_s / 2, draw.seconds, draw.rng)
    bursts = _poisson(draw.rate_per_s / 2 / MEAN_BURST, draw.seconds, draw.rng)
    times_s = [*singles, *(at_s for at_s in bursts for _ in range(1 + int(draw.rng.expovariate(1 / MEAN_BURST))))]
    return [TraceRequest(at_s, draw.rng.randint(*TEXT_TOKENS), 1) for at_s in sorted(times_s)]


def _mixed(draw: Draw) -> list[TraceRequest]:
    together: list[TraceRequest] = []
    for name, part in MIX.items():
        requests = WORKLOADS[name].draw(msgspec.structs.replace(draw, rate_per_s=draw.rate_per_s * part))
        taken = 1 + max((max(request.prefix_blocks, default=-1) for request in together), default=-1)
        together += [
            msgspec.structs.replace(request, prefix_blocks=tuple(block + taken for block in request.prefix_blocks))
            for request in requests
        ]
    return sorted(together, key=lambda request: request.at_s)


def _poisson(rate_per_s: float, seconds: float, rng: Random) -> list[float]:
    """Random arrival times. Their number is exactly the mean at the rate, so that the load is as requested."""
    return sorted(rng.uniform(0.0, seconds) for _ in range(max(1, round(rate_per_s * seconds))))


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "azure-conversation",
            "Azure's chat service of 2023",
            _recorded("azure-llm-2023-conv.csv", CHAT_ARRIVALS, CHAT_LENGTHS, CHAT_PREFIXES),
        ),
        Workload(
            "azure-code",
            "Azure's code completion of 2023: long prompts, short responses, bursts",
            _recorded("azure-llm-2023-code.csv", CODE_ARRIVALS, CODE_LENGTHS, NO_PREFIXES),
        ),
        Workload(
            "mooncake-conversation",
            "Mooncake's chat service: long prompts, some of them shared in part",
            _recorded("mooncake-conversation.jsonl", CHAT_ARRIVALS, LONG_CHAT_LENGTHS, CHAT_PREFIXES),
        ),
        Workload(
            "multi-turn", "generated chats over shared documents, whose prompts grow", _conversations(Conversations())
        ),
        Workload("system-prompts", "generated questions behind 24 system prompts", _conversations(SYSTEM_PROMPTS)),
        Workload(
            "images", "images of 2 to 31 megapixel steps, one slot per endpoint", _images, Kind.IMAGE, IMAGE_MODEL, 1
        ),
        Workload(
            "embeddings",
            "texts of 500 to 6,000 tokens to embed, half of them in bursts of about 20",
            _embeddings,
            Kind.EMBEDDING,
            EMBEDDING_MODEL,
            EMBEDDING_SLOTS,
        ),
        Workload("mixed", "Azure's chats, code completions, and multi-turn chats on the same engines", _mixed),
    )
}

FOR_SMALL_ENGINES: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "short-questions",
            "generated questions behind eight system prompts of 2 kB",
            _conversations(SHORT_QUESTIONS),
        ),
        Workload(
            "growing-chats",
            "generated chats behind eight system prompts of 2 kB, up to 6 kB",
            _conversations(GROWING_CHATS),
        ),
    )
}
"""For engines with a context of 8,192 bytes, such as the small models that tests write."""

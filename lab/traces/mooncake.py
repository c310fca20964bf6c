"""Reads the Mooncake traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids.

Source: https://github.com/kvcache-ai/Mooncake (Qin et al., FAST'25). Arrivals were recorded in batches of about 3 s;
replayed as they stand they would hit a server like a hammer, so each is put somewhere in the time its batch covers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec

from lab.traces.lines import NumberedLine
from lab.traces.trace import BLOCK_TOKENS, TraceError, TraceRequest, blocks_of

BATCH_S = 3.0
"""How long the recorder gathered arrivals before it wrote them with one timestamp."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    output_length: _Count
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**53)], ...]


_decoder = msgspec.json.Decoder(_Line)


def looks_like_mooncake(first_line: str) -> bool:
    """Whether a file that begins with `first_line` is in this format: a JSON object."""
    return first_line.startswith("{")


def read_mooncake(path: Path, lines: Iterator[NumberedLine], rng: Random) -> Iterator[TraceRequest]:
    """Every request of a Mooncake trace, in order, spread over the time its batch covers.

    A request lands uniformly between its batch's timestamp and the next one's, at most BATCH_S later: within a batch
    this is a Poisson process given its count, between batches the recorded burstiness stays.

    Args:
        path: what to call the file in errors.
        lines: its lines.
        rng: draws the place of each request within its batch.

    Raises:
        TraceError: a line is not such an object, has a bad field, or goes back in time.
    """
    batch: list[_Line] = []
    began_ms: float | None = None
    for number, text in lines:
        line = _parse(path, number, text)
        began_ms = line.timestamp if began_ms is None else began_ms
        if batch and line.timestamp < batch[0].timestamp:
            raise TraceError(path, "goes back in time", "sort the file by this field", number, "timestamp")
        if batch and line.timestamp > batch[0].timestamp:
            yield from _spread(batch, began_ms, (line.timestamp - batch[0].timestamp) / 1000.0, rng)
            batch = []
        batch.append(line)
    if began_ms is not None:
        yield from _spread(batch, began_ms, BATCH_S, rng)


def _spread(batch: list[_Line], began_ms: float, until_next_s: float, rng: Random) -> Iterator[TraceRequest]:
    start_s = (batch[0].timestamp - began_ms) / 1000.0
    width_s = min(BATCH_S, until_next_s)
    places = sorted(rng.random() for _ in batch)
    for line, place in zip(batch, places, strict=True):
        yield TraceRequest(start_s + place * width_s, line.input_length, line.output_length, line.hash_ids)


def _parse(path: Path, number: int, text: str) -> _Line:
    remedy = 'write it like {"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0, 1]}'
    try:
        line = _decoder.decode(text)
    except msgspec.ValidationError as error:
        problem, field = _blame(str(error))
        raise TraceError(path, problem, remedy, number, field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(path, f"not a JSON object ({error})", remedy, number) from None
    if len(line.hash_ids) > blocks_of(line.input_length):
        problem = f"{len(line.hash_ids)} ids for {line.input_length} tokens"
        remedy = f"give at most one id per {BLOCK_TOKENS} tokens of input_length"
        raise TraceError(path, problem, remedy, number, "hash_ids")
    return line


def _blame(message: str) -> tuple[str, str]:
    """Split msgspec's "Expected `int`, got `str` - at `$.input_length`" into the problem and the field."""
    problem, _, place = message.partition(" - at `$.")
    if place:
        return problem, place.rstrip("`")
    if "missing required field" in problem:
        return "missing", problem.split("`")[1]
    return problem, ""

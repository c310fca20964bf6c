"""Reads the Mooncake traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids.

Source: https://github.com/kvcache-ai/Mooncake (Qin et al., FAST'25). Arrivals were recorded in batches of about 3 s.
To avoid artificial bursts, the reader distributes the requests of a batch over the time that the batch covers.
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
"""Duration (s) of a recorded batch, whose requests have one timestamp."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    output_length: _Count
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**53)], ...]


_decoder = msgspec.json.Decoder(_Line)


def looks_like_mooncake(first_line: str) -> bool:
    """Whether `first_line` may belong to a Mooncake trace: it begins a JSON object."""
    return first_line.startswith("{")


def read_mooncake(path: Path, lines: Iterator[NumberedLine], rng: Random) -> Iterator[TraceRequest]:
    """Yield the requests of a Mooncake trace in order, distributed over the time that their batch covers.

    Times are uniform between the timestamps of the batch and the next batch, but within BATCH_S. Within a batch this is
    a Poisson process conditional on its count; between batches the recorded burstiness is preserved.

    Args:
        path: name of the file in errors.
        lines: lines of the file.
        rng: selects the time of each request within its batch.

    Raises:
        TraceError: a line is not a valid object, or its time is before the previous line.
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
        problem, field = _problem_and_field(str(error))
        raise TraceError(path, problem, remedy, number, field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(path, f"not a JSON object ({error})", remedy, number) from None
    if len(line.hash_ids) > blocks_of(line.input_length):
        problem = f"{len(line.hash_ids)} ids for {line.input_length} tokens"
        remedy = f"give at most one id per {BLOCK_TOKENS} tokens of input_length"
        raise TraceError(path, problem, remedy, number, "hash_ids")
    return line


def _problem_and_field(message: str) -> tuple[str, str]:
    """Split a message of msgspec, such as "Expected `int`, got `str` - at `$.input_length`", into problem and field."""
    problem, _, place = message.partition(" - at `$.")
    if place:
        return problem, place.rstrip("`")
    if "missing required field" in problem:
        return "missing", problem.split("`")[1]
    return problem, ""

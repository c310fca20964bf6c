"""Computes the capacity of engines (requests/s), of which the loads of the live benchmark are shares."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from lab.engine.batching import Sequence as EngineSequence
from lab.engine.batching import batching_model
from lab.planet.topology import Engine
from lab.traces.trace import TraceRequest

HORIZON_S = 0.05
"""Passes that only decode are combined up to this time (s)."""


def capacity_per_s(requests: Sequence[TraceRequest], engines: Sequence[Engine]) -> float:
    """Requests per second of the modelled hardware that the engines complete if every slot is always occupied.

    Each free slot takes the next request of a central queue, regardless of prefix caches. A router that sends requests
    to engines with their prefixes achieves a higher rate. The time after the last request has left the queue is not
    counted.
    """
    models = [
        batching_model(engine.pace_of or engine.model, engine.accelerator, engine.max_num_seqs) for engine in engines
    ]
    waiting = list(reversed(requests))
    served = [0] * len(engines)
    turns = [(0.0, number) for number in range(len(engines))]
    heapify(turns)
    while turns:
        now, number = heappop(turns)
        model = models[number]
        while waiting and len(model.running) + len(model.waiting) < model.max_num_seqs:
            request = waiting.pop()
            model.add(EngineSequence(request.prompt_tokens, max(1, request.output_tokens), request.prefix_blocks))
        if not waiting:
            return sum(served) / now if now > 0.0 else 0.0
        step = model.begin(HORIZON_S)
        assert step is not None, "an engine with requests has a step to run"
        served[number] += sum(sequence.finished for sequence, _ in model.complete(step))
        heappush(turns, (now + step.total_s, number))
    return 0.0

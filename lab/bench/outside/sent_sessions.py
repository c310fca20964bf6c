"""The sessions of agents that a driver sends: each turn a pause after the response to the previous one.

A request contains the whole conversation so far: instructions, a question, and the calls of a tool with their results,
as agents send it. Nothing names the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean
from typing import Final

import msgspec

from lab.bench.live.capacity import capacity_per_s
from lab.engine.completion_request import answer_length
from lab.planet.topology import Engine
from lab.replay.chat_request import BYTES_PER_TOKEN, prompt_text
from lab.traces.agent_sessions import SHARED_BLOCKS, Sessions, Turn, generate_session
from lab.traces.trace import BLOCK_TOKENS, COMMON_MAX_TOKENS, TraceRequest

WORKLOAD_NAME: Final = "agent-sessions"

SHAPE: Final = Sessions(turns=(20, 40), tool_log_mean=7.2)
"""Tools return 1,850 tokens on average, so that prompts grow to about 60,000 tokens, some to 100,000."""

RAMP_PART: Final = 0.25
"""Part (0-1) of the mean duration of a session within which all sessions begin."""

TOOL: Final = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a command and return what it prints.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


class AgentSession(msgspec.Struct, frozen=True):
    """One session."""

    number: int
    begins_s: float
    """Time (s) of the first turn since the start of the run."""
    turns: Sequence[Turn]


class _Message(msgspec.Struct, omit_defaults=True):
    role: str
    content: str
    tool_calls: list[dict[str, object]] = []
    tool_call_id: str = ""


def draw_sessions(load: float, engines: Sequence[Engine], rng: Random) -> list[AgentSession]:
    """Return as many sessions as keep `load` (a share of the capacity) of the engines busy.

    The capacity is that of engines of which each runs sessions of its own, with as many turns at once as it has slots.
    """
    sample = [generate_session(number, rng, SHAPE) for number in range(64)]
    slots = sum(engine.max_num_seqs for engine in engines)
    rate_per_s = sum(capacity_per_s(_interleaved(sample, engine.max_num_seqs), [engine]) for engine in engines)
    pause_s = fmean(turn.pause_s for turns in sample for turn in turns)
    count = max(1, round(load * (slots + rate_per_s * pause_s)))
    turn_s = pause_s + slots / rate_per_s
    ramp_s = RAMP_PART * turn_s * fmean(map(len, sample))
    return [
        AgentSession(number, rng.uniform(0.0, ramp_s), generate_session(number, rng, SHAPE)) for number in range(count)
    ]


def session_lines(session: AgentSession, model: str, time_scale: float) -> Iterator[bytes]:
    """Yield the lines of a session in a Mooncake trace, one for each turn, `time_scale` times as fast."""
    messages: list[_Message] = []
    sent_tokens = 0
    for at, turn in enumerate(session.turns):
        if at:
            said = _text(f"answer {session.number}/{at}", session.turns[at - 1].output_tokens)
            call: dict[str, object] = {
                "id": f"call_{at}",
                "type": "function",
                "function": {"name": "run", "arguments": "{}"},
            }
            messages.append(_Message("assistant", said, [call]))
            new_tokens = turn.prompt_tokens - sent_tokens - session.turns[at - 1].output_tokens
            messages.append(_Message("tool", _text(f"result {session.number}/{at}", new_tokens), [], f"call_{at}"))
        else:
            shared = TraceRequest(0.0, SHARED_BLOCKS * BLOCK_TOKENS, 1, tuple(range(SHARED_BLOCKS)))
            messages.append(_Message("system", prompt_text("", shared).decode()))
            question = _text(f"question {session.number}", turn.prompt_tokens - shared.prompt_tokens)
            messages.append(_Message("user", question))
        messages[-1].content += answer_length(turn.output_tokens)
        sent_tokens = turn.prompt_tokens
        payload = {
            "model": model,
            "messages": messages,
            "tools": [TOOL],
            "max_tokens": COMMON_MAX_TOKENS,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        when = {"delay": turn.pause_s} if at else {"timestamp": session.begins_s}
        when_ms = {field: round(value_s * 1000 / time_scale) for field, value_s in when.items()}
        yield msgspec.json.encode({"session_id": f"agent-{session.number}", **when_ms, "payload": payload}) + b"\n"


def _text(name: str, tokens: int) -> str:
    """Return a text of a length, which begins with its name, so that no two have a beginning in common."""
    return prompt_text(name, TraceRequest(0.0, max(tokens, len(name) // BYTES_PER_TOKEN + 1), 1)).decode()


def _interleaved(sessions: Sequence[Sequence[Turn]], slots: int) -> list[TraceRequest]:
    """Return the turns of all sessions as engines meet them: one after the other of `slots` sessions at a time."""
    turns: list[Turn] = []
    for first in range(0, len(sessions), slots):
        group = sessions[first : first + slots]
        turns += [session[at] for at in range(max(map(len, group))) for session in group if at < len(session)]
    return [TraceRequest(0.0, turn.prompt_tokens, turn.output_tokens, turn.prefix_blocks) for turn in turns]

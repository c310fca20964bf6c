"""The judgement of sessions that ran during a fault: every missing or wrong turn leaves none to count."""

from __future__ import annotations

import msgspec
import pytest

from lab.engine.openai_format import words
from lab.engine.tool_calls import CLOSING, OPENING
from lab.gameday.session_load import SESSIONS, TURNS, Turn, judge_sessions

TOKENS = 41
GOOD = Turn(
    TOKENS,
    text=words(0, 20),
    arguments=OPENING + words(20, 21) + CLOSING,
    finish_reason="tool_calls",
    is_done=True,
    output_tokens=TOKENS,
)
ALL = [GOOD] * (SESSIONS * TURNS)


def test_right_turns_are_counted() -> None:
    found = judge_sessions(ALL, kills_entries=False)
    assert found.events == SESSIONS * TURNS
    assert "; 0 lost" in found.says


@pytest.mark.parametrize(
    "broken",
    [
        {"is_done": False},
        {"text": words(0, 19)},
        {"text": words(0, 20) + words(20, 1)},
        {"arguments": OPENING + words(20, 21)},
        {"arguments": OPENING + words(19, 22) + CLOSING},
        {"arguments": ""},
        {"finish_reason": "stop"},
        {"output_tokens": TOKENS + 1},
        {"problem": "502"},
        {"lost_entries": 1},
    ],
)
def test_a_wrong_turn_leaves_nothing_to_count(broken: dict[str, object]) -> None:
    turns = [*ALL[1:], msgspec.structs.replace(GOOD, **broken)]
    assert judge_sessions(turns, kills_entries=False).events == 0


def test_a_session_that_ended_early_leaves_nothing_to_count() -> None:
    assert judge_sessions(ALL[1:], kills_entries=False).events == 0


def test_clients_may_lose_the_entries_that_a_fault_kills() -> None:
    turns = [*ALL[1:], msgspec.structs.replace(GOOD, lost_entries=2)]
    assert judge_sessions(turns, kills_entries=True).events == SESSIONS * TURNS

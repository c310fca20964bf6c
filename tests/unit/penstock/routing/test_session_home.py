"""Homes of sessions: by the shares, without a state, and with few moves when shares change."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from penstock.cost.work_estimate import prompt_of
from penstock.routing.session_home import conversation_key, home_of

SESSIONS = range(20_000)


def homes(**shares: float) -> list[str]:
    return [home_of(session, shares) for session in SESSIONS]


@pytest.mark.parametrize("shares", [{"a": 0.6, "b": 0.4}, {"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 3.0, "b": 1.0}])
def test_sessions_are_divided_by_the_shares(shares: dict[str, float]) -> None:
    counted = Counter(homes(**shares))
    for region, share in shares.items():
        assert counted[region] / len(SESSIONS) == pytest.approx(share / sum(shares.values()), abs=0.012)


def test_a_shift_of_shares_moves_as_many_sessions_as_it_must() -> None:
    before, after = homes(a=0.6, b=0.4), homes(a=0.5, b=0.5)
    moved = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    assert set(moved) == {("a", "b")}
    assert len(moved) / len(SESSIONS) == pytest.approx(0.1, abs=0.012)
    three, shifted = homes(a=0.6, b=0.3, c=0.1), homes(a=0.5, b=0.4, c=0.1)
    assert sum(one != other for one, other in zip(three, shifted, strict=True)) / len(SESSIONS) < 0.12


def test_the_loss_of_a_region_moves_its_sessions_alone() -> None:
    before, without = homes(a=0.5, b=0.3, c=0.2), homes(a=0.5, b=0.3)
    assert all(one == other for one, other in zip(before, without, strict=True) if one != "c")
    assert {other for one, other in zip(before, without, strict=True) if one == "c"} == {"a", "b"}


def test_a_region_without_a_share_is_no_home() -> None:
    assert set(homes(a=0.0, b=1.0)) == {"b"}


def test_all_processes_find_the_same_home() -> None:
    assert [home_of(session, {"eu-de": 0.6, "eu-es": 0.4}) for session in range(8)] == [
        home_of(session, {"eu-es": 0.4, "eu-de": 0.6}) for session in range(8)
    ]
    assert [home_of(1 << shift, {"eu-de": 0.6, "eu-es": 0.4}) for shift in range(0, 33, 8)] == EXPECTED


EXPECTED = ["eu-es", "eu-de", "eu-de", "eu-de", "eu-de"]
"""Changes only with the hash: an upgrade would then move sessions."""


def chat(*turns: Any, system: str = "You help.", role_last: bool = False) -> memoryview:
    """The prompt of a chat from its messages on, with further fields of the body."""
    messages = [{"role": "system", "content": system}]
    for number, content in enumerate(turns):
        message = {"role": ("user", "assistant")[number % 2], "content": content}
        messages.append(dict(reversed(message.items())) if role_last else message)
    return memoryview(json.dumps({"messages": messages, "max_tokens": len(turns)}).encode()[1:])


@pytest.mark.parametrize(
    "first",
    [
        "hello",
        'a "quoted" \\\\ text with }, { and "role": "user"',
        [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
    ],
)
@pytest.mark.parametrize("role_last", [False, True])
def test_the_turns_of_a_conversation_have_one_key(first: Any, role_last: bool) -> None:
    keys = {
        conversation_key("t/m", chat(first, *more, role_last=role_last))
        for more in ((), ("hi", "and now?"), ("hi", "and now?", "so", "on"), ("hi", "something else"))
    }
    assert len(keys) == 1
    assert keys != {None}


def test_other_conversations_have_other_keys() -> None:
    keys = {
        conversation_key("t/m", chat("hello")),
        conversation_key("t/m", chat("hello there")),
        conversation_key("t/m", chat("hello", system="You translate.")),
        conversation_key("t/other", chat("hello")),
        conversation_key("u/m", chat("hello")),
    }
    assert len(keys) == 5


def test_prompts_without_a_user_message_belong_to_no_conversation() -> None:
    assert conversation_key("t/m", memoryview(b'"input": "text"')) is None
    assert conversation_key("t/m", memoryview(b"")) is None
    assert conversation_key("t/m", memoryview(b"x" * 300_000 + b'"role": "user"')) is None


@pytest.mark.parametrize("tools_bytes", [0, 100_000])
def test_tools_before_the_messages_are_not_the_first_message(tools_bytes: int) -> None:
    argument = {"input": {"user": {"enum": ["user", "x" * tools_bytes]}, "role": {"type": "string"}}}

    def key(*messages: str) -> int | None:
        turns = [{"role": ("user", "assistant")[number % 2], "content": each} for number, each in enumerate(messages)]
        body = {"tools": [{"parameters": {"properties": argument}}], "messages": turns}
        return conversation_key("t/m", prompt_of(json.dumps(body).encode()))

    assert key("hello") == key("hello", "hi", "and now?") != key("other")


def test_the_first_four_kilobytes_of_the_first_message_count() -> None:
    end, role = '"}]', '"messages": [{"role": "user", '
    counts = 4096 - len('"content": "') - len(", ")

    def key(content: str) -> int | None:
        return conversation_key("t/m", memoryview(f'{role}"content": "{content}{end}'.encode()))

    assert key("x" * counts + "one") == key("x" * counts + "other")
    assert key("x" * (counts - 9) + "one") != key("x" * (counts - 9) + "other")


def test_a_first_message_that_does_not_end_has_a_key_of_its_beginning() -> None:
    endless = memoryview(b'"messages": [{"role": "user", "content": "' + b"\\\\" * 200_000)
    assert conversation_key("t/m", endless) == conversation_key("t/m", endless[:100_000])

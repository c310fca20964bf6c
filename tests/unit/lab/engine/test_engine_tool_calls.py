"""Answers of the lab's engines that call a tool, and how they are continued."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from lab.engine.completion_request import CompletionRequest, answer_length, parse_completion
from lab.engine.openai_format import CompletionFormat, usage, words
from lab.engine.tool_calls import ToolCallFormat, called_text

TOOLS = {"tools": [{"type": "function", "function": {"name": "look_up", "parameters": {}}}], "tool_choice": "auto"}


def parsed(**more: Any) -> CompletionRequest:
    messages = [{"role": "user", "content": "hello" + answer_length(9)}, *more.pop("then", ())]
    body = {"model": "m", "messages": messages, **more}
    return parse_completion(True, json.dumps(body).encode(), "m", 10_000, Random(1))


def format_of(request: CompletionRequest) -> ToolCallFormat:
    text = CompletionFormat(True, "1", 0, "m", request.first_word)
    return ToolCallFormat(text, request.first_word, request.call_from, request.tool)


def received(events: bytes) -> tuple[str, str, list[str], list[str | None]]:
    """Text, arguments, names and finish reasons."""
    choices = [json.loads(line[6:])["choices"][0] for line in events.split(b"\n\n") if line]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    return (
        "".join(choice["delta"].get("content", "") for choice in choices),
        "".join(call["function"]["arguments"] for call in calls),
        [call["function"]["name"] for call in calls if "name" in call["function"]],
        [choice["finish_reason"] for choice in choices],
    )


@pytest.mark.parametrize("steps", [(9,), (1,) * 9, (3, 1, 5), (4, 5), (5, 4)])
def test_the_second_half_of_an_answer_is_a_call(steps: tuple[int, ...]) -> None:
    form, start, events = format_of(parsed(**TOOLS)), 0, b""
    for count in steps:
        events += form.token_events(start, count, "stop" if start + count == 9 else None)
        start += count
    text, arguments, names, reasons = received(events)
    assert (text, called_text(arguments), names) == (words(0, 4), words(4, 5), ["look_up"])
    assert (reasons[-1], {*reasons[:-1]}) == ("tool_calls", {None})


@pytest.mark.parametrize("written", [0, 1, 4])
def test_a_continued_answer_has_the_rest_of_the_text_and_the_whole_call(written: int) -> None:
    final = [{"role": "assistant", "content": words(0, written)}] if written else []
    flags = {"continue_final_message": True, "add_generation_prompt": False} if written else {}
    request = parsed(**TOOLS, **flags, then=final)
    text, arguments, names, _ = received(format_of(request).token_events(0, request.output_tokens, "stop"))
    assert (words(0, written) + text, called_text(arguments), names) == (words(0, 4), words(4, 5), ["look_up"])


def test_an_answer_that_the_limit_cuts_has_no_whole_call() -> None:
    request = parsed(**TOOLS, max_tokens=5)
    _, arguments, _, reasons = received(format_of(request).token_events(0, request.output_tokens, "length"))
    assert reasons[-1] == "length"
    with pytest.raises(ValueError, match="truncated"):
        called_text(arguments)


def test_an_answer_that_is_not_streamed_has_the_same_call() -> None:
    choice = json.loads(format_of(parsed(**TOOLS)).whole(9, "stop", usage(1, 9, 0)))["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (choice["message"]["content"], called_text(call["function"]["arguments"])) == (words(0, 4), words(4, 5))


@pytest.mark.parametrize("more", [{}, {"tool_choice": "none"}, {"tool_choice": None}, {"tool_choice": {"type": "x"}}])
def test_engines_call_no_tool_unless_asked_to_choose(more: dict[str, Any]) -> None:
    assert parsed(tools=TOOLS["tools"], **more).tool == ""

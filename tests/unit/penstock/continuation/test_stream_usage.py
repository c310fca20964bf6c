"""What engines are asked to report about a stream, and how that is withdrawn."""

from __future__ import annotations

import json

from penstock.continuation.continuable_request import CHAT_PATH
from penstock.continuation.stream_usage import StreamUsage

FLAG = ("stream_options", "include_usage")
CHAT = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'


def asked(usage: StreamUsage, body: bytes = CHAT, *, may_continue: bool = False, path: bytes = CHAT_PATH) -> object:
    changed = usage.ask(path, body, FLAG, may_continue=may_continue)
    return None if changed is None else json.loads(changed)["stream_options"]


def test_the_usage_at_the_end_is_asked_for_and_hidden_from_a_client_that_did_not() -> None:
    usage = StreamUsage()
    assert asked(usage) == {"include_usage": True}
    assert (usage.is_hidden, usage.is_unwanted, usage.continuable) == (True, False, None)


def test_a_client_that_asks_itself_receives_the_usage() -> None:
    usage = StreamUsage()
    assert asked(usage, CHAT[:-1] + b',"stream_options":{"include_usage":true}}') is None
    assert (usage.flag, usage.is_hidden) == (None, False)


def test_nothing_is_asked_without_a_flag_of_the_route() -> None:
    usage = StreamUsage()
    assert usage.ask(CHAT_PATH, CHAT, (), may_continue=False) is None
    assert usage.flag is None


def test_the_usage_of_each_chunk_is_asked_for_where_another_target_could_continue() -> None:
    usage = StreamUsage()
    assert asked(usage, may_continue=True) == {"include_usage": True, "continuous_usage_stats": True}
    assert (usage.is_hidden, usage.is_unwanted) == (False, True)
    assert usage.continuable is not None


def test_a_request_that_cannot_be_continued_is_asked_for_the_usage_at_the_end() -> None:
    usage = StreamUsage()
    assert asked(usage, may_continue=True, path=b"/v1/other") == {"include_usage": True}
    assert (usage.is_hidden, usage.continuable) == (True, None)


def test_what_an_engine_refuses_is_withdrawn() -> None:
    usage = StreamUsage()
    changed = usage.ask(CHAT_PATH, CHAT, FLAG, may_continue=False)
    assert changed is not None
    assert usage.flag is not None
    assert usage.flag.removed_from(changed) == CHAT
    usage.withdraw()
    assert (usage.flag, usage.is_hidden, usage.was_refused) == (None, False, True)

"""Reads the most frequent answers and events, those of OpenAI's chats and completions, in one pass.

What this module does not read is read by place like any other answer (`usage_reader`, `answer_errors`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

import msgspec

from penstock.answers.openai_fields import answer_decoder, text_decoder
from penstock.answers.token_counts import Usage
from penstock.answers.usage_reader import MAX_REPORTED_TOKENS, is_empty
from penstock.answers.values import last_reason

_NULL: Final = b"null"
_ERROR: Final = b'"error"'
_NOTHING: Final = Usage(0, 0)


def usage_of_answer(data: bytes, before: Usage | None, *, generates: bool) -> tuple[Usage, bool] | None:
    """The usage of an answer, or of an event, without an error, and whether it has choices.

    Returns None if the answer must be read by place.

    Args:
        data: a JSON text.
        before: the last report of the same answer, whose numbers hold where `data` reports none.
        generates: whether answers have generated tokens.
    """
    try:
        answer = answer_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    usage = answer.usage
    if usage is None or bytes(answer.error) not in (b"", _NULL) or answer.type or answer.status:
        return None
    if bytes(answer.object) == _ERROR:
        return None
    read = _usage(usage, before, generates)
    return None if read is None else (read, not is_empty(answer.choices))


def usage_of_text(text: bytes, members: Set[str], *, generates: bool) -> tuple[Usage, str] | None:
    """The usage of an answer that is not streamed and contains no mark of an error, and its last finish reason.

    Returns None if the answer must be read by place.

    Args:
        text: a JSON text.
        members: the members of which each answer of the format has one; empty if it may have any.
        generates: as of `usage_of_answer`.
    """
    try:
        answer = text_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    read = None if answer.usage is None else _usage(answer.usage, None, generates)
    if read is None:
        return None
    choices = answer.choices
    if choices is None:
        return (read, "") if not members or ("data" in members and answer.data) else None
    if members and "choices" not in members:
        return None
    if len(choices) == 1:
        return read, choices[0].finish_reason or ""
    return read, last_reason([choice.finish_reason or "" for choice in choices])


def _usage(usage: Any, before: Usage | None, generates: bool) -> Usage | None:
    """The usage, if each number is usable and its meaning clear; None if it must be read by place."""
    stated_prompt, stated_answer, details = usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details
    if before is None:
        before, answer_is_known = _NOTHING, not generates
    elif before.prompt_is_known:
        answer_is_known = before.answer_is_known
    else:
        return None
    prompt_tokens = before.prompt_tokens if stated_prompt is None else stated_prompt
    answer_tokens = before.answer_tokens if stated_answer is None else stated_answer
    if stated_prompt is None and (before is _NOTHING or stated_answer is None):
        return None
    cached = before.cached_tokens if details is None or details.cached_tokens is None else details.cached_tokens
    most = MAX_REPORTED_TOKENS
    if not (0 <= prompt_tokens <= most and 0 <= answer_tokens <= most and 0 <= cached <= most):
        return None
    if stated_answer is not None or answer_is_known:
        return Usage(prompt_tokens, answer_tokens, min(cached, prompt_tokens))
    return Usage(prompt_tokens, 0, min(cached, prompt_tokens), True, False)

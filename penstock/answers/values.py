"""Values at the places where the formats of answers have the finish reason, the generated output, and identifiers.

Sources: as in `answer_errors`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Final

import msgspec

from penstock.answers.answer_errors import error_in
from penstock.answers.usage_reader import Fields, Raw, members_of, value_at

MAX_TEXT_BYTES: Final = 1024
MAX_ITEMS: Final = 32
"""Maximum number of items of an answer whose identifiers are read."""

MIN_ITEM_ID_CHARS: Final = 16

MAX_ID_RECORDS: Final = 16
"""Maximum number of records of a stream that are parsed to find the identifier of its object."""

MAX_ID_CHARS: Final = 256

MAX_CHOICES: Final = 128
"""Maximum number of answers to one request of which the finish reasons are read."""

_text: Final = msgspec.json.Decoder(str)
_list: Final = msgspec.json.Decoder(list[msgspec.Raw])

_EMPTY: Final = frozenset({b"null", b'""', b"[]", b"{}"})
_OUTPUTS: Final = frozenset(
    {"content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio", "thinking"}
)
CUT_REASONS: Final = frozenset({"abort", "aborted", "cancelled", "canceled", "error"})
"""Finish reasons of an answer that the engine ended before its end: `abort` and `error` of vLLM
(vllm/v1/engine/__init__.py), `abort` of SGLang (python/sglang/srt/managers/schedule_batch.py), `cancelled` of
TensorRT-LLM (tensorrt_llm/executor/result.py). Engines that stop on SIGTERM end their streams in this way."""

_NULL: Final = b"null"
_NO_DELTA: Final = b'"message_delta"'


def has_one_of(fields: Fields, members: Set[str]) -> bool:
    """Whether an object has one of `members`, and not as null; True if `members` is empty."""
    if not members:
        return True
    found = [fields[name] for name in members if name in fields]
    return [raw for raw in found if bytes(memoryview(raw)[:4]) != _NULL] != []


def last_reason(reasons: Sequence[str]) -> str:
    """The finish reason of several answers: that of one which the engine cut, else that of the last; empty for none."""
    if len(reasons) > 1:
        for reason in reasons:
            if reason in CUT_REASONS:
                return reason
    return reasons[-1] if reasons else ""


def list_of(data: bytes, most: int) -> list[bytes] | None:
    """The first `most` elements of a JSON array, undecoded; None for anything else."""
    try:
        return [bytes(raw) for raw in _list.decode(data)[:most]]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def text_of(raw: Raw, max_chars: int) -> str:
    """The text of a JSON string; empty for anything else, and for a longer text."""
    if len(memoryview(raw)) > MAX_TEXT_BYTES:
        return ""
    try:
        text: str = _text.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return text if len(text) <= max_chars else ""


def item_ids_in(fields: Fields) -> tuple[str, ...]:
    """The identifiers of the items in an answer of OpenAI's Responses, or in the last event of its stream.

    Short ones are left out: they may be numbers that another tenant's items have too.
    """
    raw = value_at(fields, ("output",) if "output" in fields else ("response", "output"))
    items = list_of(bytes(raw), MAX_ITEMS) if raw is not None else None
    members = [members_of(item) for item in items or ()]
    ids = [text_of(each["id"], MAX_TEXT_BYTES) for each in members if each is not None and "id" in each]
    return tuple(item_id for item_id in ids if len(item_id) >= MIN_ITEM_ID_CHARS)


def first_text(fields: Fields, paths: tuple[tuple[str, ...], ...], max_chars: int) -> str:
    """The first text of at most `max_chars` characters at one of the paths; empty if there is none."""
    for path in paths:
        raw = value_at(fields, path)
        found = text_of(raw, max_chars) if raw is not None else ""
        if found:
            return found
    return ""


def finish_reason_in(fields: Fields) -> str:
    """The reason for which the answer ended, where the format of the record states it; empty without one."""
    raw = fields.get("choices")
    choices = list_of(bytes(raw), MAX_CHOICES) if raw is not None else None
    if choices:
        members = [members_of(choice) for choice in choices]
        return last_reason([_text_at(each, "finish_reason") for each in members if each is not None])
    for member, name in (("delta", "stop_reason"), ("details", "finish_reason"), ("meta_info", "finish_reason")):
        raw = fields.get(member)
        inner = members_of(raw) if raw is not None else None
        if inner is not None and (reason := _text_at(inner, name)):
            return reason
    return _text_at(fields, "done_reason") or _text_at(fields, "stop_reason")


def finished_in(fields: Fields) -> int:
    """The number of answers whose finish reason a record states."""
    raw = fields.get("choices")
    choices = list_of(bytes(raw), MAX_CHOICES) if raw is not None else None
    members = [members_of(choice) for choice in choices or ()]
    return len([each for each in members if each and _text_at(each, "finish_reason")]) or finish_reason_in(fields) != ""


def cut_reason_in(data: bytes) -> str:
    """The finish reason in a record if the engine cut the answer; else empty."""
    fields = members_of(data)
    reason = "" if fields is None else finish_reason_in(fields)
    return reason if reason in CUT_REASONS else ""


def outputs_in(fields: Fields) -> int:
    """The number of answers to which a record of a stream adds a token; 1 for a record of an unknown format.

    A token may have no text, such as a part of a character.
    """
    raw = fields.get("choices")
    if raw is None:
        return _has_output(fields)
    return len([choice for choice in list_of(bytes(raw), MAX_CHOICES) or () if _adds_token(members_of(choice) or {})])


def _adds_token(choice: Fields) -> bool:
    raw = choice.get("delta")
    delta = members_of(raw) if raw is not None else None
    if _is_set(choice.get("text")) if delta is None else _has_text(delta):
        return True
    return not (_is_set(choice.get("finish_reason")) or (delta is not None and _is_set(delta.get("role"))))


def _has_output(fields: Fields) -> bool:
    kind = fields.get("type")
    if kind is not None:
        name = bytes(kind)
        return name.endswith(b'delta"') and name != _NO_DELTA
    raw = fields.get("message")
    message = members_of(raw) if raw is not None else None
    if message is not None:
        return _has_text(message)
    if "response" in fields or "token" in fields:
        return _is_set(fields.get("response")) or _is_set(fields.get("token"))
    return error_in(fields) is None


def _has_text(message: Fields) -> bool:
    return [name for name, raw in message.items() if name in _OUTPUTS and _is_set(raw)] != []


def _is_set(raw: Raw | None) -> bool:
    return raw is not None and bytes(raw) not in _EMPTY


def _text_at(fields: Fields, name: str) -> str:
    raw: Any = fields.get(name)
    if raw is None:
        return ""
    inner = members_of(raw)
    if inner is not None:
        # SGLang's native API: {"type": "stop", "matched": ...}
        raw = inner.get("type")
    return text_of(raw, MAX_TEXT_BYTES) if raw is not None else ""


class AnswerIds:
    """The identifiers of the object that an answer creates, and of its items, that have arrived."""

    def __init__(self, paths: tuple[tuple[str, ...], ...], *, has_items: bool) -> None:
        """Read the identifier of the object at the first of `paths` that has one; with `has_items`, those of items."""
        self._paths = paths
        self._has_items = has_items
        self.records_left = MAX_ID_RECORDS if paths else 0
        """Number of further records of a stream that are parsed to find the identifier of its object."""
        self.object_id = ""
        """Empty until it has arrived."""
        self.item_ids: tuple[str, ...] = ()

    def read(self, fields: Fields) -> None:
        """Read the identifiers that a record has."""
        if self._paths and not self.object_id:
            self.object_id = first_text(fields, self._paths, MAX_ID_CHARS)
            if self.object_id:
                self.records_left = 0
        if self._has_items and not self.item_ids:
            self.item_ids = item_ids_in(fields)

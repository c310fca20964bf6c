"""Asks an engine for the usage of a stream where the client did not ask.

The flag is at the pointer `UsageFields.request` of the route, such as `/stream_options/include_usage`
(https://platform.openai.com/docs/api-reference/chat/create).
"""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

from penstock.answers.usage_reader import members_of

REFUSING_STATUSES: Final = frozenset({400, 422})
"""Statuses with which an engine may refuse the flag; the request is then sent again without it."""

REFUSED_FOR_S: Final = 600.0
"""Time (s) for which an engine is not asked again, after it refused the flag."""

MAX_REFUSALS: Final = 4096

_ESCAPE: Final = b"\\u00"
_TRUE: Final = b"true"
_NULL: Final = b"null"


class UsageRequests:
    """Which engines refuse to be asked for the usage of a stream."""

    __slots__ = ("_accepted_at", "_until")

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}
        self._accepted_at: dict[str, float] = {}

    def accepted(self, model: str, now: float) -> None:
        """Record that an engine of `model` was asked, and responds at `now` (s)."""
        if len(self._accepted_at) >= MAX_REFUSALS:
            self._accepted_at.clear()
        self._accepted_at[model] = now

    def may_have_refused(self, model: str, now: float) -> None:
        """Record that an engine of `model` was asked, and responds at `now` (s) as if it refuses.

        If an engine of the model has accepted the flag within REFUSED_FOR_S, the request is the cause: a client must
        not stop the metering of others.
        """
        if now - self._accepted_at.get(model, -inf) >= REFUSED_FOR_S:
            self.refused(model, "", now)

    def refused(self, model: str, endpoint: str, now: float) -> None:
        """Record that an engine of `model` responds at `now` (s) if it is not asked, and refuses if it is.

        Args:
            endpoint: its name; empty if it is not known, so that no engine of the model is asked.
        """
        if len(self._until) >= MAX_REFUSALS:
            self._until.clear()
        self._until[model, endpoint] = now + REFUSED_FOR_S

    def may_ask(self, model: str, now: float, endpoint: str = "") -> bool:
        """Whether an endpoint may be asked at `now` (s); without a name, whether one of the model's may be."""
        return not self._until or now >= self._until.get((model, endpoint), 0.0)


class UsageFlag:
    """The flag that the agent set in one request."""

    __slots__ = ("_original", "_prefix", "_root")

    def __init__(self, root: str, prefix: bytes, original: bytes | None) -> None:
        """Remember how to remove the flag.

        Args:
            root: the member of the body that contains the flag.
            prefix: what was inserted at the beginning of the body; empty if the member was replaced.
            original: the value of the member in the client's body; None if it was absent.
        """
        self._root = root
        self._prefix = prefix
        self._original = original

    @classmethod
    def of_member(cls, root: str, body: bytes | bytearray) -> UsageFlag:
        """The flag that is about to be set by replacing the member `root` of `body`."""
        members = members_of(bytes(body)) or {}
        return cls(root, b"", bytes(members[root]) if root in members else None)

    def removed_from(self, body: bytes | bytearray) -> bytes:
        """The body as the client sent it, apart from a model that was replaced meanwhile."""
        if self._prefix and body.startswith(self._prefix):
            return b"{" + bytes(body[len(self._prefix) :])
        members = members_of(bytes(body)) or {}
        if self._original is None:
            members.pop(self._root, None)
        else:
            members[self._root] = msgspec.Raw(self._original)
        return msgspec.json.encode(members)


def ask_for_usage(body: bytes | bytearray, flag: tuple[str, ...]) -> tuple[bytes, UsageFlag] | None:
    """The body with the flag set, and the flag; None if the client set the flag, or if there is no object for it.

    Args:
        body: a complete JSON body.
        flag: path of the flag.
    """
    root = flag[0]
    name = b'"%b"' % root.encode()
    begin = body.find(b"{")
    if begin < 0:
        return None
    if name not in body and not (b"\\" in body and _ESCAPE in body):
        value: object = True
        for token in reversed(flag[1:]):
            value = {token: value}
        comma = b"" if body[begin + 1 : begin + 2] == b"}" else b","
        prefix = b"{%b:%b%b" % (name, msgspec.json.encode(value), comma)
        # One copy: a body may have tens of megabytes.
        return b"".join([prefix, memoryview(body)[begin + 1 :]]), UsageFlag(root, prefix, None)
    members = members_of(bytes(body))
    if members is None:
        return None
    original = bytes(members[root]) if root in members else None
    changed = _with_flag(bytes(body), flag)
    return None if changed is None else (changed, UsageFlag(root, b"", original))


def _with_flag(raw: bytes, flag: tuple[str, ...]) -> bytes | None:
    """An object with the flag set; None if it is set, or if a part of its path is no object."""
    members = {} if raw.strip() == _NULL else members_of(raw)
    if members is None:
        return None
    present = bytes(members[flag[0]]) if flag[0] in members else _NULL
    if len(flag) == 1:
        changed = None if present == _TRUE else _TRUE
    else:
        changed = _with_flag(present, flag[1:])
    if changed is None:
        return None
    members[flag[0]] = msgspec.Raw(changed)
    return msgspec.json.encode(members)

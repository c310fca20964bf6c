"""The head of an answer from an engine or a peer, and one that was parsed before, to take the next one by."""

from __future__ import annotations

from typing import Final

from regional_agent.http.head_cache import RepeatedHead
from regional_agent.http.messages import NO_BODY_STATUSES, Header, response_headers_back, status_line

MAY_DIFFER: Final = frozenset({b"content-length", b"date", b"x-request-id"})
"""Headers whose value may be another while the rest of a head means the same."""

_NOT_COUNTED: Final = frozenset({b"transfer-encoding", b"upgrade"})
"""With these it is not the length alone that says where an answer ends."""


class AnswerHead:
    """Status and headers, names in lower case. Never changed once made: several answers may share one."""

    __slots__ = ("_from_engine", "_from_peer", "by_name", "headers", "length", "status")

    def __init__(self, status: int, headers: list[Header], by_name: dict[bytes, bytes]) -> None:
        """As parsed; `by_name` has of a repeated header the last."""
        self.status = status
        self.headers = headers
        self.by_name = by_name
        self.length = int(by_name.get(b"content-length") or 0)
        """Bytes of its body, where that is what says how many there are."""
        self._from_engine = self._from_peer = b""

    def followed_by(self, headers: list[Header], by_name: dict[bytes, bytes]) -> AnswerHead:
        """The head of a later answer, which differs from this one in values of MAY_DIFFER alone."""
        later = AnswerHead(self.status, headers, by_name)
        if by_name.get(b"date") == self.by_name.get(b"date"):
            # Nothing else of what may differ goes on to a client.
            later._from_engine, later._from_peer = self._from_engine, self._from_peer
        return later

    @property
    def is_event_stream(self) -> bool:
        """Whether its body is server-sent events, as they are: to what is packed nothing can be added."""
        if b"content-encoding" in self.by_name:
            return False
        return self.by_name.get(b"content-type", b"").partition(b";")[0].strip().lower() == b"text/event-stream"

    def onward(self, *, from_peer: bool) -> bytes:
        """Status line and the header lines that a client may see."""
        known = self._from_peer if from_peer else self._from_engine
        if known:
            return known
        lines = response_headers_back(self.headers, self.by_name, from_peer=from_peer)
        onward = b"".join([status_line(self.status), *lines])
        if from_peer:
            self._from_peer = onward
        else:
            self._from_engine = onward
        return onward


class KnownAnswer:
    """The head of an answer whose length it says, which came on a connection before."""

    __slots__ = ("_head", "_latest", "_repeated", "keep_alive")

    def __init__(self, raw: bytes, head: AnswerHead, *, keep_alive: bool) -> None:
        """`raw` is the head as it came; see `may_be_known`."""
        self._head = self._latest = head
        self._repeated = RepeatedHead(raw, head.headers, MAY_DIFFER)
        self.keep_alive = keep_alive

    def again(self, data: bytes) -> tuple[AnswerHead, int] | None:
        """The head that `data` begins with, and where its body begins; None where it is another."""
        raw = self._repeated.raw
        if data.startswith(raw):
            return self._head, len(raw)
        found = self._repeated.again(data)
        if found is None:
            return None
        headers, by_name, body_at = found
        self._latest = self._latest.followed_by(headers, by_name)
        return self._latest, body_at


def may_be_known(head: AnswerHead) -> bool:
    """Whether it is the length in an answer's head that says where the answer ends."""
    by_name = head.by_name
    return b"content-length" in by_name and head.status not in NO_BODY_STATUSES and _NOT_COUNTED.isdisjoint(by_name)

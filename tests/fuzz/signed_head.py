"""Reads any line as a signed head of an access log (`penstock residency report --trust`).

The first byte selects how the input is used: as the line; as a change of a line that an agent signed (position, then
the bytes that stand there); or as the head that the agent signs. Property: a line is refused, or states exactly what an
agent signed for its own log.
"""

from __future__ import annotations

import time
from functools import cache

from penstock.log_chains.access_log_chain import ChainHead
from penstock.log_chains.signed_head import BadHead, SignedHead, read_head, sign_head
from tests.support.identities import agent_id, identity, trust

WORDS = (b'{"signed_head":"', b'"until_ms":', b'"final":true', b'"certificate":"', b'"signature":"', b"eu/agent-1/1:1:")

UNTIL = float(int(time.time()))
STATED = SignedHead(ChainHead("eu/agent-1/1", 7, "0f" * 32), UNTIL, False)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    select, content = data[:1], data[1:]
    if select == b"s":
        _sign(content.decode("latin-1"))
        return
    line = content
    if select == b"c":
        position = int.from_bytes(content[:2], "big") % len(_signed())
        line = _signed()[:position] + content[2:] + _signed()[position + len(content[2:]) :]
    try:
        stated = read_head(line, trust())
    except BadHead:
        return
    assert stated == STATED


def _sign(text: str) -> None:
    """Signs a head and reads it back, if it is one and of this agent's log."""
    try:
        head = ChainHead.parse(text)
    except ValueError:
        return
    try:
        stated = read_head(sign_head(head, UNTIL, True, identity(agent_id())), trust())
    except BadHead:
        assert head.agent != "eu/agent-1"
        return
    assert stated == SignedHead(head, UNTIL, True)


@cache
def _signed() -> bytes:
    return sign_head(STATED.head, STATED.until, STATED.final, identity(agent_id()))

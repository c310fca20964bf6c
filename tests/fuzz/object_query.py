"""Receives any question about an object, and any answer.

The first byte selects how the input is used: `q`, the payload of a question that an agent of another region signs; `a`,
the answer that such an agent signs; else, the token of a question. `NOW` in the input stands for the current time.
Property: a question is rejected with a reason or is its signer's, for this region and recent; an answer is rejected
with BadSignature, or is that of the asked region.
"""

from __future__ import annotations

import time

from penstock.routes.object_locations import MAX_OBJECT_ID_CHARS
from penstock.wire.object_query import ObjectQuery, open_answer, open_query, seal_answer, seal_query
from penstock.wire.peer_keys import BadSignature, Purpose
from penstock.wire.route_context import CLOCK_SKEW_S
from tests.support.identities import agent_keyring, introduce

WORDS = (
    *(b'"origin":"us"', b'"agent":"agent-1"', b'"server":"eu"', b'"nonce":"', b'"sent_at":NOW', b'"tenant":"t"'),
    *(b'"object_id":"resp_1"', b'"region":"us"', b'"model":"m"', b"1e308", b"NaN", b"null", b"\xff", b"\\ud800", b"."),
)

NOW = time.time()

_RECEIVER = agent_keyring("eu")
_OTHER = agent_keyring("us")
_SENDER = introduce(_OTHER, _RECEIVER)
_TO_OTHER = introduce(_RECEIVER, _OTHER)
_QUERY = ObjectQuery("eu", "agent-1", "us", "nonce", NOW, "t", "resp_1")


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    select, content = data[:1], data[1:].replace(b"NOW", b"%.3f" % NOW)
    if select == b"a":
        _check_answer(_SENDER.sign(Purpose.OBJECT_ANSWER, b"nonce" + content).encode() + b"\n" + content)
    elif select == b"q":
        _check_query(_SENDER.seal(Purpose.OBJECT, content), signed=True)
    else:
        _check_query(content.decode("latin-1"), signed=False)
        _check_answer(content)


def _check_query(token: str, *, signed: bool) -> None:
    try:
        opened = open_query(token, _RECEIVER, "eu", NOW)
    except BadSignature:
        return
    assert signed
    if isinstance(opened, str):
        return
    query, peer_keys = opened
    assert (query.origin, query.agent, query.server) == ("us", "agent-1", "eu")
    assert abs(query.sent_at - NOW) <= CLOCK_SKEW_S
    assert 0 < len(query.object_id) <= MAX_OBJECT_ID_CHARS
    assert peer_keys.peer.id == _OTHER.identity.id
    again = open_query(seal_query(query, _SENDER), _RECEIVER, "eu", NOW)
    assert not isinstance(again, str)
    assert again[0] == query


def _check_answer(body: bytes) -> None:
    try:
        answer = open_answer(body, _QUERY, _TO_OTHER)
    except BadSignature:
        return
    assert answer.region == "us"
    assert open_answer(seal_answer(answer, _QUERY, _SENDER), _QUERY, _TO_OTHER) == answer

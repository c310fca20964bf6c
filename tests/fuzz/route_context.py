"""Receives any route context.

The first byte selects how the input is used: `s`, the payload of a token that an agent of another region signs; `t`, a
change of a valid token (position, number of characters that are replaced, replacement); else, the token. `NOW` in the
input stands for the current time. Property: the result is a refusal, or a context that is meant for this region and
permitted by the policy, and that is the same when it is sealed again; only the token that was signed is accepted, and
once.
"""

from __future__ import annotations

import time

import msgspec

from control_plane.policy.compiler import compile_bundle
from penstock.policy.geography import Location
from penstock.routing.reasons import Refusal
from penstock.wire.peer_keys import Purpose
from penstock.wire.route_context import MAX_HEADER, ReplayGuard, RouteContext, accept, seal
from tests.support.identities import agent_keyring, introduce
from tests.support.policy_bundle import BUNDLE

WORDS = (
    *(b'"request_id":"', b'"origin":"us-east"', b'"server":"eu-de"', b'"tenant":"one"', b'"data_class":"personal"'),
    *(b'"location":{"country":"DE"}', b'"residency":["eu-de"]', b'"issued_at":NOW', b'"deadline_at":NOW', b'"hops":2'),
    *(b'"traceparent":"', b'"body_bytes":', b"null", b"1e308", b"-1", b"\xff", b"\\u0000", b".", b"=", b"-", b"_"),
)

NOW = time.time()
HERE = "eu-de"

_POLICY = compile_bundle(BUNDLE)
_RECEIVER = agent_keyring(HERE)
_SENDER = introduce(agent_keyring("us-east"), _RECEIVER)
_CONTEXT = RouteContext(
    "r1", "us-east", HERE, "one", "personal", Location("DE"), "chat", (HERE,), "0" * 64, NOW, NOW + 60.0, body_bytes=2
)
_TOKEN = seal(_CONTEXT, _SENDER)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    select, content = data[:1], data[1:].replace(b"NOW", b"%.3f" % NOW)
    if select == b"s":
        token = _SENDER.seal(Purpose.ROUTE, content)
    elif select == b"t":
        place = int.from_bytes(content[:2], "big") % len(_TOKEN)
        replaced = content[2] if len(content) > 2 else 0
        token = _TOKEN[:place] + content[3:].decode("latin-1") + _TOKEN[place + replaced :]
    else:
        token = content.decode("latin-1")
    context = accept(token, _RECEIVER, _POLICY, HERE, NOW)
    if isinstance(context, Refusal):
        return
    assert select == b"s" or context == _CONTEXT
    assert (context.server, context.origin) == (HERE, "us-east")
    assert HERE in context.residency
    assert len(context.request_id) <= MAX_HEADER
    assert "\r" not in context.request_id + context.traceparent
    assert "\n" not in context.request_id + context.traceparent
    assert accept(seal(context, _SENDER), _RECEIVER, _POLICY, HERE, NOW) == context
    assert msgspec.json.decode(msgspec.json.encode(context), type=RouteContext) == context
    guard = ReplayGuard()
    signed = token if select == b"s" else _TOKEN
    assert guard.first(signed, NOW)
    assert not guard.first(token, NOW)

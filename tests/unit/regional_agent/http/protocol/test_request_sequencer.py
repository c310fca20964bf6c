"""The sequencer of requests: bytes in, requests and turns out, without a socket or an event loop."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.http.header_rules import TO_ENGINE
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request
from regional_agent.http.protocol.connection_state import (
    ENDED,
    LAST,
    REQUESTS,
    TUNNEL,
    UPGRADING,
    UPLOAD,
    InvalidEvent,
)
from regional_agent.http.protocol.received import (
    SMALL_BODY_BYTES,
    HeadReceived,
    PartReceived,
    Received,
    RequestRefused,
)
from regional_agent.http.protocol.request_parser import RequestParser
from regional_agent.http.protocol.request_sequencer import CONTINUE, RequestSequencer
from tests.property.test_proxy_properties import NOISE, PLACES, cut, requests
from tests.support.examples import examples

LIMITS = Limits(max_head_bytes=4096, max_headers=8)
GET = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
EXPECTING = POST[:-2] + b"Expect: 100-continue\r\n\r\n"
WEBSOCKET = b"GET /%d HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
H2C = b"GET /%d HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
LARGE = SMALL_BODY_BYTES + 5000
REFUSAL = Refusal(Reason.SATURATED, "full")


def sequencer(max_waiting: int = 16) -> RequestSequencer:
    return RequestSequencer(RequestParser(LIMITS, TO_ENGINE, b"", b"http"), max_waiting)


def received(sequencer: RequestSequencer, data: bytes = b"") -> Iterator[Received]:
    """What `data` contains, as far as it may be taken now."""
    if data:
        sequencer.parser.receive(data)
    while sequencer.state.receives_requests and not (sequencer.waiting and sequencer.is_full):
        if (found := sequencer.parser.next()) is None:
            break
        if isinstance(found, Request):
            sequencer.add(found, may_start=False)
        elif not isinstance(found, RequestRefused):
            sequencer.add_part(found)
        yield found


def targets(found: object) -> list[bytes]:
    return [each.target for each in found if isinstance(each, Request)]  # type: ignore[attr-defined]


def turn(sequencer: RequestSequencer) -> Request:
    """Begin the next request."""
    request = sequencer.next_turn()
    assert isinstance(request, Request)
    return request


def transcript(pieces: list[bytes]) -> list[object]:
    """What a client says and gets, where every request is answered at once; parts of one body count as one."""
    one = sequencer()
    told: list[object] = []
    parts: dict[Request, bytes] = {}
    for piece in pieces:
        if not one.state.receives_requests:
            told.append(("rest", piece))
            continue
        for each in received(one, piece):
            if isinstance(each, HeadReceived):
                told.append(("head", each.request.target, each.request.headers))
                if not each.request.plain and each.request.header(b"expect"):
                    told.append(one.expect_continue())
            elif isinstance(each, PartReceived):
                each.request.received_bytes += len(each.chunk)
                parts[each.request] = parts.get(each.request, b"") + each.chunk
            elif isinstance(each, RequestRefused):
                told.append(("refused", each.refusal.reason, each.request.target if each.request else None))
                one.refuse(each.refusal, each.request)
            else:
                body = bytes(each.body) + parts.pop(each, b"")
                assert (each.length, each.received_bytes) == (len(body), len(body))
                told.append((each.method, each.target, each.headers, body, each.keep_alive, each.upgrade))
            while (due := one.next_turn()) is not None:
                if isinstance(due, Request):
                    told.append(("answered", due.target, due.may_keep_alive))
                    one.finish()
                    if not due.may_keep_alive:
                        one.end()
                elif isinstance(due, RequestRefused):
                    told.append("refusal")
                    one.end()
    told.append((one.state, one.receiving is None, one.parser.in_head))
    return merged(told)


def merged(told: list[object]) -> list[object]:
    """What follows the last request, in one piece."""
    rest = b"".join(each[1] for each in told if isinstance(each, tuple) and each[0] == "rest")
    return [*(each for each in told if not (isinstance(each, tuple) and each[0] == "rest")), bool(rest)]


LARGE_BODIES = st.sampled_from(
    [
        POST % (1, LARGE) + b"x" * LARGE,
        POST.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") % 2
        + b"%x\r\n%b\r\n" % (LARGE, b"y" * LARGE)
        + b"5\r\nhello\r\n0\r\n\r\n",
        EXPECTING % (3, 5) + b"hello",
        H2C % 4,
        b"\r\n" + POST % (5, 5) + b"hello",
        POST % (5, 5) + b"hullo",
    ]
)
ENDS = st.sampled_from(
    [
        b"",
        GET.replace(b"Host", b"Connection: close\r\nHost") % 6,
        b"GET /7 HTTP/1.0\r\n\r\n",
        b"GET  /8 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /9 HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
        POST % (10, 50) + b"half",
    ]
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(requests() | LARGE_BODIES, max_size=4), ENDS, PLACES)
def test_what_is_received_does_not_depend_on_how_bytes_are_split(
    said: list[bytes], end: bytes, places: list[int]
) -> None:
    whole = b"".join(said) + end
    expected = transcript([whole])
    pieces = cut(whole, places)
    assert transcript([piece for piece in pieces if piece])[:-1] == expected[:-1]
    if len(whole) < 1000:
        assert transcript([whole[at : at + 1] for at in range(len(whole))])[:-1] == expected[:-1]


@settings(max_examples=examples(200), deadline=None)
@given(NOISE, PLACES)
def test_any_bytes_are_requests_or_refused(said: bytes, places: list[int]) -> None:
    for each in transcript([piece for piece in cut(said, places) if piece]):
        assert each is not None


def test_pipelined_requests_are_handled_one_at_a_time_in_order() -> None:
    one = sequencer()
    assert targets(received(one, b"".join(GET % number for number in range(3)))) == [b"/0", b"/1", b"/2"]
    for number in range(3):
        request = turn(one)
        assert request.target == b"/%d" % number
        assert one.next_turn() is None, "one at a time"
        assert request.may_keep_alive
        assert one.finish() is request
    assert one.next_turn() is None
    assert one.is_idle


def test_a_request_starts_at_once_only_in_its_turn() -> None:
    one = sequencer()
    one.parser.receive(b"".join(GET % number for number in range(4)))
    zeroth, first, second, third = (one.parser.next() for _ in range(4))
    assert isinstance(zeroth, Request)
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert isinstance(third, Request)
    assert not one.add(zeroth, may_start=False), "the client does not read"
    assert turn(one) is zeroth
    one.finish()
    assert one.add(first, may_start=True)
    assert (one.serving, first.started) == (first, True)
    assert not one.add(second, may_start=True), "another request is being handled"
    one.finish()
    assert not one.add(third, may_start=True), "an earlier one waits"
    assert turn(one) is second
    one.finish()
    assert turn(one) is third


def test_no_request_is_taken_while_enough_wait() -> None:
    one = sequencer(max_waiting=2)
    assert targets(received(one, b"".join(GET % number for number in range(5)))) == [b"/0", b"/1"]
    assert one.parser.has_more
    for number in range(5):
        assert turn(one).target == b"/%d" % number
        one.finish()
        list(received(one))
    assert not one.parser.has_more


def test_no_request_is_taken_while_the_waiting_ones_are_large() -> None:
    one = sequencer()
    request = POST % (1, SMALL_BODY_BYTES) + b"x" * SMALL_BODY_BYTES
    assert len(list(received(one, request * 4))) == 2
    assert one.is_full
    turn(one)
    assert len(list(received(one))) == 1, "one is large, and one more may wait"


def test_a_large_body_is_announced_before_it_arrives() -> None:
    one = sequencer()
    (head,) = received(one, POST % (1, LARGE))
    assert isinstance(head, HeadReceived)
    assert (one.state, one.uploading, one.receiving) == (UPLOAD, head.request, head.request)
    collected = list(received(one, b"x" * SMALL_BODY_BYTES))
    assert (collected, len(head.request.body)) == ([], SMALL_BODY_BYTES)
    (part,) = received(one, b"x" * 4000)
    assert isinstance(part, PartReceived)
    one.queue_early(head.request)
    assert turn(one) is head.request
    assert not head.request.may_keep_alive, "the rest of the body would be read as a request"
    (_, whole) = received(one, b"x" * 1000)
    assert whole is head.request
    assert (one.state, one.uploading, one.next_turn()) == (REQUESTS, None, None)
    assert head.request.may_keep_alive


def test_100_continue_waits_for_earlier_responses() -> None:
    one = sequencer()
    list(received(one, EXPECTING % (1, 0) + EXPECTING % (1, 5)))
    assert one.expect_continue() == CONTINUE
    turn(one)
    assert one.expect_continue() == b""
    assert one.next_turn() is None
    one.finish()
    assert one.has_turn
    assert one.next_turn() == CONTINUE
    assert one.next_turn() is None


def test_100_continue_is_not_sent_after_the_body() -> None:
    one = sequencer()
    list(received(one, GET % 0 + EXPECTING % (1, 5)))
    turn(one)
    one.expect_continue()
    list(received(one, b"hello"))
    one.finish()
    assert turn(one).target == b"/1"
    one.finish()
    assert one.next_turn() is None


def test_a_refusal_is_the_last_response_in_order() -> None:
    one = sequencer()
    *_, refused = received(one, GET % 0 + GET % 1 + b"GET /2\r\n\r\n" + GET % 3)
    assert isinstance(refused, RequestRefused)
    assert refused.refusal.reason is Reason.BAD_REQUEST
    assert one.refuse(refused.refusal, refused.request) == []
    assert one.state is LAST
    for number in range(2):
        assert turn(one).target == b"/%d" % number
        one.finish()
    last = one.next_turn()
    assert isinstance(last, RequestRefused)
    assert last.refusal is refused.refusal
    assert one.next_turn() is None


def test_a_waiting_request_is_refused_with_all_later_ones() -> None:
    one = sequencer()
    zeroth, first, second = (each for each in received(one, GET % 0 + GET % 1 + GET % 2) if isinstance(each, Request))
    (head,) = received(one, POST % (3, LARGE))
    assert isinstance(head, HeadReceived)
    turn(one)
    assert one.has(first)
    assert not one.has(zeroth)
    assert set(one.refuse(REFUSAL, first)) == {first, second, head.request}
    assert not one.has(first)
    one.finish()
    refused = one.next_turn()
    assert isinstance(refused, RequestRefused)
    assert refused.request is first


def test_the_handler_responds_to_a_request_that_has_started() -> None:
    one = sequencer()
    (head,) = received(one, POST % (1, LARGE))
    assert isinstance(head, HeadReceived)
    one.queue_early(head.request)
    turn(one)
    assert one.refuse(REFUSAL, head.request) == [head.request]
    assert (one.state, one.next_turn(), one.serving) == (LAST, None, head.request)
    one.finish()
    assert one.next_turn() is None


def test_the_end_drops_everything_once() -> None:
    one = sequencer()
    found = list(received(one, GET % 0 + GET % 1 + POST % (2, LARGE)))
    turn(one)
    upload = found[-1]
    assert isinstance(upload, HeadReceived)
    assert {each.target for each in one.end()} == {b"/0", b"/1", b"/2"}
    assert one.end() == []
    assert (one.state, one.next_turn(), one.receiving, one.parser.has_more) == (ENDED, None, None, False)


def test_bytes_after_an_offer_belong_to_the_new_protocol() -> None:
    one = sequencer()
    (offer,) = received(one, WEBSOCKET % 1 + b"\x81\x00")
    assert isinstance(offer, Request)
    assert (one.state, offer.upgrade) == (UPGRADING, b"websocket")
    one.parser.receive(b"\x82\x00")
    assert list(received(one)) == []
    assert one.parser.has_more
    assert not turn(one).may_keep_alive, "what follows a declined offer is unknown"
    assert one.upgrade() == b"\x81\x00\x82\x00"
    assert (one.state, one.parser.has_more) == (TUNNEL, False)


def test_an_offer_of_another_protocol_is_ignored() -> None:
    one = sequencer()
    found = list(received(one, H2C % 1 + GET % 2))
    assert targets(found) == [b"/1", b"/2"]
    assert all(isinstance(each, Request) and not each.upgrade for each in found)


def test_an_upgrade_without_an_offer_is_a_defect() -> None:
    one = sequencer()
    with pytest.raises(InvalidEvent, match="upgrade in state requests"):
        one.upgrade()


def test_bytes_after_the_last_request_are_no_request() -> None:
    one = sequencer()
    (last,) = received(one, GET.replace(b"Host", b"Connection: close\r\nHost") % 1 + GET % 2)
    assert (one.state, one.receiving) == (LAST, None)
    assert list(received(one, GET % 3)) == []
    assert turn(one) is last
    assert not last.may_keep_alive


def test_an_idle_connection_holds_no_request() -> None:
    one = sequencer()
    for said in (GET % 1, GET % 2, (POST % (3, 5)).replace(b"a\r\n", b"a\r\nVia: 1.1 b\r\n") + b"hello"):
        list(received(one, said))
        request = turn(one)
        one.finish()
        assert sys.getrefcount(request) == 2, "of this name, and of the call"


def test_the_end_leaves_nothing_for_the_cyclic_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        one = sequencer()
        list(received(one, GET % 1 + POST % (2, 5)))
        one.end()
        del one
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_an_incomplete_head_is_being_received() -> None:
    one = sequencer()
    assert (list(received(one)), one.receiving) == ([], None)
    assert list(received(one, (GET % 1)[:8])) == []
    assert one.receiving is not None
    assert one.parser.in_head
    assert targets(received(one, (GET % 1)[8:])) == [b"/1"]
    assert one.receiving is None

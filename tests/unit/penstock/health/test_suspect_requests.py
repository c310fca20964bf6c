"""Requests that broke several engines are recognised when they are repeated."""

from penstock.health.suspect_requests import MAX_PART_BYTES, MAX_REQUESTS, SuspectRequests

REMEMBERED_S = 60.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def test_a_request_is_remembered_for_its_tenant_and_for_a_while() -> None:
    suspects = SuspectRequests()
    assert suspects.until < 0.0
    suspects.add("a", b"poison", 10.0)
    assert suspects.includes("a", bytearray(b"poison"), 10.0)
    assert not suspects.includes("b", b"poison", 10.0)
    assert not suspects.includes("a", b"other", 10.0)
    suspects.add("a", b"later", 20.0)
    assert not suspects.includes("a", b"poison", 10.0 + REMEMBERED_S)
    assert suspects.includes("a", b"later", 19.9 + REMEMBERED_S)
    assert not suspects.includes("a", b"later", 20.0 + REMEMBERED_S)


def test_long_bodies_are_recognised_by_length_beginning_and_end() -> None:
    suspects, body = SuspectRequests(), b"a" * MAX_PART_BYTES + b"b" + b"c" * MAX_PART_BYTES
    suspects.add("a", body, 0.0)
    assert suspects.includes("a", body, 1.0)
    assert not any(suspects.includes("a", other, 1.0) for other in (body[1:], b"b" + body[1:], body[:-1] + b"d"))


def test_memory_is_bounded() -> None:
    suspects = SuspectRequests()
    for number in range(MAX_REQUESTS + 1):
        suspects.add("a", b"%d" % number, 0.0)
    suspects.add("a", b"1", 0.0)
    assert [suspects.includes("a", b"%d" % number, 1.0) for number in (0, 1, 2, MAX_REQUESTS)] == [
        False,
        True,
        True,
        True,
    ]
    suspects.add("a", b"another", 0.0)
    assert [suspects.includes("a", b"%d" % number, 1.0) for number in (1, 2, 3)] == [True, False, True], "1 came again"

from base64 import urlsafe_b64encode

import pytest

from penstock.wire.signing import MAX_TOKEN, BadSignature, FleetKey, Purpose

OLD, NEW = b"o" * 32, b"n" * 32


def test_only_the_same_message_under_the_same_key_passes() -> None:
    key = FleetKey(NEW)
    signature = key.sign(Purpose.REPORT, b"message")
    key.check(Purpose.REPORT, b"message", signature)
    for message, given in ((b"messagf", signature), (b"message", signature[:-1] + "x"), (b"message", "")):
        with pytest.raises(BadSignature):
            key.check(Purpose.REPORT, message, given)
    with pytest.raises(BadSignature):
        FleetKey(OLD).check(Purpose.REPORT, b"message", signature)


@pytest.mark.parametrize("purpose", Purpose)
def test_a_signature_for_one_purpose_is_worth_nothing_for_another(purpose: Purpose) -> None:
    key = FleetKey(NEW)
    signature = key.sign(purpose, b"message")
    for other in Purpose:
        if other is not purpose:
            with pytest.raises(BadSignature):
                key.check(other, b"message", signature)


def test_rotation_signs_with_the_first_and_verifies_with_all() -> None:
    rotating = FleetKey(NEW, OLD)
    rotating.check(Purpose.PROBE, b"m", FleetKey(OLD).sign(Purpose.PROBE, b"m"))
    FleetKey(NEW).check(Purpose.PROBE, b"m", rotating.sign(Purpose.PROBE, b"m"))
    with pytest.raises(BadSignature):
        FleetKey(OLD).check(Purpose.PROBE, b"m", rotating.sign(Purpose.PROBE, b"m"))


def test_tokens_carry_their_payload() -> None:
    key = FleetKey(NEW)
    payload = bytes(range(256))
    token = key.seal(Purpose.ROUTE, payload)
    assert key.open(Purpose.ROUTE, token) == payload
    assert token.isascii()
    assert not set(token) & set(" \r\n,;\"'")


def test_changed_cut_swapped_or_oversized_tokens_are_refused() -> None:
    key = FleetKey(NEW)
    token = key.seal(Purpose.ROUTE, b"payload")
    encoded, _, signature = token.partition(".")
    forged = urlsafe_b64encode(b"another").decode()
    for bad in (
        "",
        ".",
        encoded,
        encoded + ".",
        "." + signature,
        forged + "." + signature,
        token + "0",
        "a" + token,
        "é." + signature,
        "x" * (MAX_TOKEN + 1),
    ):
        with pytest.raises(BadSignature):
            key.open(Purpose.ROUTE, bad)


def test_short_or_missing_keys_are_refused() -> None:
    for keys in ((), (b"short",), (NEW, b"short")):
        with pytest.raises(ValueError, match="at least 32 bytes"):
            FleetKey(*keys)


def test_secrets_stay_out_of_representations() -> None:
    assert "n" * 8 not in repr(FleetKey(NEW))
    assert not hasattr(FleetKey(NEW), "__dict__")

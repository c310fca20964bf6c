"""A stored policy matches its digest, with any release that wrote it; fields of newer releases are rejected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from adapters.store.codec import CodecError, encode
from adapters.store.stored_policies import FromNewerRelease, read_policy
from penstock.policy.policy import Policy
from tests.support import planet
from tests.support.policy_releases import (
    before_logics_had_names,
    with_a_field_to_come,
    with_a_logic_to_come,
)

POLICY = planet.policy()


def test_a_policy_of_this_release_is_read() -> None:
    assert read_policy(encode(POLICY), POLICY.digest()) == POLICY


def test_a_policy_of_an_earlier_release_keeps_digest_and_meaning() -> None:
    raw, digest = before_logics_had_names(POLICY)
    policy = read_policy(raw, digest)
    assert policy == POLICY
    assert policy.digest() == digest != POLICY.digest()


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (with_a_logic_to_come, r"enum value 'crystal_ball' - at `\$\.objective\.planner`; .*upgrade this one"),
        (with_a_field_to_come, r"unknown field `patience_s` - at `\$\.objective`; .*upgrade this one"),
    ],
)
def test_fields_of_newer_releases_are_refused(write: Callable[[Policy], tuple[bytes, str]], message: str) -> None:
    raw, digest = write(POLICY)
    with pytest.raises(FromNewerRelease, match=message):
        read_policy(raw, digest)


@pytest.mark.parametrize(
    "raw", [b"torn", with_a_logic_to_come(POLICY)[0], encode(POLICY).replace(b"eu-de", b"eu-dd"), encode(POLICY)]
)
def test_a_policy_that_differs_from_its_digest_is_refused(raw: bytes) -> None:
    with pytest.raises(CodecError) as refused:
        read_policy(raw, "0" * 64)
    assert type(refused.value) is CodecError

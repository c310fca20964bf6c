"""Reads policies from the store and checks that their content has the digest under which they are stored."""

from __future__ import annotations

from adapters.store.codec import CodecError, decode, is_as_written
from penstock.policy.policy import Policy


class FromNewerRelease(CodecError):
    """The value is intact but not readable, since a newer release wrote it."""


def read_policy(raw: bytes, digest: str) -> Policy:
    """Decode the policy that is stored under `digest`.

    A policy that an earlier release wrote with fewer fields keeps its digest; missing fields have their defaults.

    Raises:
        FromNewerRelease: the policy has fields or values that only newer releases support.
        CodecError: the value cannot be decoded, or its content does not have that digest.
    """
    whole = is_as_written(raw, digest)
    try:
        policy = decode(raw, Policy)
    except CodecError as error:
        if whole:
            raise FromNewerRelease(str(error)) from None
        raise
    if not whole:
        raise CodecError(f"policy {digest[:12]} has the content of {policy.digest()[:12]}")
    return policy.named(digest)

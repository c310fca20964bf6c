"""A policy as the store keeps it, by digest: read under the name that its bytes have, or not at all."""

from __future__ import annotations

from adapters.store.codec import CodecError, decode, is_as_written
from penstock.policy.policy import Policy


class FromNewerRelease(CodecError):
    """It is whole and not readable here: a release wrote it that knows more than this one."""


def read_policy(raw: bytes, digest: str) -> Policy:
    """The policy of a value that is kept under `digest`.

    One that an earlier release wrote, with fewer fields, keeps its name: what it lacks means what it meant then.

    Raises:
        FromNewerRelease: it says what only newer releases know.
        CodecError: it cannot be read, or is not what is named by that digest.
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

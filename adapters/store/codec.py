"""The format of values in the store: JSON that `etcdctl get` shows readably, in an envelope with version and kind.

A value of a newer version is rejected. Within a version fields may be added: a reader ignores unknown fields, except in
policies, where an unknown field may change the meaning of the others.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeVar

import msgspec

VERSION = 1
MAX_VALUE_BYTES = 1_048_576
"""Maximum size (bytes) of a stored value: etcd rejects requests above 1.5 MiB
(https://etcd.io/docs/v3.5/dev-guide/limit/), and the other parts of a transaction count too."""

T = TypeVar("T", bound=msgspec.Struct)


class CodecError(Exception):
    """A value that cannot be written to the store, or that a reader must not use."""


class Envelope(msgspec.Struct, frozen=True):
    """The envelope of every stored value."""

    version: int
    kind: str
    """Name of the value's type."""
    value: msgspec.Raw


def encode(value: msgspec.Struct) -> bytes:
    """Return the stored form of a value; equal values give equal bytes.

    Raises:
        CodecError: the stored form is larger than MAX_VALUE_BYTES.
    """
    kind = type(value).__name__
    inner = msgspec.Raw(msgspec.json.encode(value, order="deterministic"))
    raw = msgspec.json.encode(Envelope(version=VERSION, kind=kind, value=inner))
    if len(raw) > MAX_VALUE_BYTES:
        raise CodecError(f"{kind} of {len(raw)} bytes is larger than the store takes ({MAX_VALUE_BYTES} bytes)")
    return raw


def decode(raw: bytes, type_: type[T]) -> T:
    """Return the value that `encode` encoded.

    Raises:
        CodecError: the value is malformed, too large, of another kind, or written by a newer version.
    """
    kind = type_.__name__
    if not raw:
        raise CodecError(f"the stored {kind} is empty, or not signed by a process of this fleet")
    if len(raw) > MAX_VALUE_BYTES:
        raise CodecError(f"a {kind} may have {MAX_VALUE_BYTES} bytes, this value has {len(raw)}")
    try:
        envelope = msgspec.json.decode(raw, type=Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"not a stored {kind}: {error}") from error
    if envelope.version > VERSION:
        raise CodecError(
            f"{envelope.kind} was written in version {envelope.version}, this process reads up to {VERSION}: upgrade it"
        )
    if envelope.version < 1 or envelope.kind != kind:
        raise CodecError(f"expected a {kind}, found {envelope.kind!r} in version {envelope.version}")
    try:
        return msgspec.json.decode(envelope.value, type=type_)
    except msgspec.ValidationError as error:
        raise CodecError(f"bad {kind}: {error}; if a newer release wrote it, upgrade this one") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"bad {kind}: {error}") from error


def is_as_written(raw: bytes, digest: str) -> bool:
    """Whether the SHA-256 of the value in the envelope is `digest`; the value may be undecodable for this release."""
    try:
        return sha256(msgspec.json.decode(raw, type=Envelope).value).hexdigest() == digest
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False

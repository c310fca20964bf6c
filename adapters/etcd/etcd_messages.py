"""Converts the store interface's types to and from etcd's messages (https://etcd.io/docs/v3.5/learning/api/). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapters.etcd.etcd_stubs import etcdrpc
from adapters.store.config_store import Changed, Delete, KeyValue, Put, SameKey, Unchanged

# etcd3 has no type annotations, so its messages have the type Any.
PROGRESS_REQUEST = etcdrpc.WatchRequest(progress_request=etcdrpc.WatchProgressRequest())


def to_bytes(key: str) -> bytes:
    """Encode a key for etcd; decoding restores a key that is not UTF-8, too."""
    return key.encode("utf-8", "surrogateescape")


def end_of_prefix(prefix: str) -> bytes:
    """Return the first key after all keys that begin with `prefix`, which is range_end in etcd's requests."""
    raw = to_bytes(prefix).rstrip(b"\xff")
    # For etcd, a range_end of a single zero byte is the end of all keys.
    return raw[:-1] + bytes([raw[-1] + 1]) if raw else b"\0"


def to_key_value(message: Any) -> KeyValue:
    """Convert a key-value message of etcd."""
    return KeyValue(
        key=message.key.decode("utf-8", "surrogateescape"),
        value=message.value,
        create_revision=message.create_revision,
        mod_revision=message.mod_revision,
        lease_id=message.lease,
    )


def to_changed(event: Any) -> Changed:
    """Convert a watch event of etcd."""
    key_value = to_key_value(event.kv)
    deleted = event.type == event.DELETE
    return Changed(key=key_value.key, now=None if deleted else key_value, revision=key_value.mod_revision)


def range_request(key: str, *, prefix: bool, values: bool = True, limit: int = 0) -> Any:
    """Return a linearizable read of a key, or of keys under a prefix in key order, with or without values.

    Args:
        limit: maximum number of keys; 0 for all.
    """
    end = end_of_prefix(key) if prefix else b""
    return etcdrpc.RangeRequest(key=to_bytes(key), range_end=end, keys_only=not values, limit=limit)


def following_page(request: Any, page: Any, revision: int) -> Any:
    """Return the request of the page after `page`, at the revision of the first page."""
    following = etcdrpc.RangeRequest()
    following.CopyFrom(request)
    following.key, following.revision = page.kvs[-1].key + b"\0", revision
    return following


def transaction_request(expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Any:
    """Return a transaction that applies all of `do` if all of `expect` holds."""
    return etcdrpc.TxnRequest(
        compare=[to_compare(item) for item in expect], success=[to_operation(item) for item in do]
    )


def to_compare(expectation: Unchanged | SameKey) -> Any:
    """Convert an expectation; in etcd, revision 0 stands for a key that does not exist."""
    key = to_bytes(expectation.key)
    if isinstance(expectation, SameKey):
        return etcdrpc.Compare(key=key, target=etcdrpc.Compare.CREATE, create_revision=expectation.create_revision)
    return etcdrpc.Compare(key=key, target=etcdrpc.Compare.MOD, mod_revision=expectation.mod_revision)


def to_operation(operation: Put | Delete) -> Any:
    """Convert one write of a transaction."""
    key = to_bytes(operation.key)
    if isinstance(operation, Delete):
        return etcdrpc.RequestOp(request_delete_range=etcdrpc.DeleteRangeRequest(key=key))
    return etcdrpc.RequestOp(request_put=etcdrpc.PutRequest(key=key, value=operation.value, lease=operation.lease_id))


def watch_request(prefix: str, start_revision: int) -> Any:
    """Return a watch of every key under `prefix` from `start_revision` on; large responses may arrive in fragments."""
    return etcdrpc.WatchRequest(
        create_request=etcdrpc.WatchCreateRequest(
            key=to_bytes(prefix),
            range_end=end_of_prefix(prefix),
            start_revision=start_revision,
            fragment=True,
        )
    )

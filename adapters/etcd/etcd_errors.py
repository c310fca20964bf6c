"""Translates gRPC errors of etcd to the errors of the store interface."""

from __future__ import annotations

import grpc

from adapters.store.config_store import Compacted, LeaseLost, StoreError, StoreUnavailable

PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""Codes after which a later retry may succeed; all others indicate an invalid request."""


def translate(error: Exception, what: str) -> StoreError:
    """Return the error of the store interface for an error that gRPC raised.

    Args:
        error: a grpc.RpcError, or the ValueError of a call on a closed channel.
        what: the operation that failed, for the message.
    """
    if not isinstance(error, grpc.Call):
        return StoreUnavailable(f"{what}: {error}")
    code, details = error.code(), str(error.details())[:200]
    message = f"{what}: {code.name}: {details}"
    if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
        return LeaseLost(message)
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return Compacted(message)
    return StoreUnavailable(message) if code in PASSING else StoreError(message)
